"""A step in slices that falls back on the step as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lagom_jax.errors import LagomError
from lagom_jax.plan import Plan
from lagom_jax.planner.rewrites import RewriteWay
from lagom_jax.runtime import say
from lagom_jax.runtime.function_wrapper import FunctionWrapper
from lagom_jax.runtime.options import OptionError, plan_given


def way_of(rewrite: bool | int, plan: Plan | str | Path | None) -> RewriteWay | None:
    """The change of a step that was asked for; None for none.

    Args:
        rewrite: A number of slices, or True for what the plan names.
        plan: The plan that is used, or its file.

    Raises:
        OptionError: Nothing says into how many.

    Example:
        >>> way_of(4, None).slices, way_of(False, None)
        (4, None)
    """
    if rewrite is False:
        return None
    if rewrite is not True:
        if rewrite < 1:
            raise OptionError(f"rewrite={rewrite}: slices are 1 or more")
        # One slice changes nothing.
        return RewriteWay("sliced", rewrite, True, True) if rewrite > 1 else None
    if plan is None:
        raise OptionError(
            "rewrite=True does what a plan names: give the plan that `lagom tune "
            "--rewrite` wrote (plan=), or a number of slices (rewrite=2)"
        )
    found = plan_given(plan).rewrite
    if found is None:
        return None
    made = (found.transformation, found.slices, found.whole_sums)
    # Nobody asks here whether sums are rounded as before.
    return RewriteWay(*made, keeps_order=False, forms=found.forms, only=found.only)


def rewritten(function: Any, way: RewriteWay | None) -> Any:
    """The function transformed, or as it is where nothing can be cut.

    Args:
        function: A function, jitted or not.
        way: The change that was asked for.
    """
    import jax

    if way is None or isinstance(function, jax.stages.Lowered):
        return function
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    return RewrittenStep(jitted, way.of(jitted))


class RewrittenStep(FunctionWrapper):
    """A jitted step in slices; called, traced and lowered as the step itself.

    All else is the step's as it is written: slices change no shape.
    """

    def __init__(self, usual: Any, cut: Any) -> None:
        super().__init__(usual)
        self._cut = cut
        self._as_written = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it."""
        return self._one("__call__", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As the jitted step's."""
        return self._one("trace", args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As the jitted step's."""
        return self._one("lower", args, kwargs)

    def _one(self, what: str, args: Any, kwargs: Any) -> Any:
        if not self._as_written:
            try:
                return getattr(self._cut, what)(*args, **kwargs)
            except LagomError as error:
                self._as_written = True
                say.warn_once(f"the step stays as it is written: {error}", first=True)
        return getattr(self.__wrapped__, what)(*args, **kwargs)
