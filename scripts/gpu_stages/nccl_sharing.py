"""How ranks of NCCL share one GPU: on one host, or each on a host of its own."""

from __future__ import annotations

from typing import Final

from gpu_stages.stage import CannotRunError

FIRST_WITH_SHARED_GPUS: Final = 23000
"""The release from which several ranks of one host may use one GPU."""
ON_ONE_HOST: Final = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets NCCL have them."""
HOW_TO_GET_IT: Final = "'nvidia-nccl-cu13>=2.30', or nvidia-nccl-cu12 with CUDA 12"
OVER_LOOPBACK: Final = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
}
"""How ranks that NCCL takes for hosts reach each other."""


def as_host(rank: int) -> dict[str, str]:
    """What makes NCCL take a rank for a host of its own.

    Example:
        >>> as_host(1)
        {'NCCL_HOSTID': 'gpu_check-1'}
    """
    return {"NCCL_HOSTID": f"gpu_check-{rank}"}


def number_of(release: str) -> int:
    """NCCL's own number for a release; of the form of the releases since 2.9.

    Example:
        >>> number_of("2.30.4"), in_words(23004)
        (23004, '2.30.4')
    """
    major, minor, patch = (*map(int, release.split(".")), 0, 0)[:3]
    return 10_000 * major + 100 * minor + patch


def in_words(number: int) -> str:
    """A release as people write it.

    Example:
        >>> in_words(23203)
        '2.32.3'
    """
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check_release(number: int) -> None:
    """Refuses a release without ranks of one host that share a GPU.

    Raises:
        CannotRunError: It is such a one.

    Example:
        >>> check_release(22809)
        Traceback (most recent call last):
        ...
        gpu_stages.stage.CannotRunError: NCCL 2.28.9 has no ranks that share a GPU: pip
        install 'nvidia-nccl-cu13>=2.30', or nvidia-nccl-cu12 with CUDA 12
    """
    if number < FIRST_WITH_SHARED_GPUS:
        raise CannotRunError(
            f"NCCL {in_words(number)} has no ranks that share a GPU: pip install "
            f"{HOW_TO_GET_IT}"
        )
