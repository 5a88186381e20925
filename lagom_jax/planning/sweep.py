"""Compiles candidates, looks at each, and keeps the best.

The order of things: the program as it is; then all ideas at once, and all about loops
at once, because most of them pay only together (pipelining brings copies that double
buffering removes); then, from
the best so far, one idea more or one less, those first that could give the most; then
our costs as a profile for the winner; and in the end another order of its instructions.
Each is judged by the replay with settings of its own, and in the order that Lagom's own
scheduler would give it where that may be used: an idea that only makes room for a
better schedule shows its worth only there.

With controls that tell more apart than others, all that is decided as if with the
coarsest of them; then what was compiled is looked at again, and the winner's order is
searched for, with all that can be set.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from lagom_jax.errors import CompileTimeoutError, LagomError
from lagom_jax.hlo import read_module
from lagom_jax.levers import Idea, cost_profile
from lagom_jax.ordering.streams import meet_and_clash
from lagom_jax.plan.order import APPLIED, ScheduleEdit
from lagom_jax.planning.budget import Budget
from lagom_jax.planning.judge import Judge, View
from lagom_jax.planning.trial import Asked, Trial, edit_of
from lagom_jax.scheduled import Scheduled
from lagom_jax.units import in_bytes
from xla_flags import OptionValue, known

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep

_BETTER = 5e-4
"""Less than this share of the step is no gain."""
_GLANCE = 0.3
"""The share of the evaluations that goes into the order of a mere candidate."""
_AT_A_TIME = 2
"""Candidates between two decisions, on any machine, so that all decide alike."""


_MENTIONED = 4
"""Candidates that are listed although nobody tried them."""


class Compiler(Protocol):
    """Compiles the step that is planned for."""

    def __call__(
        self,
        options: dict[str, OptionValue],
        order: ScheduleEdit | None,
        *,
        capture: bool,
    ) -> tuple[Scheduled, CompiledStep]:
        """Compiles it with options, and in another order than XLA's."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """What the compiler answered, before anybody has looked at it."""

    asked: Asked
    order: ScheduleEdit | None
    seconds: float
    scheduled: Scheduled | None = None
    compiled: CompiledStep | None = None
    captured: bytes = b""
    error: LagomError | None = None


class Sweep:
    """The candidates of one planning."""

    def __init__(
        self,
        compiler: Compiler,
        judge: Judge,
        budget: Budget,
        memory_limit: int,
        *,
        orders: bool,
        say: Callable[[str], None],
    ) -> None:
        """Sets it up.

        Args:
            compiler: Compiles the step.
            judge: Looks at what comes out.
            budget: When to stop.
            memory_limit: Bytes on a device that no candidate may exceed.
            orders: Whether another order of instructions may be used.
            say: Is told what is being done.
        """
        self._compiler = compiler
        # What is compiled is decided as coarser controls would: finer ones then only
        # add to what those find, instead of leading to another program.
        self._judge, self._finest = judge.coarsest(), judge
        self._budget = budget
        self.memory_limit = memory_limit
        self._orders = orders
        self._say = say
        self._begun = time.monotonic()
        self.trials: list[Trial] = []
        self.compiles = 0

    @property
    def seconds(self) -> float:
        """Since it was set up."""
        return time.monotonic() - self._begun

    def first(self) -> Trial:
        """The program as it is; what is wrong with it is the user's to know.

        Raises:
            LagomError: It cannot be compiled.
        """
        self.compiles += 1
        made = self._attempt(Asked(), capture=self._orders)
        if made.compiled is not None:
            # A plan that takes no more than the program as it is does no harm.
            peak = made.compiled.memory.peak_bytes or 0
            self.memory_limit = max(self.memory_limit, peak)
        return self._kept(self._seen(made))

    def improve(
        self,
        first: Trial,
        derive: Callable[[View], Sequence[Idea]],
        reserve: int,
    ) -> Trial:
        """Tries ideas together and one by one.

        Args:
            first: The program as it is.
            derive: Ideas for a program, those that could give the most first.
            reserve: Compiles that are kept for what comes after.
        """
        best = first
        assert first.view is not None
        queue = _together(derive(first.view))
        asked_for = {_key(first.asked)}
        while True:
            assert best.view is not None
            queue += _neighbours(best, first, derive(best.view), self._idle())
            chosen: list[Asked] = []
            for asked in queue:
                if _key(asked) not in asked_for and len(chosen) < _AT_A_TIME:
                    asked_for.add(_key(asked))
                    chosen.append(asked)
            room = self._budget.compiles - reserve - self.compiles
            if not chosen or room <= 0 or self._out_of_time():
                self._not_tried(queue)
                return best
            queue = []
            for trial in self._compile(chosen[:room], best):
                if trial.usable and _gains(trial, best):
                    best = trial
                elif trial.usable and _simpler(trial, best):
                    why = f"the same program as {best.label}, with fewer options"
                    best = self._restated(trial, why)

    def with_costs(self, best: Trial, reserve: int = 0) -> Trial:
        """Tries our costs as a profile for the best so far.

        Args:
            best: The best so far.
            reserve: Compiles that are kept for what comes after.
        """
        room = self._budget.compiles - reserve - self.compiles
        if room <= 0 or self._out_of_time():
            return best
        assert best.view is not None
        costs = cost_profile(best.view.timeline)
        asked = best.asked.with_costs(costs, best.label)
        (trial,) = self._compile([asked], best)
        return trial if trial.usable and _gains(trial, best) else best

    def in_order(self, best: Trial) -> Trial:
        """Compiles the best so far in the order that Lagom's own scheduler finds.

        What was the best for an order that cannot be had gives way to the best that
        can: nothing counts in the end but what was compiled.
        """
        best = self._refined(best)
        ordered = self._in_order(best)
        chosen = ordered or best
        plain = [t for t in self.trials if t.usable and not t.ordered]
        least = min(plain, key=_as_compiled)
        if _as_compiled(chosen) * (1 - _BETTER) <= _as_compiled(least):
            return chosen
        why = f"the best as it was compiled: {best.label} had only promised more"
        return self._restated(least, why)

    def _refined(self, best: Trial) -> Trial:
        """Looks again at what was compiled, with all that can be set."""
        if self._judge is not self._finest:
            self._judge = self._finest
            for number, trial in enumerate(self.trials):
                if trial.view is not None:
                    view = self._judge.look(trial.view.scheduled)
                    self.trials[number] = dataclasses.replace(trial, view=view)
        return self.trials[best.number]

    def _restated(self, trial: Trial, why: str) -> Trial:
        """A trial that is taken after all."""
        trial = dataclasses.replace(trial, status="ok", reason=why)
        self.trials[trial.number] = trial
        return trial

    def _in_order(self, best: Trial) -> Trial | None:
        room = self.compiles < self._budget.compiles and not self._out_of_time()
        if not self._orders or not best.captured or not room:
            return None
        self._say("looking for a better order of its instructions")
        assert best.view is not None
        ordering = self._judge.order(
            read_module(best.captured),
            spare_bytes=self._spare(best.view),
            evaluations=self._budget.evaluations,
        )
        if not (ordering.sequences or ordering.aside):
            return None
        edit = edit_of(best.schedule, ordering)
        asked = dataclasses.replace(best.asked, title=f"{best.label} in another order")
        self.compiles += 1
        made = self._looked_at(self._attempt(asked, edit, capture=True))
        # Beside what was compiled, not beside what an order had promised.
        plain = dataclasses.replace(best, ordering=None)
        ordered = self._kept(self._told_apart(made, plain))
        if ordered.usable and _gains(ordered, plain):
            return dataclasses.replace(ordered, ordering=ordering)
        return None

    def compare(self, others: Iterable[Asked], plain: Trial) -> None:
        """Compiles what others recommend, beyond the budget of the search.

        Args:
            others: What they recommend.
            plain: The program as it is, with which they are compared as their authors
                would: everything left to NCCL, in XLA's own order.
        """
        for trial in self._run(list(others), orders=False):
            self._kept(_as_published(trial, plain))

    def _compile(self, chosen: list[Asked], best: Trial) -> list[Trial]:
        return [
            self._kept(self._told_apart(trial, best))
            for trial in self._run(chosen, orders=self._orders)
        ]

    def _kept(self, trial: Trial) -> Trial:
        trial = dataclasses.replace(trial, number=len(self.trials))
        self.trials.append(trial)
        return trial

    def _run(self, chosen: list[Asked], *, orders: bool) -> list[Trial]:
        """Compiles and looks; where orders may be used, also for a better one."""
        self.compiles += len(chosen)

        def attempt(asked: Asked) -> _Made:
            return self._attempt(asked, capture=orders)

        with concurrent.futures.ThreadPoolExecutor(self._budget.workers) as pool:
            # Each compile is a process of its own; a thread only waits for it, and what
            # is there is looked at meanwhile.
            return [self._looked_at(one) for one in pool.map(attempt, chosen)]

    def _attempt(
        self, asked: Asked, order: ScheduleEdit | None = None, *, capture: bool = False
    ) -> _Made:
        self._say(f"compiling {asked.name}")
        begun = time.monotonic()
        try:
            scheduled, compiled = self._compiler(asked.options, order, capture=capture)
        except LagomError as error:
            return _Made(asked, order, time.monotonic() - begun, error=error)
        taken = compiled.start_seconds + compiled.compile_seconds
        # The compiler may have it from another planning, which asked for it.
        looked_for = capture and order is None
        captured = (compiled.scheduled_bytes or b"") if looked_for else b""
        return _Made(asked, order, taken, scheduled, compiled, captured)

    def _looked_at(self, made: _Made) -> Trial:
        try:
            return self._seen(made)
        except LagomError as error:
            late = isinstance(error, CompileTimeoutError)
            return Trial(
                made.asked,
                "timed out" if late else "failed",
                str(error).partition("\n")[0],
                made.seconds,
                ordered=made.order is not None,
            )

    def _seen(self, made: _Made) -> Trial:
        if made.error is not None:
            raise made.error
        asked, ordered = made.asked, made.order is not None
        assert made.scheduled is not None
        assert made.compiled is not None
        view = self._judge.look(made.scheduled)
        trial = Trial(
            asked,
            "ok",
            "",
            made.seconds,
            view,
            schedule=made.compiled.schedule_fingerprint or "",
            captured=made.captured,
            ordered=ordered,
        )
        peak = trial.peak_bytes
        if peak is not None and peak > self.memory_limit:
            reason = f"takes {in_bytes(peak)}, and may {in_bytes(self.memory_limit)}"
            return dataclasses.replace(trial, status="over memory", reason=reason)
        if ordered and made.compiled.order_outcome != APPLIED:
            reason = f"the order was not taken: {made.compiled.order_outcome}"
            return dataclasses.replace(trial, status="failed", reason=reason)
        if ordered and meet_and_clash(view.program):
            reason = "collectives with devices in common meet on different streams"
            return dataclasses.replace(trial, status="failed", reason=reason)
        if trial.captured:
            ordering = self._judge.order(
                read_module(trial.captured),
                spare_bytes=self._spare(view),
                evaluations=int(_GLANCE * self._budget.evaluations),
            )
            trial = dataclasses.replace(trial, ordering=ordering)
        return trial

    def _spare(self, view: View) -> int | None:
        peak = view.scheduled.peak_memory_bytes
        return None if peak is None else max(0, self.memory_limit - peak)

    def _told_apart(self, trial: Trial, best: Trial) -> Trial:
        """A trial with a status that says what it is beside the best before it."""
        if trial.status != "ok" or trial.view is None or best.view is None:
            return trial
        if trial.view.structure.digest == best.view.structure.digest:
            reason = f"the same program as {best.label}"
            return dataclasses.replace(trial, status="no effect", reason=reason)
        if not _gains(trial, best):
            change = trial.seconds / best.seconds - 1
            reason = (
                f"{change:+.1%} beside {best.label}{_each(trial)}"
                if abs(change) >= _BETTER
                else f"as fast as {best.label}"
            )
            return dataclasses.replace(trial, status="slower", reason=reason)
        return trial

    def _not_tried(self, queue: Iterable[Asked]) -> None:
        why = "out of time" if self._out_of_time() else "out of compiles"
        tried = {_key(trial.asked) for trial in self.trials}
        listed = set(tried)
        for asked in queue:
            if _key(asked) not in listed and len(listed) < len(tried) + _MENTIONED:
                listed.add(_key(asked))
                self._kept(Trial(asked, "not tried", why, 0.0))

    def _idle(self) -> set[object]:
        """What ideas ask for that changed nothing, beside some others."""
        digests = {
            trial.asked.keys: trial.view.structure.digest
            for trial in self.trials
            if trial.view is not None and trial.asked.costs is None
        }
        return {
            key
            for keys, digest in digests.items()
            for key in keys
            if digests.get(keys - {key}) == digest
        }

    def _out_of_time(self) -> bool:
        return self.seconds > self._budget.seconds


def _together(ideas: Sequence[Idea]) -> list[Asked]:
    """All ideas at once, and all about loops at once.

    The more promising rules the other out.
    """
    first = [idea for idea in reversed(ideas) if idea.first]
    found: list[Asked] = []
    for chosen in (first, [idea for idea in first if idea.loops_only]):
        together = Asked()
        for idea in chosen:
            together = together.with_(idea)
        if together.ideas:
            found.append(together)
    return found


def _neighbours(
    best: Trial, first: Trial, ideas: Sequence[Idea], idle: Collection[object]
) -> list[Asked]:
    """One idea more or one less, those first that could give the most.

    Last come those without an idea that changed nothing where it was tried.
    """
    options = best.asked.options
    found = [
        (idea.most_seconds, best.asked.with_(idea, best.label))
        for idea in ideas
        if any(options.get(name) != value for name, value in idea.options.items())
    ]
    assert best.view is not None
    assert first.view is not None
    # What an idea may have brought that is not wanted: work, and waiting for its kind.
    work = _alone(best.view) - _alone(first.view)
    least = _BETTER * best.seconds
    for idea in best.asked.ideas:
        kinds = {kind for name in idea.options for kind in known()[name].kinds}
        waiting = sum(
            figures.exposed_seconds
            for site, figures in best.view.timeline.collectives().items()
            if site.kind in kinds and site.operand_count > 1
        )
        worth = max(0.0, work) + waiting
        if idea.key in idle:
            worth = max(worth, least)
        found.append((worth, best.asked.without(idea, best.label)))
    found.sort(key=lambda pair: -pair[0])
    return [asked for most, asked in found if most >= least]


def _alone(view: View) -> float:
    totals = view.timeline.totals
    return totals.compute_seconds - totals.contention_seconds


def _each(trial: Trial) -> str:
    return ", each in the order found for it" if trial.ordering is not None else ""


def _as_published(trial: Trial, plain: Trial) -> Trial:
    if trial.status != "ok" or trial.view is None or plain.view is None:
        return trial
    if trial.view.structure.digest == plain.view.structure.digest:
        return dataclasses.replace(
            trial, status="no effect", reason="the program stays as it is"
        )
    change = trial.view.default_seconds / plain.view.default_seconds - 1
    reason = f"{change:+.1%} beside the program as it is, both with NCCL's own choices"
    worse = change > _BETTER
    return dataclasses.replace(trial, status="slower" if worse else "ok", reason=reason)


def _key(asked: Asked) -> frozenset[str]:
    return frozenset(f"{name}={value!r}" for name, value in asked.options.items())


def _simpler(trial: Trial, best: Trial) -> bool:
    """Whether it is the same program with fewer options."""
    if trial.view is None or best.view is None:
        return False
    same = trial.view.structure.digest == best.view.structure.digest
    return same and len(trial.asked.options) < len(best.asked.options)


def _as_compiled(trial: Trial) -> float:
    assert trial.view is not None
    return trial.view.tuned_seconds


def _gains(trial: Trial, best: Trial) -> bool:
    return trial.seconds < best.seconds * (1 - _BETTER)
