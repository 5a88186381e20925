"""Workloads: a step that can be built in several sizes, and the best of their plans.

Sizes and options are searched together. Each configuration has a lower bound before it
is compiled; those that may still win are compiled as they are, which gives a sharper
bound; and those that may win even then are planned with the whole budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.plan import Plan
from lagom_jax.planner.budget import Budget
from lagom_jax.planner.make import Planner
from lagom_jax.planner.pace import Pace
from lagom_jax.planner.request import Request
from lagom_jax.units import in_bytes

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler

Sizes = TypeVar("Sizes")
BuiltStep: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A step and its arguments."""
_PRUNED: Final = "its bound is above the best step: not compiled"


@dataclasses.dataclass(frozen=True, slots=True)
class Workload(Generic[Sizes]):
    """A training step that a factory builds for sizes, on a cluster."""

    factory: Callable[[Sizes], BuiltStep]
    """Raises LagomError where it cannot build these sizes."""
    cluster: Cluster
    bound: Callable[[Sizes], float] | None = None
    """Seconds that no step of these sizes can be shorter than, found without a compile;
    None where nothing is known of it but its arguments."""


@dataclasses.dataclass(frozen=True, slots=True)
class SizedPlan(Generic[Sizes]):
    """Sizes with the plan of their step, or with the reason for which there is none."""

    sizes: Sizes
    bound_seconds: float
    """A time below the step, as it is and with all communication hidden."""
    plan: Plan | None = None
    refused: str = ""
    """The reason not to have built or compiled it; empty if it was."""

    @property
    def step_seconds(self) -> float | None:
        """Replayed with its plan; None if it was dropped or refused."""
        return self.plan.evidence.tuned.step_seconds if self.plan else None

    @property
    def peak_bytes(self) -> int | None:
        """Memory of the step with its plan, as XLA counts it."""
        return self.plan.evidence.tuned_peak if self.plan else None


def plan_workload(
    workload: Workload[Sizes],
    every: Iterable[Sizes],
    request: Request | None = None,
    *,
    prune: bool = True,
    compiler: Compiler | None = None,
) -> tuple[SizedPlan[Sizes], ...]:
    """The plans of a workload in several sizes, the fastest first.

    Args:
        workload: The step.
        every: Sizes to choose from.
        request: All that each plan may use.
        prune: Leaves out what a bound says cannot be the best.
        compiler: Whose processes and store to use.

    Returns:
        All sizes: those with a plan by their steps, then those without.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def build(width):
        ...     x = jax.ShapeDtypeStruct((width, width), "bfloat16")
        ...     return (lambda x: jnp.tanh(x @ x)), (x,)
        >>> workload = Workload(build, Cluster.parse("h100:1x1"))
        >>> request = Request(budget=Budget(compiles=1))
        >>> found = plan_workload(workload, [256, 65536], request)
        >>> [(one.sizes, one.plan is not None) for one in found]
        [(256, True), (65536, False)]
    """
    from lagom_jax.compile import Compiler

    with contextlib.ExitStack() as stack:
        search = _Search(
            workload,
            request or Request(),
            prune,
            compiler or stack.enter_context(Compiler()),
        )
        return search.run(every)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Configuration(Generic[Sizes]):
    sizes: Sizes
    built: BuiltStep
    held_bytes: int
    bound_seconds: float


class _Search(Generic[Sizes]):
    """One search over sizes and options."""

    def __init__(
        self,
        workload: Workload[Sizes],
        request: Request,
        prune: bool,
        compiler: Compiler,
    ) -> None:
        self._workload, self._request, self._compiler = workload, request, compiler
        self._prune = prune
        self._fastest = float("inf")

    def run(self, every: Iterable[Sizes]) -> tuple[SizedPlan[Sizes], ...]:
        refused, there = self._bounded(every)
        found = list(refused)
        planned: list[tuple[SizedPlan[Sizes], Planner]] = []
        pace = Pace(len(there))
        for place, one in enumerate(there):
            self._say("compiling", place, pace)
            answer, planner = self._as_it_is(one)
            pace.ended()
            if planner is None:
                found.append(answer)
            else:
                planned.append((answer, planner))
        planned.sort(key=lambda pair: pair[0].step_seconds or 0.0)
        pace = Pace(len(planned))
        for place, (answer, planner) in enumerate(planned):
            if self._request.budget.compiles > 1:
                self._say("planning", place, pace)
                answer = self._with_options(answer, planner)
                pace.ended()
            found.append(answer)
        found.sort(key=lambda one: (one.plan is None, one.step_seconds or 0.0))
        return tuple(found)

    def _bounded(
        self, every: Iterable[Sizes]
    ) -> tuple[list[SizedPlan[Sizes]], Sequence[_Configuration[Sizes]]]:
        """Those that cannot be built, and the others by their bounds."""
        # Here and not above: the core of the room works without jax.
        from lagom_jax.compile.tracing import bytes_on_a_device

        gpu = self._workload.cluster.gpu
        refused: list[SizedPlan[Sizes]] = []
        there: list[_Configuration[Sizes]] = []
        for sizes in every:
            try:
                built = self._workload.factory(sizes)
            except LagomError as error:
                refused.append(SizedPlan(sizes, 0.0, refused=str(error)))
                continue
            held = bytes_on_a_device(built[1])
            # A device reads its arguments once, whatever else it does.
            bound = held / gpu.memory_bytes_per_s
            if self._workload.bound is not None:
                bound = max(bound, self._workload.bound(sizes))
            there.append(_Configuration(sizes, built, held, bound))
        there.sort(key=lambda one: one.bound_seconds)
        return refused, there

    def _as_it_is(
        self, one: _Configuration[Sizes]
    ) -> tuple[SizedPlan[Sizes], Planner | None]:
        """The plan of a single compile, and the planner that made it."""
        budget = self._request.budget
        device = self._workload.cluster.gpu.memory_bytes
        why = ""
        if self._prune and one.held_bytes > budget.memory(device):
            why = "its arguments overflow memory: not compiled"
        elif self._prune and one.bound_seconds > self._fastest:
            why = _PRUNED
        if why:
            return SizedPlan(one.sizes, one.bound_seconds, refused=why), None
        step, arguments = one.built
        try:
            planner = Planner(
                step,
                *arguments,
                cluster=self._workload.cluster,
                compiler=self._compiler,
            )
            plan = planner.plan(self._asked(dataclasses.replace(budget, compiles=1)))
        except LagomError as error:
            return SizedPlan(one.sizes, one.bound_seconds, refused=str(error)), None
        bound = max(one.bound_seconds, plan.evidence.bound_seconds)
        peak, most = plan.evidence.tuned_peak, budget.memory(device)
        if peak is not None and peak > most:
            takes, may = in_bytes(peak), in_bytes(most)
            over = f"compiled it takes {takes} of memory, and may {may}"
            return SizedPlan(one.sizes, bound, refused=over), None
        answer = SizedPlan(one.sizes, bound, plan)
        self._note(answer)
        return answer, planner

    def _with_options(
        self, one: SizedPlan[Sizes], planner: Planner
    ) -> SizedPlan[Sizes]:
        """The plan with the whole budget, unless its bound is above the best."""
        if self._prune and one.bound_seconds > self._fastest:
            return one
        try:
            plan = planner.plan(self._asked(self._request.budget))
        except LagomError:
            # It is kept as it was compiled before.
            return one
        answer = dataclasses.replace(one, plan=plan)
        self._note(answer)
        return answer

    def _asked(self, budget: Budget) -> Request:
        return dataclasses.replace(self._request, budget=budget)

    def _note(self, one: SizedPlan[Sizes]) -> None:
        self._fastest = min(self._fastest, one.step_seconds or self._fastest)

    def _say(self, what: str, place: int, pace: Pace) -> None:
        words = f"{what} configuration {place + 1} of {pace.most}{pace.words}"
        self._request.progress(words)
