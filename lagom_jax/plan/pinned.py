"""What the user had set when a plan was made, as a plan states it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xla_flags import FlagError, Pin, in_effect, print_flag

# They take algorithms and protocols out of NCCL's own choice.
_UNHEEDED: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_PAT_ENABLE")


def stated(pins: Iterable[Pin]) -> tuple[tuple[str, str], ...]:
    """Settings in effect as a plan keeps them: names, and values with their places.

    Args:
        pins: Those of the environment first, then those of `compiler_options`.

    Example:
        >>> from xla_flags import pinned_by_environment
        >>> stated(pinned_by_environment({"XLA_FLAGS": "--xla_gpu_autotune_level=0"}))
        (('xla_gpu_autotune_level', '0 [XLA_FLAGS]'),)
    """
    return tuple(
        (name, f"{_text(pin)} [{pin.where}]")
        for name, pin in sorted(in_effect(pins).items())
    )


def unheeded(pins: Iterable[Pin]) -> tuple[str, ...]:
    """What the user has told NCCL, and predictions do not know.

    Args:
        pins: Those of the environment.

    Example:
        >>> from xla_flags import pinned_by_environment
        >>> print(*unheeded(pinned_by_environment({"NCCL_ALGO": "ring"})))
        NCCL_ALGO=ring [the environment]: NCCL will heed it, predictions do not ...
    """
    return tuple(
        f"{name}={value}: NCCL will heed it, predictions do not know of it, and where "
        "it forbids what is chosen here, NCCL's own choice among the rest stays"
        for name, value in stated(pins)
        if name in _UNHEEDED
    )


def value_and_place(text: str) -> tuple[str, str]:
    """A value and where it was found, from what `stated` wrote.

    Example:
        >>> value_and_place("0 [XLA_FLAGS]"), value_and_place("0")
        (('0', 'XLA_FLAGS'), ('0', ''))
    """
    value, bracket, place = text.removesuffix("]").rpartition(" [")
    return (value, place) if bracket and text.endswith("]") else (text, "")


def _text(pin: Pin) -> str:
    """The value in one spelling, however it was written, as far as it is known."""
    if pin.flag is not None and pin.value is not None:
        try:
            return print_flag(pin.flag, pin.value)
        except FlagError:
            pass
    return "" if pin.given is None else str(pin.given)
