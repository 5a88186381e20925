"""The user's own settings when a plan was made, as a plan keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from xla_flags import FlagError, Pin, in_effect, names_dump, print_flag

# They take algorithms and protocols out of NCCL's own choice.
_UNHEEDED: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_PAT_ENABLE")


@dataclasses.dataclass(frozen=True, slots=True)
class Pinned:
    """One setting of the user's.

    Example:
        >>> print(Pinned("xla_gpu_autotune_level", "0", "XLA_FLAGS"))
        xla_gpu_autotune_level=0 [XLA_FLAGS]
    """

    name: str
    value: str
    """In one spelling, however it was written, as far as it is known."""
    place: str
    """Its place: `XLA_FLAGS`, `compiler_options`, `the environment`, a file."""

    def __str__(self) -> str:
        """In a line."""
        return f"{self.name}={self.value} [{self.place}]"


def stated(pins: Iterable[Pin]) -> tuple[Pinned, ...]:
    """Settings in effect as a plan keeps them; where to dump is none of them.

    Args:
        pins: Those of the environment first, then those of `compiler_options`.

    Example:
        >>> from xla_flags import pinned_by_environment
        >>> flags = "--xla_gpu_autotune_level=0 --xla_dump_to=seen"
        >>> stated(pinned_by_environment({"XLA_FLAGS": flags}))
        (Pinned(name='xla_gpu_autotune_level', value='0', place='XLA_FLAGS'),)
    """
    return tuple(
        Pinned(name, _text(pin), pin.where)
        for name, pin in sorted(in_effect(pins).items())
        if not names_dump(name)
    )


def unheeded(pins: Iterable[Pin]) -> tuple[str, ...]:
    """Settings of NCCL that it will heed and predictions do not know, in words.

    Args:
        pins: Those of the environment.

    Example:
        >>> from xla_flags import pinned_by_environment
        >>> print(*unheeded(pinned_by_environment({"NCCL_ALGO": "ring"})))
        NCCL_ALGO=ring [the environment]: NCCL will heed it, predictions do not ...
    """
    return tuple(
        f"{pinned}: NCCL will heed it, predictions do not know of it, and where "
        "it forbids what is chosen here, NCCL's own choice among the rest stays"
        for pinned in stated(pins)
        if pinned.name in _UNHEEDED
    )


def _text(pin: Pin) -> str:
    if pin.flag is not None and pin.value is not None:
        try:
            return print_flag(pin.flag, pin.value)
        except FlagError:
            pass
    return "" if pin.given is None else str(pin.given)
