"""How far environment variables can carry compiler options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from xla_flags import FlagError, OptionValue, find, join, parse_option, print_flag

Carrier: TypeAlias = Literal["compiler options", "compiling process", "tuner plugin"]
"""What can say that which no environment variable can."""


@dataclasses.dataclass(frozen=True, slots=True)
class Beyond:
    """A part of a plan that no environment variable can say."""

    what: str
    why: str
    """In words: why not, and what can."""
    carrier: Carrier


def xla_flags_text(
    options: Mapping[str, OptionValue], jaxlib: str | None
) -> tuple[str, tuple[Beyond, ...]]:
    """The text of `XLA_FLAGS` for compiler options, and what it cannot say.

    XLA ends a process whose `XLA_FLAGS` hold a word that it does not know, so only
    what the catalogue knows for a flag is written.

    Args:
        options: As jax takes them, all of them in the catalogue.
        jaxlib: The version that will read the text, None if it is not known.

    Example:
        >>> text, beyond = xla_flags_text(
        ...     {"xla_gpu_enable_pipelined_p2p": True, "optimization_level": 19}, None)
        >>> text, [option.what for option in beyond]
        ('--xla_gpu_enable_pipelined_p2p=true', ['optimization_level'])
    """
    words: list[tuple[str, str]] = []
    beyond: list[Beyond] = []
    for name, value in options.items():
        flag = find(name)
        if "XLA_FLAGS" not in flag.routes:
            why = "XLA_FLAGS do not know it"
        elif jaxlib is not None and not flag.is_a_flag_in(jaxlib):
            why = f"XLA_FLAGS of jaxlib {jaxlib} do not know it"
        else:
            try:
                words.append((name, print_flag(flag, parse_option(flag, value))))
                continue
            except FlagError as error:
                why = str(error)
        why += ": give it as a compiler option"
        beyond.append(Beyond(name, why, "compiler options"))
    return join(words), tuple(beyond)
