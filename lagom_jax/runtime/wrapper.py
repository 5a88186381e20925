"""A jitted function that finds a plan for itself when it is called."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

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
from lagom_jax.runtime.options import Mode, OptionError, Options, OptionTypeError
from lagom_jax.runtime.programs import (
    JittedSource,
    LoweredSource,
    ProgramSource,
    Run,
    StageSource,
)
from lagom_jax.runtime.variant import Variant

_NO_STATICS = Statics((), ())
# That arguments are not those of the last call costs jax more to find out than a look
# at all of them does. After so many calls alike it pays to let jax find out.
_ALIKE: Final = 16
_config: Any = jax.config


class _Shortcut(NamedTuple):
    """The program that the next call probably runs.

    It is one value, since threads may replace it.
    """

    run: Run
    programs: Callable[[], int]
    """The number of programs that jax has for it; when this was written, `known`."""
    known: int
    variant: Variant


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
        if isinstance(function, Tuned):
            function = function._function
        # First, for what belongs to the function must not take the place of our own.
        functools.update_wrapper(self, function, updated=())
        vars(self).update(_attributes_of(function))
        self._function = function
        self._options = options
        self._jitted, self._source = _source_of(function, options.mode)
        self._statics = _NO_STATICS
        # Wrappers that sort their arguments themselves, as eqx.filter_jit, compile for
        # whatever is no array, and do not look whether it is still the same.
        self._by_value = not hasattr(self._jitted, "trace")
        if is_jitted(self._jitted):
            self._statics = statics_of(self._jitted)
            # Should jax have changed inside, it is better known now.
            self._source().usual()
        self._cache = Cache.at(options.cache)
        self._variants: dict[Hashable, Variant] = {}
        self._lock = threading.RLock()
        self._shortcut: _Shortcut | None = None
        self._last: Variant | None = None
        self._alike = 0
        self._mixed = False
        self._alone = options.mode == "off"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the step."""
        if self._alone:
            return self._jitted(*args, **kwargs)
        shortcut = self._shortcut
        if shortcut is not None and trace_is_clean():
            run, programs, known, _ = shortcut
            try:
                result = run(*args, **kwargs)
            except UnknownArgumentsError:
                pass
            else:
                if programs() != known:
                    self._look_again(shortcut, args, kwargs)
                return result
        return self._decided(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy decides for itself."""
        return Tuned, (self._function, self._options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The function as a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """The wrapped function and the mode."""
        return f"<lagom_jax.tune of {self._function!r}, mode {self._options.mode!r}>"

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lowers the function: with its plan's options, where it has a plan."""
        _, variant = self._find(args, kwargs)
        if variant is None or variant.plan is None:
            return self._jitted.lower(*args, **kwargs)
        return variant.lower(args, kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Traces the function."""
        return self._jitted.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """The shapes of what the function returns."""
        return self._jitted.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets what was compiled; plans stay."""
        with self._lock:
            for variant in tuple(self._variants.values()):
                variant.clear_cache()
            self._jitted.clear_cache()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans in use, one for each set of arguments that has one."""
        # Another thread may be adding one.
        found = (variant.plan for variant in tuple(self._variants.values()))
        return tuple(plan for plan in found if plan is not None)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable | None, Variant | None]:
        """A key for arguments, if they can have one, and what was decided for it."""
        if isinstance(self._function, jax.stages.Lowered):
            return (), self._variants.get(())
        try:
            statics, by_value = self._statics, self._by_value
            key = variant_of(args, kwargs, statics, by_value=by_value)
            return key, self._variants.get(key)
        except Exception:
            # jax says better than we could what is wrong with the arguments.
            return None, None

    def _decided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the step the long way: its arguments may be new."""
        # Inside another function it is part of that one's program.
        if not trace_is_clean() or _config.jax_disable_jit:
            return self._jitted(*args, **kwargs)
        key, variant = self._find(args, kwargs)
        if key is None:
            return self._jitted(*args, **kwargs)
        variant = variant or self._new(key, args, kwargs)
        if self._alone:
            return self._jitted(*args, **kwargs)
        result = variant.run_step(args, kwargs)
        self._settle(variant)
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

    def _settle(self, variant: Variant) -> None:
        """Lets the next calls go straight to jax, if they are probably the last's."""
        self._alike = self._alike + 1 if variant is self._last else 0
        self._last = variant
        often = len(self._variants) == 1 or self._alike >= _ALIKE
        if often and variant.settled and not self._mixed and is_jitted(self._jitted):
            run = variant.run
            self._shortcut = _Shortcut(run, run._cache_size, run._cache_size(), variant)
        else:
            self._shortcut = None

    def _look_again(
        self, shortcut: _Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """After a call that made jax compile, as for arguments of another sharding."""
        if self._find(args, kwargs)[1] is shortcut.variant:
            self._shortcut = shortcut._replace(known=shortcut.programs())
        else:
            # This one has run with another's options. jax cannot tell them apart, so
            # from now on all calls are looked at first.
            self._shortcut, self._mixed = None, True


def _attributes_of(function: Any) -> dict[str, Any]:
    """Attributes that a user has set on a function and expects on its wrapper."""
    return {
        name: value
        for name, value in getattr(function, "__dict__", {}).items()
        if not name.startswith("_") and not hasattr(Tuned, name)
    }


def _source_of(function: Any, mode: Mode) -> tuple[Any, Callable[[], ProgramSource]]:
    """A jitted function, or what takes its place, and what programs are made of."""
    if isinstance(function, jax.stages.Compiled):
        raise OptionTypeError(
            "a compiled step cannot be compiled otherwise: give lagom_jax.tune the "
            "function, or what .lower(...) returned"
        )
    if isinstance(function, jax.stages.Lowered):
        stage = function
        return _Once(stage), functools.partial(StageSource, stage)
    if is_jitted(function):
        return function, functools.partial(JittedSource, function)
    plain = isinstance(function, types.FunctionType)
    if plain and hasattr(function, "lower") and not hasattr(function, "trace"):
        if mode == "off":
            return function, functools.partial(LoweredSource, function)
        raise OptionError(
            "what jax.pmap made is a program for each device, not one for all of them: "
            "give lagom_jax.tune a function that jax.jit made, with shardings"
        )
    if hasattr(function, "lower"):
        return function, functools.partial(LoweredSource, function)
    if not callable(function):
        raise OptionTypeError(
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
