"""A jitted function that finds a plan for itself when it is called."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax

from lagom_jax.plan import Plan
from lagom_jax.runtime.arguments import variant_of
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.jitted import (
    Statics,
    UnknownArgumentsError,
    is_jitted,
    statics_of,
    trace_is_clean,
)
from lagom_jax.runtime.options import OptionError, Options
from lagom_jax.runtime.programs import (
    JittedSource,
    LoweredSource,
    Run,
    Source,
    StageSource,
)
from lagom_jax.runtime.variant import Variant

_NO_STATICS = Statics((), ())
# That arguments are not those of the last call costs jax more to find out than a look
# at all of them does; where it happens again and again, they are looked at first.
_MOST_TURNS = 8
_config: Any = jax.config


class Tuned:
    """A jitted function with plans: what `lagom_jax.tune` returns.

    It is called, lowered and traced as the function itself would be.
    """

    def __init__(self, function: Any, options: Options) -> None:
        """Wraps a function; nothing happens before it is called.

        Args:
            function: What `lagom_jax.tune` takes.
            options: What was asked for.

        Raises:
            OptionError: It cannot be tuned.
        """
        self._function = function
        self._options = options
        self._jitted, self._source = _source_of(function)
        self._statics = _NO_STATICS
        if is_jitted(self._jitted):
            self._statics = statics_of(self._jitted)
            # Should jax have changed inside, it is better known now.
            self._source().usual()
        self._cache = Cache.at(options.cache)
        self._variants: dict[Hashable, Variant] = {}
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._runs: Hashable = None
        self._size = -1
        self._turns = 0
        self._alone = options.mode == "off"
        functools.update_wrapper(self, function)
        self._settle()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step."""
        run = self._run
        if run is not None and trace_is_clean():
            try:
                result = run(*args, **kwargs)
            except UnknownArgumentsError:
                pass
            else:
                if run._cache_size() != self._size:
                    self._look_again(run, args, kwargs)
                return result
        return self._decided(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The function as a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """What is wrapped, and to what end."""
        return f"<lagom_jax.tune of {self._function!r}, mode {self._options.mode!r}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the function: with its plan's options, where it has a plan."""
        key = self._key(args, kwargs)
        variant = None if key is None else self._variants.get(key)
        if variant is None or variant.plan is None:
            return self._jitted.lower(*args, **kwargs)
        return variant.lower(args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function."""
        return self._jitted.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes of what the function returns."""
        return self._jitted.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets what was compiled; plans stay."""
        with self._lock:
            for variant in self._variants.values():
                variant.clear_cache()
            self._jitted.clear_cache()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans in use, one for each set of arguments that has one."""
        found = (variant.plan for variant in self._variants.values())
        return tuple(plan for plan in found if plan is not None)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
        if isinstance(self._function, jax.stages.Lowered):
            return ()
        try:
            key = variant_of(args, kwargs, self._statics)
            hash(key)
        except (TypeError, ValueError):
            # jax says better than we could what is wrong with the arguments.
            return None
        return key

    def _decided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the step the long way: its arguments may be new."""
        # Inside another function it is part of that one's program.
        if self._alone or not trace_is_clean() or _config.jax_disable_jit:
            return self._jitted(*args, **kwargs)
        key = self._key(args, kwargs)
        if key is None:
            return self._jitted(*args, **kwargs)
        variant = self._variants.get(key) or self._new(key, args, kwargs)
        if self._alone:
            self._settle()
            return self._jitted(*args, **kwargs)
        result = variant.run_step(args, kwargs)
        self._settle(key, variant)
        return result

    def _new(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Variant:
        with self._lock:
            found = self._variants.get(key)
            if found is not None:
                return found
            variant = Variant(self._source(), self._options, self._cache)
            variant.decide(args, kwargs)
            self._alone = variant.leaves_all_alone
            self._variants[key] = variant
            return variant

    def _settle(self, key: Hashable = None, variant: Variant | None = None) -> None:
        """Lets the next calls go straight to jax.

        Args:
            key: What ran last, and so will probably run next.
            variant: The same.
        """
        if not is_jitted(self._jitted):
            return
        if self._alone:
            self._run = self._jitted
        elif variant is None or not variant.settled or self._turns >= _MOST_TURNS:
            self._run = None
        else:
            self._turns += 1
            self._size = variant.run._cache_size()
            self._runs, self._run = key, variant.run

    def _look_again(
        self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """After a call that made jax compile, as for arguments of another sharding."""
        self._size = run._cache_size()
        if not self._alone and self._key(args, kwargs) != self._runs:
            # This one has run with another's options. jax cannot tell them apart, so
            # from now on all calls are looked at first.
            self._run, self._turns = None, _MOST_TURNS


def _source_of(function: Any) -> tuple[Any, Callable[[], Source]]:
    """A jitted function, or what takes its place, and what programs are made of."""
    if isinstance(function, jax.stages.Compiled):
        raise OptionError(
            "a compiled step cannot be compiled otherwise: give lagom_jax.tune the "
            "function, or what .lower(...) returned"
        )
    if isinstance(function, jax.stages.Lowered):
        stage = function
        return _Once(stage), functools.partial(StageSource, stage)
    if is_jitted(function):
        return function, functools.partial(JittedSource, function)
    if hasattr(function, "lower") and hasattr(function, "trace"):
        return function, functools.partial(LoweredSource, function)
    if not callable(function):
        raise OptionError(
            f"lagom_jax.tune takes a function, not an object of type "
            f"{type(function).__name__}"
        )
    jitted = jax.jit(function)
    return jitted, functools.partial(JittedSource, jitted)


class _Once:
    """A lowered step as something to call."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered
        self._compiled: jax.stages.Compiled | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._lowered.compile()
        return self._compiled(*args, **kwargs)
