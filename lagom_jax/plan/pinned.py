"""What the user had set when a plan was made, as a plan states it."""

from __future__ import annotations

from collections.abc import Iterable

from xla_flags import FlagError, Pin, in_effect, print_flag


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
