"""A job that is tuned while it trains: planned beside it, switched between two steps.

The first step runs at once, as the program is. After the second a thread plans (in a
process of its own) and builds; now and then, at steps of the same number in all
processes, they meet, and the first process says what the next steps run. Its clock is
the one that counts: it feeds the search, makes agendas of what the search asks for, has
more candidates looked for where the search has come to an end, and keeps what was
measured.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from lagom_jax.online.search import Search, SearchEvent, after, turns
from lagom_jax.online.steps import NEIGHBOURS, StepTime
from lagom_jax.plan import MeasuredSteps
from lagom_jax.runtime import say, step_profile
from lagom_jax.runtime.agenda import USUAL, Agenda, Guide
from lagom_jax.runtime.cache import Cache, was_faster
from lagom_jax.runtime.offer import Choice, OfferedPlan
from lagom_jax.runtime.online_plans import OnlinePlans
from lagom_jax.runtime.programs import StepCall
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_clock import StepClock
from lagom_jax.runtime.step_profile import StepProfile
from lagom_jax.runtime.waiting import in_background
from lagom_jax.units import in_percent

FIRST_MEETING: Final = 4
"""The step before which all processes meet for the first time."""
ROUNDS: Final = 8
"""Candidates of which a job asks for the settings around."""
_BETWEEN_SECONDS: Final = 2.0
_BETWEEN_STEPS: Final = (4, 256)


class OnlineGuide(Guide):
    """Candidates that are found while the job trains: `verify="online"`."""

    def __init__(
        self,
        name: str,
        source: OnlinePlans,
        cache: Cache,
        profile: StepProfile | None,
        *,
        leads: bool,
    ) -> None:
        """Sets it up; planning begins when the first steps have run.

        Args:
            name: The step's.
            source: Finds candidates, in a thread.
            cache: Keeps what was measured.
            profile: Records steps before planning begins; in all processes or in none,
                and only the first one's is recorded.
            leads: Whether this process measures and decides.
        """
        super().__init__()
        self._name, self._source, self._cache = name, source, cache
        # Not with the first step, which would share this machine with it.
        self._begins = 1 if profile is None else step_profile.LAST
        self._profile = profile if leads else None
        self._clock = StepClock() if leads else None
        self._planning: Future[tuple[Choice, ...]] | None = None
        self._failed: Exception | None = None
        self._search: Search | None = None
        self._rounds: set[int] = set()
        """Candidates whose neighbours were asked for."""
        self._asked: Future[tuple[OfferedPlan, ...]] | None = None

    def first(self) -> Agenda:
        """The program as it was, until all have met."""
        return Agenda(0, next=FIRST_MEETING)

    def timed(
        self, number: int, candidate: int, call: StepCall, run: Callable[[], Any]
    ) -> Any:
        """Runs a step, and takes its time beside it."""
        began = time.perf_counter()
        result = self._profile.recorded(number, run) if self._profile else run()
        if self._clock is not None:
            self._clock.started(candidate, began, result, counts=number > 0)
        if number == self._begins:
            self._planning = in_background(self._source.find)
        return result

    def said(self) -> str:
        """The state of planning, in a word."""
        if self._failed is not None:
            raise self._failed
        if self._planning is None or not self._planning.done():
            return "planning"
        if len(self.candidates) == 1:
            self.candidates += self._planning.result()
        return "ready" if len(self.candidates) > 1 else "nothing"

    def take(self, agenda: Agenda) -> None:
        """Takes further candidates."""
        try:
            self.candidates += self._source.taken(self.candidates, agenda.offered)
        except Exception as error:
            # None of them runs before all have met again, and then this one says so.
            LOG.debug("further candidates cannot be taken", exc_info=True)
            self._failed = error

    def stop(self) -> None:
        """Takes no more times, and ends the process that plans."""
        clock, self._clock = self._clock, None
        if clock is not None:
            clock.stop()
        self._source.close()

    def decided(self, number: int, said: list[str]) -> Agenda:
        """The agenda that the search asks for."""
        assert self._clock is not None
        times, search = self._clock.taken(), self._search
        if "planning" in said:
            return Agenda(number, next=number + _gap(times))
        if "nothing" in said:
            return Agenda(number)
        if search is None:
            _, plan, *_ = self.candidates
            assert plan is not None
            if was_faster(plan.plan):
                say.visibly(
                    f"{self._name}: runs with the plan that was measured before"
                )
                return Agenda(number, ((1, 1),))
            timed = [one.timed for one in self.candidates if one is not None]
            search = Search.among([self._source.usual(plan), *timed], steps=number)
        elif times and not search.over:
            search = after(search, times)
            self._tell_events(search)
        self._search = search
        if found := turns(search):
            return Agenda.of_turns(number, found)
        return self._around(number, search, _gap(times))

    def _around(self, number: int, search: Search, gap: int) -> Agenda:
        """An agenda where the search is over, unless more candidates come."""
        base = ((search.base, 1),)
        if self._asked is None:
            if search.base in self._rounds or len(self._rounds) >= ROUNDS:
                return self._ended(number, search)
            self._rounds.add(search.base)
            ask = functools.partial(
                self._source.around, [*self.candidates], search.base
            )
            self._asked = in_background(ask)
        if not self._asked.done():
            return Agenda(number, base, number + gap)
        asked, self._asked = self._asked, None
        found: list[Choice] = []
        try:
            found = self._source.taken(self.candidates, asked.result())
        except Exception as error:
            LOG.info("no further settings are tried: %s", error)
        if not found:
            return self._ended(number, search)
        self._search = search.offered([one.timed for one in found])
        return Agenda(number, base, number + NEIGHBOURS, asked.result())

    def _ended(self, number: int, search: Search) -> Agenda:
        self._tell(search, SearchEvent(number, "ended", search.base))
        return Agenda(number, ((search.base, 1),))

    def _tell_events(self, search: Search) -> None:
        for event in search.events:
            if event.kind != "ended":
                self._tell(search, event)
            choice = self.candidates[event.candidate]
            if event.kind in ("proved", "dropped") and choice is not None:
                self._keep_measured(search, event, choice)

    def _tell(self, search: Search, event: SearchEvent) -> None:
        words = _in_words(search, event)
        say.visibly(f"{self._name}, step {event.step}: {words}")

    def _keep_measured(
        self, search: Search, event: SearchEvent, choice: Choice
    ) -> None:
        kept = event.kind == "proved"
        if not kept and event.candidate != 1:
            # The plan's own key says what came of the plan alone.
            return
        times = sorted(one.seconds for one in search.tail) or [0.0]
        now, compared = times[len(times) // 2], event.compared
        tuned = now * math.exp(compared.log_ratio) if search.running == USUAL else now
        before = tuned * math.exp(-compared.log_ratio - event.before)
        noise = 2 * compared.sigma * now
        measured = MeasuredSteps(before, tuned, noise, max(1, compared.steps), kept)
        self._cache.keep_verdict(choice.parts, choice.measured(measured).plan)


def _in_words(search: Search, event: SearchEvent) -> str:
    name, compared = search.candidates[event.candidate].name, event.compared
    change = f"{math.expm1(compared.log_ratio):+.1%} ({compared.steps} steps)"
    match event.kind:
        case "tried":
            return f"{name} tried: {change}"
        case "runs":
            return f"{name} runs from here on: {change}"
        case "proved":
            return f"{name} is faster: {change}"
        case "dropped":
            return f"{name} is dropped: {change}"
        case _:
            share = in_percent(search.spent, max(1, event.step))
            return (
                f"nothing else is worth trying; {name} stays. {search.spent} steps "
                f"({share}) were spent on measuring"
            )


def _gap(times: Sequence[StepTime]) -> int:
    least, most = _BETWEEN_STEPS
    if not times:
        return least
    step = sorted(one.seconds for one in times)[len(times) // 2]
    return max(least, min(most, math.ceil(_BETWEEN_SECONDS / max(step, 1e-6))))
