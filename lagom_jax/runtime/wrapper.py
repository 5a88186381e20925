"""A jitted function that finds a plan for itself when it is called."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

import jax

from lagom_jax.plan import Plan
from lagom_jax.runtime import say
from lagom_jax.runtime.arguments import Statics, trace_is_clean, variant_of
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.dispatch import (
    JITTED,
    NOT_KNOWN,
    UNKNOWN,
    Answer,
    dispatcher,
)
from lagom_jax.runtime.function_wrapper import FunctionWrapper
from lagom_jax.runtime.options import OptionError, OptionTypeError, resolve
from lagom_jax.runtime.programs import NAN_FOUND, REFUSALS, Stages, StepCall
from lagom_jax.runtime.variant import Variant

_config: Any = jax.config


class _Sentinel:
    """A static argument that jax's caches hold, until they are cleared."""


_tuned: weakref.WeakSet[Tuned] = weakref.WeakSet()
_watch: Final = jax.jit(lambda sentinel: 0.0, static_argnums=0)


@functools.cache
def _watch_caches() -> None:
    """Clears our programs with jax's own caches, as `jax.clear_caches` is meant."""
    sentinel = _Sentinel()
    _watch.trace(sentinel)
    weakref.finalize(sentinel, _caches_were_cleared).atexit = False


def _caches_were_cleared() -> None:
    for one in tuple(_tuned):
        one._forget_programs()
    _watch_caches.cache_clear()


class _Decided(NamedTuple):
    """The program that a kind of arguments leads to."""

    variant: Variant
    stages: Stages


class Tuned(FunctionWrapper):
    """A jitted function with plans: what `lagom_jax.tune` returns.

    It is called, lowered and traced as the function itself would be.
    """

    def __init__(self, function: Any, given: Mapping[str, Any]) -> None:
        """Wraps a function; nothing happens before it is called.

        Args:
            function: As `lagom_jax.tune` takes it.
            given: The options that were given there; flags and the environment have
                the rest.

        Raises:
            OptionError: It cannot be tuned, or there is no such option.
        """
        if isinstance(function, Tuned):
            function = function._function
        self._function, self._given = function, given
        self._options = resolve(given)
        self._jitted = _jitted_of(function, off=self._options.mode == "off")
        super().__init__(self._jitted)
        # Wrappers that sort their arguments themselves, as eqx.filter_jit, compile for
        # whatever is no array, and do not look whether it is still the same.
        self._own = isinstance(self._jitted, JITTED)
        self._statics = Statics.of(self._jitted) if self._own else Statics()
        self._lock = threading.RLock()
        self._begun = self._alone = False
        self._cache = Cache(None)
        self._variants: dict[Hashable, Variant] = {}
        self._known: dict[Hashable, _Decided] = {}
        self._calls = self._dispatched()

    def _dispatched(self) -> Callable[..., Any]:
        """Calls the program of arguments that are known, and returns `UNKNOWN`."""
        if self._alone:
            return self._jitted
        if not self._own:
            return lambda *_, **__: UNKNOWN
        here = weakref.WeakMethod(self._answer)

        def ask(*args: Any, **kwargs: Any) -> Answer:
            answer = here()
            return NOT_KNOWN if answer is None else answer(args, kwargs)

        return dispatcher(self._jitted, ask)

    def _forget_programs(self) -> None:
        self._known = {}
        self._calls = self._dispatched()
        for variant in self._different:
            variant.programs.clear()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the step."""
        try:
            result = self._calls(*args, **kwargs)
            return self._decided(args, kwargs) if result is UNKNOWN else result
        except NAN_FOUND as error:
            # jax looks for what `jax_debug_nans` has met in calls of its own.
            deleted = self._call(args, kwargs).deleted()
            if jax.process_count() > 1 or deleted:
                raise FloatingPointError(
                    f"invalid value encountered in the output of {_name(self)}: "
                    f"{error}; with mode='off' jax looks for the operation"
                ) from error
            return self._jitted(*args, **kwargs)

    def _answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """The answer to jax's dispatcher, which does not know these arguments."""
        if not trace_is_clean():
            return NOT_KNOWN
        _, known = self._look_up(args, kwargs)
        if known is None:
            return NOT_KNOWN
        return known.variant.answer(known.stages, self._call(args, kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy decides for itself."""
        return Tuned, (self._function, self._given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tuned:
        """Another one around the same function, as functions are not copied."""
        return Tuned(self._function, self._given)

    def __repr__(self) -> str:
        """The wrapped function and the mode."""
        return f"<lagom_jax.tune of {self._function!r}, mode {self._options.mode!r}>"

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lowers the function; what `compile` then returns has its plan, if any."""
        lowered = self._jitted.lower(*args, **kwargs)
        if self._left_to_jax():
            return lowered
        return LoweredWithPlan(lowered, functools.partial(self._ahead, args, kwargs))

    def clear_cache(self) -> None:
        """Forgets what was compiled; plans stay."""
        with self._lock:
            self._forget_programs()
            if hasattr(self._jitted, "clear_cache"):
                self._jitted.clear_cache()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans in use, one for each program that has one."""
        found = (variant.plan for variant in self._different)
        return tuple(plan for plan in found if plan is not None)

    @property
    def _different(self) -> tuple[Variant, ...]:
        # Another thread may be adding one; several keys may lead to one.
        return tuple(dict.fromkeys(tuple(self._variants.values())))

    def _left_to_jax(self) -> bool:
        """True if this call is jax's alone; flags may be parsed only by now."""
        if not self._begun:
            with self._lock:
                self._options = resolve(self._given)
                self._leave_alone(self._options.mode == "off")
                self._cache = Cache.at(self._options.cache)
                self._begun = True
        if self._alone or _config.jax_disable_jit:
            return True
        if trace_is_clean():
            return False
        # Inside another function it is part of that one's program.
        if not self._variants and say.once(f"inside {id(self)}"):
            say.visibly(
                f"{_name(self)} was called inside another function that jax "
                "transforms, and is part of that one's program there: no plan is made "
                "for it. Tune the outermost jitted function"
            )
        return True

    def _decided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the step the long way: its arguments may be new."""
        if self._left_to_jax():
            return self._jitted(*args, **kwargs)
        # What jax has compiled cannot be called with an argument of this name.
        known = None if "self" in kwargs else self._find(args, kwargs)
        if known is None:
            return self._jitted(*args, **kwargs)
        variant, stages = known
        try:
            return variant.run_step(stages, self._call(args, kwargs))
        except REFUSALS:
            # What is static for a wrapper, as a value or that two models are one, no
            # look at its arguments can tell. Nothing has run yet.
            wraps = not self._own and not isinstance(self._jitted, _Once)
            if variant.plan is None or not wraps:
                raise
            return self._jitted(*args, **kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepCall:
        return StepCall(args, kwargs, *self._statics.divided(args, kwargs)[1:])

    def _look_up(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, _Decided | None]:
        """The key of arguments, None for those without, and the decision for them."""
        try:
            key = variant_of(args, kwargs, self._statics, by_value=not self._own)
            return key, self._known.get(key)
        except Exception:
            # jax says better than we could what is wrong with the arguments.
            return None, None

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Decided | None:
        """The decision for arguments, new or known; None for those without a key."""
        key, known = self._look_up(args, kwargs)
        if key is not None and (known is None or known.variant.open):
            known = self._new(key, args, kwargs)
        return None if self._alone else known

    def _new(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Decided:
        with self._lock:
            known = self._known.get(key)
            if known is not None and not known.variant.open:
                return known
            _tuned.add(self)
            _watch_caches()
            rest = self._call(args, kwargs)[2:] if self._own else None
            stages = Stages.of(self._jitted, args, kwargs, rest)
            program = (stages.digest, stages.devices)
            others = self._different
            same = (other for other in others if other.serves(stages))
            variant = self._variants.get(program) or next(same, None)
            new = variant is None
            if variant is None:
                variant = Variant(
                    *(_name(self), self._options, self._cache),
                    *(self._jitted, stages.devices),
                )
            self._variants[program] = variant
            # The same program may come from other arguments, as numpy arrays.
            stages = variant.programs.known(stages)
            if new or variant.open:
                try:
                    variant.decide(stages, others)
                except BaseException:
                    if not variant.lasts:
                        # The next call looks for a plan again.
                        del self._variants[program]
                    raise
                self._leave_alone(variant.leaves_all_alone)
            known = self._known[key] = _Decided(variant, stages)
            return known

    def _leave_alone(self, alone: bool) -> None:
        """Lets jax make all calls, if no arguments could have a plan."""
        self._alone = alone
        if alone:
            self._calls = self._dispatched()

    def _ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The compiled program for arguments that may be shapes only."""
        known = self._find(args, kwargs)
        program = None if known is None else known.variant.program(known.stages)
        return None if program is None else program.run


class LoweredWithPlan(FunctionWrapper):
    """A lowered step that looks for a plan when it is compiled."""

    def __init__(self, lowered: Any, compiled: Callable[[], Any]) -> None:
        """Takes the stage as jax has it, and the means to compile it with a plan."""
        super().__init__(lowered)
        self._compiled = compiled

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Any:
        """Compiles it: with a plan, unless the caller has options of his own."""
        if compiler_options is None:
            found = self._compiled()
            if found is not None:
                return found
        return self.__wrapped__.compile(compiler_options=compiler_options)


def _name(tuned: Tuned) -> str:
    return str(getattr(tuned, "__name__", "the step"))


def _jitted_of(function: Any, *, off: bool) -> Any:
    """A jitted function, or what takes its place."""
    if isinstance(function, jax.stages.Compiled):
        raise OptionTypeError(
            "a compiled step cannot be compiled otherwise: give lagom_jax.tune the "
            "function, or what .lower(...) returned"
        )
    if isinstance(function, jax.stages.Lowered):
        return _Once(function)
    plain = isinstance(function, types.FunctionType)
    if plain and hasattr(function, "lower") and not hasattr(function, "trace"):
        if off:
            return function
        raise OptionError(
            "what jax.pmap made is a program for each device, not one for all of them: "
            "give lagom_jax.tune a function that jax.jit made, with shardings"
        )
    if not callable(function):
        raise OptionTypeError(
            f"lagom_jax.tune takes a function, not an object of type "
            f"{type(function).__name__}"
        )
    return function if hasattr(function, "lower") else jax.jit(function)


class _Once(FunctionWrapper):
    """A lowered step as something to call."""

    @functools.cached_property
    def _compiled(self) -> jax.stages.Compiled:
        return self.__wrapped__.compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        return self.__wrapped__
