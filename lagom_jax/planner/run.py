"""One run of a planner: what may be used, the search, and the plan of the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.compile.store import Store
from lagom_jax.hlo.read import collection_paused
from lagom_jax.measurements import Calibration
from lagom_jax.options import bound_of
from lagom_jax.options.off_rings import off_rings
from lagom_jax.plan import HoldsFor, Plan, Refusal, Uncertainty
from lagom_jax.plan.pinned import stated
from lagom_jax.plan.transport import CTA_POLICY, CtaPolicy
from lagom_jax.planner.allowed import allowed
from lagom_jax.planner.assemble import assemble
from lagom_jax.planner.comparison import published
from lagom_jax.planner.decide import Taken, TimedWay, best_so_far
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.process_share import hazards, needs_of, reasons, variables_of
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.request import Request
from lagom_jax.planner.stages import search
from lagom_jax.planner.step_compiler import StepCompiler
from lagom_jax.planner.sweep import Sweep
from lagom_jax.planner.trial import Asked, Trial
from lagom_jax.settings.controls import Controls, named
from lagom_jax.units import in_bytes
from xla_flags import Pin

_MULTI_STREAMING: Final = "xla_gpu_experimental_enable_collective_multi_streaming"
_CUTS: Final = 8
"""Collectives to cut that a plan names."""
_UNFINISHED: Final = "planning had not ended when this was written: the best so far"


@dataclasses.dataclass(frozen=True, slots=True)
class KnownStep:
    """A traced step, as far as planning asks about it."""

    name: str
    fingerprint: str
    cluster: Cluster
    pins: tuple[Pin, ...]
    """The user's own settings."""
    calibration: Calibration | None = None
    cautions: tuple[str, ...] = ()
    """Reasons why it may be another program than the one on the cluster."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Candidates that were decided among, and what looked at them."""

    trials: tuple[Trial, ...]
    taken: Trial
    judge: Judge
    ways: tuple[TimedWay, ...]
    """The same with settings, and timed by all models; the program as it is first."""
    plan_of: Callable[[TimedWay], Plan]
    """Makes the plan that would have been made, had this one been taken."""
    scored: Scored | None
    """Times of the taken one."""


class PlannerRun:
    """A search for one plan."""

    def __init__(
        self,
        step: KnownStep,
        compiler: StepCompiler,
        request: Request,
        store: Store | None = None,
    ) -> None:
        """Sets it up; nothing is compiled yet.

        Args:
            step: The step to plan for.
            compiler: Compiles it.
            request: All that the plan may use.
            store: Where orders are that were found before; None for nowhere.
        """
        self._step, self._request, self._store = step, request, store
        self._pinned = {pin.name for pin in step.pins}
        self._controls = self._allowed_controls()
        self._judge = self._judge_of()
        self._limit = request.budget.memory(step.cluster.gpu.memory_bytes)
        self._sweep = Sweep(
            compiler,
            self._judge,
            request.budget,
            self._limit,
            orders="order" in request.levers,
            say=request.progress,
            not_behind=request.not_behind,
        )

    def plan(self) -> tuple[Plan, Finished]:
        """Compiles, looks and decides.

        Raises:
            LagomError: The step cannot be compiled as it is.
        """
        # What is read and worked out stays until the end.
        with collection_paused():
            return self._plan()

    def _plan(self) -> tuple[Plan, Finished]:
        sweep, request = self._sweep, self._request
        first = sweep.first(self._begin())
        view = _seen(first)
        jaxlib = view.scheduled.versions["jaxlib"]
        if request.keep is not None:
            self._keep_best(first)
            sweep.on_trial = lambda trial: self._keep_best(first)
        if view.tuning.before.communication_seconds > 0.0:
            search(
                *(sweep, self._judge, first, request.levers, self._step.pins),
                *(jaxlib, request.deterministic, request.budget.compiles),
            )
        decision = sweep.decided()
        request.progress("writing the plan")
        finished = Finished(
            tuple(sweep.trials),
            decision.trial,
            self._judge,
            decision.ways,
            lambda way: self._plan_of(_as_taken(way, decision), first),
            decision.scored,
        )
        if request.compare_recipes:
            sweep.compare(published(jaxlib, self._step.pins), first)
        return self._plan_of(decision, first), finished

    def _begin(self) -> Asked:
        """Options of all candidates, as far as the user has not decided them."""
        return Asked(
            tuple(
                idea
                for idea in self._request.begin_with
                if self._pinned.isdisjoint(idea.options)
            )
        )

    def _allowed_controls(self) -> Controls:
        asked = self._request.controls
        return allowed(
            named(asked) if isinstance(asked, str) else asked,
            pinned=self._pinned,
            deterministic=self._request.deterministic,
            settings="settings" in self._request.levers,
        )

    def _judge_of(self) -> Judge:
        levers = self._request.levers
        policies: tuple[CtaPolicy, ...] = ("default",)
        if "transports" in levers and CTA_POLICY not in self._pinned:
            policies = ("default", "zero")
        # Where XLA deals collectives out to streams, nobody can tell which is where.
        dealt = _MULTI_STREAMING in self._pinned
        return Judge(
            self._step.cluster,
            self._controls,
            self._step.calibration,
            streams="streams" in levers and not dealt,
            policies=policies,
            store=self._store,
        )

    def _keep_best(self, first: Trial) -> None:
        assert self._request.keep is not None
        best = best_so_far(self._sweep.trials, self._judge)
        self._request.keep(self._plan_of(best, first, _UNFINISHED))

    def _plan_of(self, decision: Taken, first: Trial, *more: str) -> Plan:
        best, sweep = decision.trial, self._sweep
        before, after = _seen(first), _seen(best)
        model = self._judge.model.with_policy(after.policy)
        return assemble(
            sweep.trials,
            first,
            best,
            holds_for=self._holds_for(best, before),
            default=decision.default,
            uncertainty=decision.uncertainty,
            bound=bound_of(before.timeline),
            memory_limit=sweep.memory_limit,
            controls=self._controls.stated(),
            compiles=sweep.compiles,
            seconds=sweep.seconds,
            notes=(
                *more,
                *self._step.cautions,
                *self._limits(first),
                *reasons(before, after, model),
                *hazards(best.asked.options),
                *decision.notes,
            ),
            variables=variables_of(
                after,
                self._step.cluster.gpu.memory_bytes,
                model.constants.transports.pool_fraction,
            ),
            needs=needs_of(after, model),
            refusals=self._refusals(before),
            # Of what is not the last word, nobody asks what else could be done.
            cuts=() if more else tuple(self._judge.cuts(after))[:_CUTS],
        )

    def _holds_for(self, best: Trial, before: View) -> HoldsFor:
        step = self._step
        return HoldsFor(
            program=step.name,
            fingerprint=step.fingerprint,
            schedule=best.schedule if best.ordered else "",
            cluster=step.cluster.name,
            devices=step.cluster.devices,
            versions=tuple(sorted(before.scheduled.versions.items())),
            pinned=stated(step.pins),
        )

    def _refusals(self, before: View) -> tuple[Refusal, ...]:
        if "transports" not in self._request.levers:
            return ()
        jaxlib = before.scheduled.versions["jaxlib"]
        return off_rings(before.timeline, self._judge.model, jaxlib=jaxlib).refusals

    def _limits(self, first: Trial) -> Iterator[str]:
        peak = first.peak_bytes
        if peak is not None and peak > self._limit:
            yield (
                f"the step as it is takes {in_bytes(peak)} of memory, more than the "
                f"{in_bytes(self._limit)} that it may (--memory-fraction): no "
                "candidate was allowed to take more than the step as it is"
            )
        levers = self._request.levers
        if "streams" in levers and "order" not in levers:
            yield "a second stream is of use in another order only: streams need order"


def _as_taken(way: TimedWay, decision: Taken) -> Taken:
    untouched = decision.ways[0].scored
    return Taken(
        dataclasses.replace(way.trial, view=way.view),
        decision.default,
        Uncertainty.of(
            untouched.seconds,
            way.scored.seconds,
            untouched.by_model,
            way.scored.by_model,
        ),
        (),
    )


def _seen(trial: Trial) -> View:
    assert trial.view is not None
    return trial.view
