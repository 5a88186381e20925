"""From a training step to a plan for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.levers import Idea, bound_of, ideas
from lagom_jax.measure import Calibration
from lagom_jax.plan import HoldsFor, Plan
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.plan.pinned import Pinned, stated
from lagom_jax.plan.plan import COSTS
from lagom_jax.planning.allowed import allowed
from lagom_jax.planning.assemble import assemble
from lagom_jax.planning.budget import Budget
from lagom_jax.planning.judge import Judge, View
from lagom_jax.planning.sweep import Sweep
from lagom_jax.planning.trial import Asked, Trial
from lagom_jax.scheduled import Scheduled, cluster_named, scheduled_of
from lagom_jax.search.controls import Controls, named
from lagom_jax.units import in_bytes
from xla_flags import (
    OptionValue,
    Pin,
    known,
    pinned_here,
    print_option,
    recipes,
)

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep, Compiler, LoweredStep

_MULTI_STREAMING: Final = "xla_gpu_experimental_enable_collective_multi_streaming"
LEVERS: Final = ("options", "costs", "order", "streams", "settings")
"""What a plan may make use of: XLA's options, our costs as its profile, another order
of instructions and in it a second stream for collectives, NCCL's settings."""


class LeverError(LagomError):
    """No such lever."""


class Planner:
    """A step on a cluster, for which plans can be made.

    What was compiled once is kept, so that plans with different levers share it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> planner = Planner(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
        >>> planner.plan().levers
        ()
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *args: Any,
        cluster: str | Cluster,
        compiler_options: Mapping[str, Any] | None = None,
        calibration: Calibration | str | Path | None = None,
        name: str = "",
        description: str = "",
        compiler: Compiler | None = None,
        **kwargs: Any,
    ) -> None:
        """Traces the step; see `make_plan` for the arguments."""
        # Here and not above, so that importing lagom_jax does not import jax.
        from lagom_jax.compile import lower

        self.cluster = cluster_named(cluster)
        if isinstance(calibration, str | Path):
            calibration = Calibration.load(calibration)
        self._calibration = calibration
        self._lowered = lower(step, *args, **kwargs)
        self._given = dict(compiler_options or {})
        self._name, self._description = name or self._lowered.name, description
        self._compiled: dict[str, CompiledStep] = {}
        self._compiler = compiler

    @property
    def fingerprint(self) -> str:
        """The step's, as `LoweredStep` has it."""
        return self._lowered.fingerprint

    @property
    def pinned(self) -> tuple[Pinned, ...]:
        """The user's own settings, as a plan states them."""
        return stated(_pins(self._given, self._lowered))

    def plan(
        self,
        *,
        levers: Sequence[str] = LEVERS,
        controls: str | Controls = "tuner",
        budget: Budget | None = None,
        deterministic: bool = False,
        compare_recipes: bool = False,
        progress: Callable[[str], None] = lambda what: None,
    ) -> Plan:
        """Makes a plan; see `make_plan`."""
        from lagom_jax.compile import Compiler

        with contextlib.ExitStack() as stack:
            compiler = self._compiler or stack.enter_context(Compiler())
            return self._plan(
                compiler,
                levers,
                controls,
                budget or Budget(),
                deterministic,
                compare_recipes,
                progress,
            )

    def _plan(
        self,
        compiler: Compiler,
        levers: Sequence[str],
        controls: str | Controls,
        budget: Budget,
        deterministic: bool,
        compare_recipes: bool,
        progress: Callable[[str], None],
    ) -> Plan:
        levers = [levers] if isinstance(levers, str) else levers
        if unknown := set(levers) - set(LEVERS):
            raise LeverError(
                f"no lever {min(unknown)!r}; known are {', '.join(LEVERS)}"
            )
        told = named(controls) if isinstance(controls, str) else controls
        pins = _pins(self._given, self._lowered)
        told = allowed(
            told,
            pinned={pin.name for pin in pins},
            deterministic=deterministic,
            settings="settings" in levers,
        )
        # Where XLA deals collectives out to streams, nobody can tell which is where.
        dealt = any(pin.name == _MULTI_STREAMING for pin in pins)
        judge = Judge(
            self.cluster,
            told,
            self._calibration,
            streams="streams" in levers and not dealt,
        )
        limit = budget.memory(self.cluster.gpu.memory_bytes)
        sweep = Sweep(
            functools.partial(self.compile, compiler=compiler),
            judge,
            budget,
            limit,
            orders="order" in levers,
            say=progress,
        )
        first = sweep.first()
        assert first.view is not None
        versions = dict(first.view.scheduled.versions)
        best = first
        if first.view.tuning.before.communication_seconds > 0.0:
            best = _search(
                *(sweep, judge, first, levers, pins),
                *(versions["jaxlib"], deterministic, budget.compiles),
            )
        if compare_recipes:
            sweep.compare(_recipes(versions["jaxlib"], pins), first)
        return assemble(
            sweep.trials,
            first,
            best,
            holds_for=HoldsFor(
                program=self._name,
                fingerprint=self._lowered.fingerprint,
                schedule=best.schedule if best.ordered else "",
                cluster=self.cluster.name,
                devices=self.cluster.devices,
                versions=tuple(sorted(versions.items())),
                pinned=stated(pins),
            ),
            bound=bound_of(first.view.timeline),
            memory_limit=sweep.memory_limit,
            controls=told.stated(),
            compiles=sweep.compiles,
            seconds=sweep.seconds,
            notes=(*_over(limit, first), *_useless(levers)),
        )

    def compile(
        self,
        options: dict[str, OptionValue],
        order: ScheduleEdit | None = None,
        *,
        capture: bool = False,
        compiler: Compiler | None = None,
    ) -> tuple[Scheduled, CompiledStep]:
        """Compiles the step, unless it has been compiled so before.

        Args:
            options: XLA options, beside those that were given for the step.
            order: Another order than XLA's.
            capture: Keeps what XLA's scheduler left, which an order can be made for.
            compiler: As `compile_step` takes it; by default that of this planner.

        Raises:
            LagomError: It cannot be compiled so.
        """
        from lagom_jax.compile import compile_step

        asked = {**options, **self._given}
        key = repr((sorted(asked.items()), order))
        compiled = self._compiled.get(key)
        if compiled is None or (capture and compiled.scheduled_bytes is None):
            compiled = self._compiled[key] = compile_step(
                self._lowered,
                self.cluster,
                asked,
                order=order,
                capture=capture,
                compiler=compiler or self._compiler,
            )
        scheduled = scheduled_of(
            compiled, self.cluster, self._name, self._description, self._lowered.notes
        )
        return scheduled, compiled


def make_plan(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    levers: Sequence[str] = LEVERS,
    controls: str | Controls = "tuner",
    budget: Budget | None = None,
    deterministic: bool = False,
    compare_recipes: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
    calibration: Calibration | str | Path | None = None,
    name: str = "",
    description: str = "",
    progress: Callable[[str], None] = lambda what: None,
    compiler: Compiler | None = None,
    **kwargs: Any,
) -> Plan:
    """Compiles a training step in several ways and decides for the best.

    Nothing is executed, and nothing is set: the answer is a record. What the user has
    set, in `XLA_FLAGS` or in compiler options, stays as it is.

    Args:
        step: The training step, as `analyze` takes it.
        *args: Its arguments, likewise.
        cluster: The cluster, such as `"h100:8x8"`.
        levers: Which of `LEVERS` may be used.
        controls: What NCCL can be told, as `find_settings` takes it.
        budget: How often to compile, for how long, and how much memory to take.
        deterministic: Leaves out what may change the rounding of sums.
        compare_recipes: Compiles what others recommend, too, beyond the budget.
        compiler_options: XLA options, as `lowered.compile` takes them.
        calibration: Corrections to the model from your own measurements.
        name: What to call the step; by default its own name.
        description: What it is, in a line.
        progress: Is told what is being done.
        compiler: Whose processes and store to use; by default new processes, which
            end with the planning, and the usual store of compiled steps.
        **kwargs: The step's keyword arguments.

    Raises:
        LeverError: No such lever.
        LagomError: As `find_settings` raises it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> plan = make_plan(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
        >>> plan.levers, plan.settings
        ((), ())
    """
    planner = Planner(
        step,
        *args,
        cluster=cluster,
        compiler_options=compiler_options,
        calibration=calibration,
        name=name,
        description=description,
        compiler=compiler,
        **kwargs,
    )
    return planner.plan(
        levers=levers,
        controls=controls,
        budget=budget,
        deterministic=deterministic,
        compare_recipes=compare_recipes,
        progress=progress,
    )


def _useless(levers: Sequence[str]) -> Iterator[str]:
    if "streams" in levers and "order" not in levers:
        yield "a second stream is of use in another order only: streams need order"


def _over(limit: int, first: Trial) -> Iterator[str]:
    peak = first.peak_bytes
    if peak is not None and peak > limit:
        yield (
            f"the step as it is takes {in_bytes(peak)} of memory, more than the "
            f"{in_bytes(limit)} that it may (--memory-fraction): no candidate was "
            "allowed to take more than the step as it is"
        )


def _search(
    sweep: Sweep,
    judge: Judge,
    first: Trial,
    levers: Sequence[str],
    pins: Iterable[Pin],
    jaxlib: str,
    deterministic: bool,
    compiles: int,
) -> Trial:
    best = first
    pinned = {pin.name for pin in pins}
    costs, orders = "costs" in levers and COSTS not in pinned, "order" in levers
    if "options" in levers:

        def derive(view: View) -> tuple[Idea, ...]:
            return ideas(
                view.program,
                view.timeline,
                judge.seconds,
                jaxlib=jaxlib,
                pinned=pinned,
                deterministic=deterministic,
                reorders=orders,
            )

        reserve = reserved(compiles, costs=costs, orders=orders)
        best = sweep.improve(best, derive, reserve)
    if costs:
        best = sweep.with_costs(best, reserve=int(orders))
    return sweep.in_order(best)


def reserved(compiles: int, *, costs: bool, orders: bool) -> int:
    """The compiles of a budget that options must leave to costs and order.

    An order comes first, since it gives more than costs or any options in a single
    compile; then options; costs are for budgets that have room for all three.

    Args:
        compiles: The budget, with the program as it is.
        costs: Whether our costs may be used.
        orders: Whether another order may be used.

    Example:
        >>> [reserved(n, costs=True, orders=True) for n in range(1, 6)]
        [1, 1, 1, 2, 2]
        >>> [reserved(n, costs=True, orders=False) for n in range(1, 6)]
        [0, 0, 1, 1, 1]
    """
    # The program as it is, options, and the order.
    room = compiles - 2 - int(orders)
    return int(orders) + int(costs and room > 0)


def _pins(given: Mapping[str, Any], lowered: LoweredStep) -> tuple[Pin, ...]:
    """All that the user has set, wherever."""
    return pinned_here({**given, **lowered.compiler_options})


def _recipes(jaxlib: str, pins: Iterable[Pin]) -> Iterator[Asked]:
    """What others recommend, as far as compiler options can say it."""
    pinned = {pin.name for pin in pins}
    for recipe in recipes():
        options = {
            name: print_option(known()[name], value)
            for name, value in recipe.for_version(jaxlib).items()
            if "compiler_options" in known()[name].routes and name not in pinned
        }
        if options:
            yield Asked(title=f"recipe {recipe.name}", given=tuple(options.items()))
