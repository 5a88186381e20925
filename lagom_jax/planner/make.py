"""From a training step to a plan for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.measurements import Calibration
from lagom_jax.options import bound_of
from lagom_jax.options.off_rings import off_rings
from lagom_jax.plan import HoldsFor, Plan, Refusal
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.plan.pinned import Pinned, stated
from lagom_jax.plan.transport import CTA_POLICY, CtaPolicy
from lagom_jax.planner.allowed import allowed
from lagom_jax.planner.assemble import assemble
from lagom_jax.planner.budget import Budget
from lagom_jax.planner.comparison import published
from lagom_jax.planner.decide import Taken, best_so_far
from lagom_jax.planner.judge import Judge
from lagom_jax.planner.process_share import hazards, needs_of, reasons, variables_of
from lagom_jax.planner.rewrites import with_rewrites
from lagom_jax.planner.stages import search
from lagom_jax.planner.sweep import Sweep
from lagom_jax.planner.trial import Trial
from lagom_jax.scheduled import Scheduled, cluster_named, scheduled_of
from lagom_jax.settings.controls import Controls, named
from lagom_jax.units import in_bytes
from xla_flags import OptionValue, Pin, pinned_here

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep, Compiler, LoweredStep

_MULTI_STREAMING: Final = "xla_gpu_experimental_enable_collective_multi_streaming"
_UNFINISHED: Final = "planning had not ended when this was written: the best so far"
LEVERS: Final = ("options", "transports", "costs", "order", "streams", "settings")
"""The levers of a plan: XLA's options, those of them that take collectives off the
rings (with a policy of the process), our costs as its profile, another order of
instructions and in it a second stream for collectives, NCCL's settings."""


class LeverError(LagomError, ValueError):
    """No such lever."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Candidates that were decided among, and what looked at them."""

    trials: tuple[Trial, ...]
    taken: Trial
    judge: Judge


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
        cautions: Sequence[str] = (),
        compiler: Compiler | None = None,
        **kwargs: Any,
    ) -> None:
        """Traces the step; see `make_plan` for the arguments."""
        # Here and not above, so that importing lagom_jax does not import jax.
        from lagom_jax.compile import lower, traced_for

        self.cluster = cluster_named(cluster)
        if isinstance(calibration, str | Path):
            calibration = Calibration.load(calibration)
        self._calibration = calibration
        with traced_for(self.cluster):
            self._lowered = lower(step, *args, **kwargs)
        self._given = dict(compiler_options or {})
        self._name, self._description = name or self._lowered.name, description
        self._cautions = (*cautions, *self._lowered.cautions)
        self.finished: Finished | None = None
        """The candidates of the last plan."""
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
        keep: Callable[[Plan], None] | None = None,
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
                keep,
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
        keep: Callable[[Plan], None] | None,
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
        policies: tuple[CtaPolicy, ...] = ("default",)
        if "transports" in levers and CTA_POLICY not in {pin.name for pin in pins}:
            policies = ("default", "zero")
        # Where XLA deals collectives out to streams, nobody can tell which is where.
        dealt = any(pin.name == _MULTI_STREAMING for pin in pins)
        judge = Judge(
            self.cluster,
            told,
            self._calibration,
            streams="streams" in levers and not dealt,
            policies=policies,
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
        refusals: tuple[Refusal, ...] = ()
        if "transports" in levers:
            refusals = off_rings(
                first.view.timeline, judge.model, jaxlib=versions["jaxlib"]
            ).refusals

        def plan_of(decision: Taken, *more: str) -> Plan:
            best = decision.trial
            assert best.view is not None
            assert first.view is not None
            model = judge.model.with_policy(best.view.policy)
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
                default=decision.default,
                uncertainty=decision.uncertainty,
                bound=bound_of(first.view.timeline),
                memory_limit=sweep.memory_limit,
                controls=told.stated(),
                compiles=sweep.compiles,
                seconds=sweep.seconds,
                notes=(
                    *more,
                    *self._cautions,
                    *_over(limit, first),
                    *_useless(levers),
                    *reasons(first.view, best.view, model),
                    *hazards(best.asked.options),
                    *decision.notes,
                ),
                variables=variables_of(
                    best.view,
                    self.cluster.gpu.memory_bytes,
                    model.constants.transports.pool_fraction,
                ),
                needs=needs_of(best.view, model),
                refusals=refusals,
            )

        if keep is not None:
            keeping = keep

            def keep_best(_: Trial) -> None:
                keeping(plan_of(best_so_far(sweep.trials, judge), _UNFINISHED))

            keep_best(first)
            sweep.on_trial = keep_best
        if first.view.tuning.before.communication_seconds > 0.0:
            search(
                *(sweep, judge, first, levers, pins),
                *(versions["jaxlib"], deterministic, budget.compiles),
            )
        decision = sweep.decided()
        self.finished = Finished(tuple(sweep.trials), decision.trial, judge)
        if compare_recipes:
            sweep.compare(published(versions["jaxlib"], pins), first)
        return plan_of(decision)

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
    _, plan = plan_step(
        step,
        *args,
        cluster=cluster,
        levers=levers,
        controls=controls,
        budget=budget,
        deterministic=deterministic,
        compare_recipes=compare_recipes,
        compiler_options=compiler_options,
        calibration=calibration,
        name=name,
        description=description,
        cautions=cautions,
        progress=progress,
        keep=keep,
        compiler=compiler,
        rewrite=rewrite,
        **kwargs,
    )
    return plan


def plan_step(
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
    cautions: Sequence[str] = (),
    progress: Callable[[str], None] = lambda what: None,
    keep: Callable[[Plan], None] | None = None,
    compiler: Compiler | None = None,
    rewrite: bool = False,
    **kwargs: Any,
) -> tuple[Planner, Plan]:
    """As `make_plan`, with the planner of the program that the plan is for."""

    def planner_of(step: Callable[..., Any]) -> Planner:
        return Planner(
            step,
            *args,
            cluster=cluster,
            compiler_options=compiler_options,
            calibration=calibration,
            name=name or getattr(step, "__name__", ""),
            description=description,
            cautions=cautions,
            compiler=compiler,
            **kwargs,
        )

    def planned(planner: Planner, budget: Budget, *, compare: bool = False) -> Plan:
        return planner.plan(
            levers=levers,
            controls=controls,
            budget=budget,
            deterministic=deterministic,
            compare_recipes=compare,
            progress=progress,
            # A plan for slices is of no use before it says that it is for them.
            keep=keep if planner is written else None,
        )

    budget = budget or Budget()
    written = planner_of(step)
    plan = planned(written, budget, compare=compare_recipes)
    if not rewrite or plan.evidence.default.communication_seconds <= 0.0:
        return written, plan

    def rewritten(slices: int, whole_sums: bool) -> tuple[Planner, Sequence[str]]:
        from lagom_jax.decompose import sliced

        cut = sliced(step, slices=slices, whole_sums=whole_sums)
        planner = planner_of(cut)
        return planner, [site.line for site in cut.sites]

    return with_rewrites(
        (written, plan),
        rewritten,
        planned,
        budget,
        progress,
        deterministic=deterministic,
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


def _pins(given: Mapping[str, Any], lowered: LoweredStep) -> tuple[Pin, ...]:
    """All that the user has set, wherever."""
    return pinned_here({**given, **lowered.compiler_options})
