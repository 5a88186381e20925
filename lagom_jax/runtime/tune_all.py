"""Tuning for trainers that jit their steps themselves."""

from __future__ import annotations

import fnmatch
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from lagom_jax.runtime import say
from lagom_jax.runtime.function_wrapper import FunctionWrapper
from lagom_jax.runtime.options import OptionError, resolve
from lagom_jax.runtime.tune import tune

FLOPS: Final = 1e12
"""Floating-point operations on one device that are worth a plan: about a second of a
processor, and a few milliseconds of a GPU."""


def tune_all(
    names: str | Iterable[str] = (), *, flops: float = FLOPS, **options: Any
) -> TunedJits:
    """Tunes the steps of a trainer that calls `jax.jit` somewhere inside.

    From here on a function that is given to `jax.jit` is tuned as by `lagom_jax.tune`,
    if its name matches or, without names, if one call of it does enough work. All
    others run as ever. It is to be called before the trainer's modules are imported,
    since a decorator calls `jax.jit` at that moment.

    Args:
        names: Names or patterns of functions, such as `train_step` or `*step*`; without
            any, those of enough work are taken.
        flops: Operations of matrix products on one device in one call from which on a
            function is taken without being named.
        **options: What `lagom_jax.tune` takes.

    Returns:
        Something to end it with: its `stop`, or a `with` block around it. It lists the
        functions that were taken.

    Raises:
        OptionError: There is no such option.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with tune_all("train_*", mode="off") as taken:
        ...     step = jax.jit(lambda x: 2 * x)
        ...     float(step(1.0)), taken.functions
        (2.0, ())
    """
    return TunedJits(
        (names,) if isinstance(names, str) else tuple(names), flops, options
    )


class TunedJits:
    """The time in which `jax.jit` is watched."""

    def __init__(
        self, names: tuple[str, ...], flops: float, options: dict[str, Any]
    ) -> None:
        """Begins it; see `tune_all`."""
        # Here and not above, so that importing lagom_jax does not import jax.
        import jax

        self.names, self.flops = names, flops
        # What is wrong with them is better known now.
        resolve(options)
        self.options = options
        self._taken: list[str] = []
        self._changed: list[tuple[dict[str, Any], str, Any]] = []
        self._jit: Callable[..., Any] = jax.jit
        self._replace(jax.jit, self._watched_jit)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.stop()

    def stop(self) -> None:
        """Gives `jax.jit` back; functions that were jitted meanwhile stay."""
        for names, name, value in reversed(self._changed):
            names[name] = value
        self._changed.clear()

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that were taken."""
        return tuple(self._taken)

    def _replace(self, before: Any, after: Any) -> None:
        """In every module that has it, but not inside of jax."""
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            inside = getattr(module, "__name__", "").startswith(("jax._src.", "jaxlib"))
            if names is None or inside:
                continue
            for name, value in list(names.items()):
                if value is before:
                    self._changed.append((names, name, value))
                    names[name] = after

    @functools.cached_property
    def _watched_jit(self) -> Callable[..., Any]:
        @functools.wraps(self._jit)
        def jit(*args: Any, **kwargs: Any) -> Any:
            if not args:
                return functools.partial(jit, **kwargs)
            jitted = self._jit(*args, **kwargs)
            if _is_machinery(sys._getframe(1).f_code.co_filename):
                return jitted
            return WatchedJit(jitted, self)

        return jit

    def wants(self, name: str, work: Callable[[], float]) -> bool:
        """True if a function is to be tuned.

        Args:
            name: Its name.
            work: Tells the operations of one call.
        """
        if self.names:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)
        return work() >= self.flops

    def take(self, jitted: Any) -> Any:
        """The tuned function in the place of a jitted one.

        Args:
            jitted: What `jax.jit` returned.
        """
        try:
            tuned = tune(jitted, **self.options)
        except OptionError as error:
            say.warn_once(f"{jitted.__name__} runs as it is: {error}", first=True)
            return jitted
        self._taken.append(jitted.__name__)
        return tuned


class WatchedJit(FunctionWrapper):
    """A jitted function that is tuned once it turns out to be worth it."""

    def __init__(self, jitted: Any, jits: TunedJits) -> None:
        """Wraps a function; see `tune_all`."""
        super().__init__(jitted)
        self._jitted, self._jits = jitted, jits
        self._programs = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it, tuned or not."""
        from lagom_jax.runtime.arguments import trace_is_clean

        if self.__wrapped__ is not self._jitted:
            return self.__wrapped__(*args, **kwargs)
        if self._programs < 0 and trace_is_clean():
            self._decide(args, kwargs)
        result = self.__wrapped__(*args, **kwargs)
        # Private: without it, what its first call decides holds.
        count = getattr(self._jitted, "_cache_size", None)
        programs = count() if count is not None else 0
        if programs != self._programs and trace_is_clean():
            # The program is new, and may be a larger one.
            if self._programs >= 0:
                self._decide(args, kwargs)
            self._programs = programs
        return result

    def _decide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = getattr(self._jitted, "__name__", "")
        if self._jits.wants(name, functools.partial(self._work, args, kwargs)):
            self.__wrapped__ = self._jits.take(self._jitted)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        import jax

        from lagom_jax.runtime.arguments import devices_of

        try:
            traced = self._jitted.trace(*args, **kwargs)
        except Exception:
            # The call itself says better what is wrong.
            return 0.0
        leaves = jax.tree.leaves((args, kwargs))
        devices = devices_of(getattr(leaf, "sharding", None) for leaf in leaves)
        return operations(traced.jaxpr) / max(1, len(devices))


def operations(jaxpr: Any) -> float:
    """Floating-point operations of the matrix products in a jaxpr, loops included.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def step(x):
        ...     return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0]
        >>> operations(jax.make_jaxpr(step)(jnp.ones((10, 10)))) == 5 * 2 * 10**3
        True
    """
    from lagom_jax.compile._jax_internals import jaxprs_in

    total = 0.0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs = equation.invars[0].aval.shape
            summed = math.prod(lhs[dimension] for dimension in contracted)
            total += 2.0 * summed * math.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1)
        total += times * sum(map(operations, jaxprs_in(equation)))
    return total


def _is_machinery(file: str) -> bool:
    """True for a file of jax's or of this package."""
    import jax

    own = os.path.dirname(os.path.dirname(__file__))
    jaxs = os.path.dirname(jax.__file__ or "")
    return file.startswith((f"{own}{os.sep}", f"{jaxs}{os.sep}"))
