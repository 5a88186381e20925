"""jax's own dispatch, for the calls of a tuned function.

A jitted function looks up in C++ which program the arguments of a call have, static
ones included, and asks a function in Python where it knows none. It can be taken apart,
as for a copy, and put together again around another function to ask.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import jax

from lagom_jax.compile._internal import internal
from lagom_jax.errors import ToolchainError
from lagom_jax.runtime.say import LOG

JITTED: Final[Any] = type(jax.jit(lambda: None))
"""The type of what `jax.jit` returns."""
UNKNOWN: Final = object()
"""The result of a call that was not made, since nothing is known of its arguments."""
Answer: TypeAlias = "tuple[Any, Any, bool]"
"""The results of a call; the way of the next ones that are like it to their program,
None where that leads through Python; and whether this answer is to be forgotten."""
NOT_KNOWN: Final[Answer] = (UNKNOWN, None, True)


def parts_of(jitted: Any) -> Any:
    """The parts of a jitted function, as for a copy of it.

    Raises:
        ToolchainError: jax has changed inside.

    Example:
        >>> parts_of(jax.jit(lambda x, n: x, static_argnums=1)).static_argnames
        ['n']
    """
    return types.SimpleNamespace(**internal(jitted, "__getstate__")())


def dispatcher(jitted: Any, ask: Callable[..., Answer]) -> Callable[..., Any]:
    """A function that tells arguments apart as a jitted one does.

    Args:
        jitted: The jitted function.
        ask: Called as it is where a call is not known.

    Raises:
        ToolchainError: jax has changed inside.

    Example:
        >>> asked = dispatcher(jax.jit(lambda x: x), lambda x: (x + 1, None, True))
        >>> asked(1)
        2
    """
    parts = parts_of(jitted)
    for part in ("fun", "cache_miss"):
        internal(parts, part)
    # Programs go by the function that they are of; jax calls it where jit is disabled.
    changed = {"fun": lambda *_, **__: UNKNOWN, "cache_miss": ask}
    made = JITTED.__new__(JITTED)
    made.__setstate__({**vars(parts), **changed})
    return made


def asked_of(jitted: Any) -> Callable[..., Answer]:
    """The function that a jitted one asks.

    Raises:
        ToolchainError: jax has changed inside.
    """
    return internal(parts_of(jitted), "cache_miss")


def answer_of(compiled: Any) -> Callable[..., Answer]:
    """A compiled program, called as a dispatcher asks.

    Example:
        >>> compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
        >>> answer_of(compiled)(1.0)[0]
        Array(2., dtype=float32, weak_type=True)
    """
    try:
        make = internal(compiled, "_executable.create_cpp_call")
        call = make(internal(compiled, "_params"))
        if call is not None:
            return asked_of(call)
        # jax has no way around Python for what calls back into it.
    except (ToolchainError, TypeError) as error:
        LOG.debug("each call is looked at: %s", error)
    return lambda *args, **kwargs: (compiled(*args, **kwargs), None, False)
