"""From a training step to a plan for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.stated_kernels import StatedKernel, kernels_of
from lagom_jax.measurements import Calibration
from lagom_jax.plan import Plan
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.plan.pinned import Pinned, stated
from lagom_jax.planner.budget import Budget
from lagom_jax.planner.request import LEVERS, Request
from lagom_jax.planner.rewrite_ways import RewriteWay, Rewritten, ways_of
from lagom_jax.planner.rewrites import with_rewrites
from lagom_jax.planner.run import Finished, KnownStep, PlannerRun
from lagom_jax.scheduled import Scheduled, cluster_named, scheduled_of
from lagom_jax.settings.controls import Controls
from xla_flags import OptionValue, Pin, pinned_here

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep, Compiler, LoweredStep


class Planner:
    """A step on a cluster, for which plans can be made.

    What was compiled once is kept, so that plans with different levers share it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> planner = Planner(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
        >>> planner.plan(Request(budget=Budget(compiles=2))).levers
        ()
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *args: Any,
        cluster: str | Cluster,
        compiler_options: Mapping[str, Any] | None = None,
        calibration: Calibration | str | Path | None = None,
        kernels: str | Path | Sequence[StatedKernel] = (),
        name: str = "",
        description: str = "",
        cautions: Sequence[str] = (),
        compiler: Compiler | None = None,
        search_anew: bool = False,
        **kwargs: Any,
    ) -> None:
        """Traces the step.

        Args:
            step: The training step; it and the others as for `make_plan`.
            *args: Likewise.
            cluster: Likewise.
            compiler_options: Likewise.
            calibration: Likewise.
            kernels: Likewise.
            name: Likewise.
            description: Likewise.
            cautions: Likewise.
            compiler: Likewise.
            search_anew: Takes no orders from the store, and leaves none there, so that
                the time of a search can be taken.
            **kwargs: Likewise.
        """
        # Here and not above, so that importing lagom_jax does not import jax.
        from lagom_jax.compile import lower, traced_for

        self.cluster = cluster_named(cluster)
        if isinstance(calibration, str | Path):
            calibration = Calibration.load(calibration)
        self._calibration, self.kernels = calibration, kernels_of(kernels)
        with traced_for(self.cluster):
            self._lowered = lower(step, *args, **kwargs)
        self._given = dict(compiler_options or {})
        self._name, self._description = name or self._lowered.name, description
        self._cautions = (*cautions, *self._lowered.cautions)
        self.finished: Finished | None = None
        """The candidates of the last plan."""
        self._compiled: dict[str, CompiledStep] = {}
        self._compiler, self._search_anew = compiler, search_anew

    @property
    def lowered(self) -> LoweredStep:
        """The step as it was lowered."""
        return self._lowered

    @property
    def fingerprint(self) -> str:
        """The step's, as `LoweredStep` has it."""
        return self._lowered.fingerprint

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The user's own settings, wherever they were made."""
        return pinned_here({**self._given, **self._lowered.compiler_options})

    @property
    def pinned(self) -> tuple[Pinned, ...]:
        """The user's own settings, as a plan states them."""
        return stated(self.pins)

    def plan(self, request: Request | None = None) -> Plan:
        """Makes a plan, as `make_plan` does.

        Args:
            request: All that the plan may use; by default everything.

        Raises:
            LagomError: The step cannot be compiled as it is.
        """
        from lagom_jax.compile import Compiler

        request, caution = without_impossible(request or Request())
        step = KnownStep(
            self._name,
            self.fingerprint,
            self.cluster,
            self.pins,
            self._calibration,
            (*self._cautions, *caution),
        )
        with contextlib.ExitStack() as stack:
            compiler = self._compiler or stack.enter_context(Compiler())
            compiles = functools.partial(self.compile, compiler=compiler)
            store = None if self._search_anew else compiler.store
            run = PlannerRun(step, compiles, request, store)
            plan, self.finished = run.plan()
        return plan

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
            options: XLA options, in addition to those given for the step.
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
        return scheduled.stating(self.kernels), compiled


def without_impossible(
    request: Request, jax: str | None = None
) -> tuple[Request, tuple[str, ...]]:
    """A request without levers that a version of jax does not have, and a note on it.

    Args:
        request: All that a plan may use.
        jax: The version; by default the one that is installed.

    Example:
        >>> less, (note,) = without_impossible(Request(), "0.11.2")
        >>> "order" in less.levers
        False
        >>> without_impossible(Request(), "0.12.0.1") == (Request(), ())
        True
    """
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile._internal import jax_version
    from lagom_jax.compile.toolchain import WITH_PASSES, takes_passes

    jax = jax or jax_version()
    if "order" not in request.levers or takes_passes(jax):
        return request, ()
    levers = tuple(lever for lever in request.levers if lever != "order")
    note = f"no order was looked for: jax {jax} takes none; install {WITH_PASSES}"
    return dataclasses.replace(request, levers=levers), (note,)


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
    kernels: str | Path | Sequence[StatedKernel] = (),
    name: str = "",
    description: str = "",
    cautions: Sequence[str] = (),
    progress: Callable[[str], None] = lambda what: None,
    keep: Callable[[Plan], None] | None = None,
    compiler: Compiler | None = None,
    rewrite: bool = False,
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
        controls: The parts of a setting that can be set, as for `find_settings`.
        budget: How often to compile, for how long, and how much memory to take.
        deterministic: Leaves out what may change the rounding of sums.
        compare_recipes: Compiles what others recommend, too, beyond the budget.
        compiler_options: XLA options, as `lowered.compile` takes them.
        calibration: Corrections to the model from your own measurements.
        kernels: The time or the work of kernels that nothing else is known of, or the
            file with them, as `analyze` takes them.
        name: What to call the step; by default its own name.
        description: What it is, in a line.
        cautions: Reasons, known already, why it may be another program than the one
            that runs on the cluster.
        progress: Called with a line for each thing that is done.
        keep: Called with the best plan so far after each candidate, so that planning
            that is ended leaves something.
        compiler: Whose processes and store to use; by default new processes, which
            end with the planning, and the usual store of compiled steps.
        rewrite: Tries the step with its collectives and the matmuls next to them in
            slices as well; the plan names the transformation that it is for.
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
    request = Request(
        (levers,) if isinstance(levers, str) else tuple(levers),
        controls,
        budget or Budget(),
        deterministic,
        compare_recipes,
        progress,
        keep,
    )

    def planner_of(step: Callable[..., Any]) -> Planner:
        return Planner(
            step,
            *args,
            cluster=cluster,
            compiler_options=compiler_options,
            calibration=calibration,
            kernels=kernels,
            name=name or getattr(step, "__name__", ""),
            description=description,
            cautions=cautions,
            compiler=compiler,
            **kwargs,
        )

    return plan_step(planner_of, step, request, rewrite=rewrite)[1]


def plan_step(
    planner_of: Callable[[Callable[..., Any]], Planner],
    step: Callable[..., Any],
    request: Request,
    *,
    rewrite: bool = False,
) -> tuple[Planner, Plan]:
    """Makes a plan, for a rewritten step where that is better.

    Args:
        planner_of: Makes a planner of a form of the step.
        step: The step as it is written.
        request: What the plan may use.
        rewrite: Tries the step in slices as well.

    Returns:
        The planner of the program that the plan is for, and the plan.
    """
    written = planner_of(step)
    plan = written.plan(request)
    if not rewrite or plan.evidence.default.communication_seconds <= 0.0:
        return written, plan

    def rewritten(way: RewriteWay) -> Rewritten:
        cut = way.of(step)
        planner = planner_of(cut)
        return Rewritten(planner, [site.line for site in cut.sites], cut.left)

    ways = ways_of(written.finished, deterministic=request.deterministic)
    return with_rewrites((written, plan), rewritten, request, ways)
