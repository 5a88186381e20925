"""Compiles candidates, looks at each, and keeps the best.

The order of things: the program as it is; then all ideas at once, and all about loops
at once, because most of them pay only together (pipelining brings copies that double
buffering removes); then, from the best so far, one idea more or one less, those first
that could give the most; then our costs as a profile for the winner; then another order
of its instructions, and of the program as it is where nothing else is taken; and in the
end the same off the rings, with compiles of its own, so that nothing else is given up
for it.
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
from collections.abc import Callable, Iterable, Sequence

from lagom_jax.errors import CompileTimeoutError, LagomError
from lagom_jax.options import Idea, cost_profile
from lagom_jax.order import Ordering
from lagom_jax.plan.order import NOT_MET, ScheduleEdit
from lagom_jax.planner.budget import Budget
from lagom_jax.planner.comparison import (
    BETTER,
    as_published,
    compared,
    gains,
    simpler,
)
from lagom_jax.planner.decide import Taken, Timing, decide, takes_off_rings
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.next_ideas import idle, key_of, neighbours, together, untried
from lagom_jax.planner.pace import Pace
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.sought import Sought, answered, edits_of, on_rings
from lagom_jax.planner.step_compiler import Made, StepCompiler, lost_in_an_order
from lagom_jax.planner.trial import Asked, Trial, captured_module, edit_of, plain_of
from lagom_jax.planner.why_not import why_not
from lagom_jax.units import in_bytes

_GLANCE = 0.3
"""The share of the evaluations that goes into the order of a mere candidate."""
_FROM_KNOWN = 0.2
"""The share of the evaluations that goes into an order where one is known from which
the search can begin; all models that are asked replay each. With half of it a model
still found one of three steps behind, by 0.2 %."""
_AGAIN = 3
"""Compiles more of an order that was not met; of two equally likely schedules one is
missed four times in a row in one of sixteen plans."""
_AT_A_TIME = 2
"""Candidates between two decisions, on any machine, so that all decide alike."""


class Sweep:
    """The candidates of one planning."""

    def __init__(
        self,
        compiler: StepCompiler,
        judge: Judge,
        budget: Budget,
        memory_limit: int,
        *,
        orders: bool,
        say: Callable[[str], None],
        not_behind: Scored | None = None,
    ) -> None:
        """Sets it up.

        Args:
            compiler: Compiles the step.
            judge: Looks at what comes out.
            budget: When to stop.
            memory_limit: Bytes on a device that no candidate may exceed.
            orders: Whether another order of instructions may be used.
            say: Called with a line for each thing that is done.
            not_behind: Times that the step's should by no model be behind.
        """
        self._compiler = compiler
        # What is compiled is decided as coarser controls would: finer ones then only
        # add to what those find, instead of leading to another program.
        self._judge, self._finest = judge.coarsest(), judge
        self._budget = budget
        self.memory_limit = memory_limit
        self._orders = orders
        self._say = say
        self._not_behind = not_behind
        self._begun = time.monotonic()
        self._most = budget.compiles
        # Once it is there, the judge stays the finest one.
        self._timing: Timing | None = None
        self._pace = Pace(budget.compiles, budget.seconds)
        self.trials: list[Trial] = []
        self.on_trial: Callable[[Trial], None] = lambda trial: None
        """Called with each candidate that was looked at."""
        self.compiles = 0

    @property
    def seconds(self) -> float:
        """Since it was set up."""
        return time.monotonic() - self._begun

    def first(self, begin: Asked | None = None) -> Trial:
        """The program as it is; what is wrong with it is the user's to know.

        Args:
            begin: Options that it is compiled with; by default none.

        Raises:
            LagomError: It cannot be compiled.
        """
        self.compiles += 1
        made = self._attempt(begin or Asked(), capture=self._orders)
        if made.compiled is not None:
            # A plan that takes no more than the program as it is does no harm.
            peak = made.compiled.memory.peak_bytes or 0
            self.memory_limit = max(self.memory_limit, peak)
        return self._kept(self._seen(made))

    def improve(
        self,
        first: Trial,
        derive: Callable[[Trial], Sequence[Idea]],
        reserve: int,
    ) -> Trial:
        """Tries ideas together and one by one.

        Args:
            first: The program as it is.
            derive: Ideas for a candidate, those that could give the most first.
            reserve: Compiles that are kept for what comes after.
        """
        best = first
        queue = together(derive(first), first.asked)
        asked_for = {key_of(first.asked)}
        while True:
            queue += neighbours(best, first, derive(best), idle(self.trials))
            chosen: list[Asked] = []
            for asked in queue:
                if key_of(asked) not in asked_for and len(chosen) < _AT_A_TIME:
                    asked_for.add(key_of(asked))
                    chosen.append(asked)
            room = self._budget.compiles - reserve - self.compiles
            if not chosen or room <= 0 or self._out_of_time():
                why = "out of time" if self._out_of_time() else "out of compiles"
                for asked in untried(queue, self.trials):
                    self._kept(Trial(asked, "not tried", why, 0.0))
                return best
            queue = []
            for trial in self._compile(chosen[:room], best):
                if trial.usable and gains(trial, best):
                    best = trial
                elif trial.usable and simpler(trial, best):
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
        return trial if trial.usable and gains(trial, best) else best

    def in_order(self, best: Trial) -> None:
        """Compiles the best so far in the order that Lagom's own scheduler finds.

        Args:
            best: The best so far.
        """
        self._in_order(self._refined(best))

    def order_alone(self) -> None:
        """Tries the program as it is in another order, where nothing else is taken.

        What some models lose by options they need not lose by an order. It is compiled
        beyond the budget's.
        """
        if not self._may_answer():
            return
        first = self.trials[0]
        options = first.asked.options
        if any(t.ordered and t.asked.options == options for t in self.trials):
            return
        if len(self.trials) > 1 and self._decided().trial.number == first.number:
            self._answer(first)

    def off_rings(self, derive: Callable[[View], Sequence[Idea]]) -> None:
        """Tries what would be taken off the rings, with compiles beyond the budget's.

        All that is compiled without is so compiled with it, too, and a plan with it
        cannot be behind one without.

        Args:
            derive: Ways off the rings.
        """
        more = self._budget.off_rings
        if not more or self._out_of_time():
            return
        self._most = self.compiles + more
        taken = decide(self.trials, self._timed())
        usual = plain_of(taken.trial.asked.options, self.trials)
        assert usual.view is not None
        ideas = sorted(derive(usual.view), key=lambda idea: -idea.most_seconds)
        asked = [
            usual.asked.beside(idea, usual.label)
            for idea in ideas
            if idea.most_seconds >= BETTER * usual.seconds
        ]
        # One is for the order, which is looked for once it is known in what.
        tried = self._compile(
            asked[: max(1, more - self._orders)],
            dataclasses.replace(usual, ordering=None),
        )
        if found := [trial for trial in tried if trial.status == "ok"]:
            best = min(found, key=lambda trial: trial.seconds)
            self._in_order(best, on_rings(best, usual, taken, self.trials))

    def answer(self) -> None:
        """Tries another order of what a few models are against.

        It is looked for by these and the likeliest at once, from the best that is
        known, and compiled beyond the budget's.
        """
        if not self._may_answer():
            return
        refused = self._decided().refused
        if refused is None:
            return
        plain = plain_of(refused.trial.asked.options, self.trials)
        self._answer(plain, answered(refused, plain))

    def _may_answer(self) -> bool:
        """True if an order may be compiled beyond the budget's."""
        answers = bool(self._budget.answers and self._orders)
        return answers and not self._out_of_time()

    def _answer(self, plain: Trial, sought: Sought | None = None) -> None:
        self._most = self.compiles + self._budget.answers
        self._in_order(plain, sought)

    def decided(self) -> Taken:
        """The candidate with the least regret: nothing counts but what was compiled."""
        decision = self._decided()
        taken = decision.trial
        promised = (t.number for t in self.trials if t.status == "ok")
        if taken.status == "ok" and taken.number == max(promised):
            return decision
        why = "the least regret among what was compiled"
        return dataclasses.replace(decision, trial=self._restated(taken, why))

    def _decided(self) -> Taken:
        return decide(self.trials, self._timed(), self._not_behind)

    def _timed(self) -> Timing:
        self._say("timing the candidates under all models")
        self._timing = self._timing or Timing(self._judge)
        return self._timing

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

    def _in_order(self, best: Trial, sought: Sought | None = None) -> None:
        room = self.compiles < self._most and not self._out_of_time()
        if not self._orders or not best.captured or not room:
            return
        if not self._may_be_ordered(best):
            self._say(
                f"another order would take {in_bytes(best.order_bytes)} more memory, "
                "since it would lose donation: none is looked for"
            )
            return
        self._say("looking for a better order of its instructions")
        ordering = self._order_of(best, sought)
        if not (ordering.sequences or ordering.on_second_stream):
            return
        edit = edit_of(best.schedule, ordering)
        if edit in edits_of(best, self.trials):
            return
        by = ", by the models that find it behind" if sought and sought.members else ""
        asked = best.asked.titled(f"{best.label} in another order{by}")
        self.compiles += 1
        made = self._looked_at(self._attempt(asked, edit, capture=True))
        # Beside what was compiled, not beside what an order had promised.
        plain = dataclasses.replace(best, ordering=None)
        ordered = dataclasses.replace(compared(made, plain), ordering=ordering)
        self._kept(ordered)

    def _order_of(self, best: Trial, sought: Sought | None) -> Ordering:
        """An order by the likeliest model, from the one that is known if there is."""
        assert best.view is not None
        module, spare = captured_module(best), self._spare(best)
        evaluations, policy = self._budget.evaluations, best.view.policy
        if sought is None:
            return self._judge.order(
                module, spare_bytes=spare, evaluations=evaluations, policy=policy
            )
        return self._judge.robust_order(
            module,
            sought.begin,
            beside=sought.beside,
            members=sought.members,
            spare_bytes=spare,
            evaluations=int(_FROM_KNOWN * evaluations),
            policy=policy,
        )

    def compare(self, others: Iterable[Asked], plain: Trial) -> None:
        """Compiles what others recommend, beyond the budget of the search.

        Args:
            others: What they recommend.
            plain: The program as it is, with which they are compared as their authors
                would: everything left to NCCL, in XLA's own order.
        """
        for trial in self._run(list(others), orders=False):
            self._kept(as_published(trial, plain))

    def _compile(self, chosen: list[Asked], best: Trial) -> list[Trial]:
        return [
            self._kept(compared(trial, best))
            for trial in self._run(chosen, orders=self._orders)
        ]

    def _kept(self, trial: Trial) -> Trial:
        trial = dataclasses.replace(trial, number=len(self.trials))
        self.trials.append(trial)
        self.on_trial(trial)
        return trial

    def _run(self, chosen: list[Asked], *, orders: bool) -> list[Trial]:
        """Compiles and looks; where orders may be used, also for a better one."""
        self.compiles += len(chosen)

        def attempt(asked: Asked) -> Made:
            return self._attempt(asked, capture=orders)

        pool = concurrent.futures.ThreadPoolExecutor(self._budget.workers)
        try:
            # Each compile is a process of its own; a thread only waits for it, and what
            # is there is looked at meanwhile.
            return [self._looked_at(one) for one in pool.map(attempt, chosen)]
        finally:
            # Who is called away waits for nobody: the processes end with the compiler.
            pool.shutdown(wait=False, cancel_futures=True)

    def _attempt(
        self, asked: Asked, order: ScheduleEdit | None = None, *, capture: bool = False
    ) -> Made:
        self._say(f"compiling {asked.name}{self._pace.words}")
        begun = time.monotonic()
        try:
            scheduled, compiled = self._compiler(asked.options, order, capture=capture)
            # XLA breaks ties between fusions by chance: their names differ then, and
            # with them what a profile says of each, and so the schedule.
            for _ in range(_AGAIN):
                if compiled.order_outcome != NOT_MET:
                    break
                self.compiles += 1
                scheduled, compiled = self._compiler(
                    asked.options, order, capture=capture
                )
        except LagomError as error:
            return Made(asked, order, time.monotonic() - begun, error=error)
        finally:
            self._pace.ended()
        taken = compiled.start_seconds + compiled.compile_seconds
        # The compiler may have it from another planning, which asked for it.
        looked_for = capture and order is None
        captured = (compiled.scheduled_bytes or b"") if looked_for else b""
        return Made(asked, order, taken, scheduled, compiled, captured)

    def _looked_at(self, made: Made) -> Trial:
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

    def _seen(self, made: Made) -> Trial:
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
            order_bytes=lost_in_an_order(made.compiled),
            ordered=ordered,
        )
        outcome = made.compiled.order_outcome if ordered else None
        if found := why_not(trial, outcome, self.memory_limit, self._judge):
            status, reason = found
            return dataclasses.replace(trial, status=status, reason=reason)
        if self._is_glanced_at(trial):
            ordering = self._judge.order(
                captured_module(trial),
                spare_bytes=self._spare(trial),
                evaluations=int(_GLANCE * self._budget.evaluations),
                policy=view.policy,
            )
            trial = dataclasses.replace(trial, ordering=ordering)
        return trial

    def _is_glanced_at(self, trial: Trial) -> bool:
        """True if an order is looked for before it is known that it is worth one.

        Off the rings the best of two ways is, as they were compiled.
        """
        able = bool(trial.captured) and self._may_be_ordered(trial)
        return able and not takes_off_rings(trial)

    def _may_be_ordered(self, trial: Trial) -> bool:
        """False where any other order takes more memory than there is."""
        return (self._spare(trial) or 0) >= 0

    def _spare(self, trial: Trial) -> int | None:
        """Bytes that another order may take more than XLA's; None where unknown."""
        peak = trial.peak_bytes
        return None if peak is None else self.memory_limit - peak - trial.order_bytes

    def _out_of_time(self) -> bool:
        return self.seconds > self._budget.seconds
