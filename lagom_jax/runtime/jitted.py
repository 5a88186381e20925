"""Jitted functions with other compiler options than their user gave them.

What jax does not promise to keep, and why nothing public will do:

- `PjitFunction._fun` and `_jit_info`, and `pjit._cpp_pjit`: donation, static arguments
  and shardings of a function that the user has jitted, for a copy with more options;
- `PjitFunction._cache_size`: whether a call was compiled for other shardings;
- `core.trace_state_clean`: whether a call is part of another one that is being traced,
  without a look at each argument;
- `config.trace_context`: what of jax's configuration a program depends on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lagom_jax.compile._jax_internals import internal


class UnknownArgumentsError(BaseException):
    """A function is being traced for arguments that nobody has decided for.

    Not an `Exception`, so that no step catches it.
    """


class Statics(NamedTuple):
    """The static arguments of a jitted function, by position and by name."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]


def is_jitted(value: Any) -> bool:
    """True if `jax.jit` made it."""
    return hasattr(value, "_jit_info") and hasattr(value, "_fun")


def statics_of(jitted: Any) -> Statics:
    """The static arguments of a jitted function.

    Example:
        >>> import jax
        >>> statics_of(jax.jit(lambda x, n: x * n, static_argnums=1))
        Statics(numbers=(1,), names=('n',))
    """
    info = internal(jitted, "_jit_info")
    return Statics(tuple(info.static_argnums), tuple(info.static_argnames))


class _Gate(threading.local):
    """Permission to trace, one for each thread: another has other arguments."""

    open = 0


class Watched:
    """A jitted function that compiles only for what has been decided.

    Its copies with other compiler options share one trace of the user's function.

    Example:
        >>> import jax
        >>> watched = Watched(jax.jit(lambda x: 2 * x))
        >>> usual = watched.jitted({})
        >>> usual(1.0)
        Traceback (most recent call last):
        ...
        lagom_jax.runtime.jitted.UnknownArgumentsError
        >>> with watched:
        ...     float(usual(1.0))
        2.0
        >>> float(usual(1.0))
        2.0
    """

    def __init__(self, jitted: Any) -> None:
        """Copies the function.

        Args:
            jitted: What `jax.jit` returned.
        """
        self._info: Any = internal(jitted, "_jit_info")
        function: Callable[..., Any] = internal(jitted, "_fun")
        # Not of `self`, which would go round in a circle: what the function has closed
        # over is to be freed with the last reference to it, as with jax.jit.
        gate = self._gate = _Gate()

        @functools.wraps(function, updated=())
        def guarded(*args: Any, **kwargs: Any) -> Any:
            # At top level nothing is traced: jax.disable_jit is on.
            if not gate.open and not trace_is_clean():
                raise UnknownArgumentsError
            return function(*args, **kwargs)

        # Programs are called by it, also those of partials, which have no name.
        guarded.__name__ = jitted.__name__
        self._function = guarded

    def __enter__(self) -> Watched:
        """Tracing is allowed inside the block."""
        self._gate.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        """It no longer is."""
        self._gate.open -= 1

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Leaves of `in_shardings` and `out_shardings`; some are no shardings."""
        return (*self._info.in_shardings_leaves, *self._info.out_shardings_leaves)

    def jitted(self, options: Mapping[str, Any]) -> Any:
        """A jitted function; the options that the user gave win over these."""
        kept = {**options, **dict(self._info.compiler_options_kvs)}
        # In one order, for it is part of the key of jax's caches.
        info = self._info._replace(compiler_options_kvs=tuple(sorted(kept.items())))
        copy = internal("jax._src.pjit", "_cpp_pjit")(self._function, info)
        internal(copy, "_cache_size")
        return copy


def trace_is_clean() -> bool:
    """True if no jax transformation is under way in this thread.

    Example:
        >>> import jax
        >>> trace_is_clean(), jax.eval_shape(lambda: trace_is_clean() or 1).shape
        (True, ())
    """
    return _state_clean()


def trace_context() -> Any:
    """The part of jax's configuration that programs depend on, hashable."""
    return _context()


_state_clean: Callable[[], bool] = internal("jax._src.core", "trace_state_clean")
_context: Callable[[], Any] = internal("jax._src.config", "trace_context")
