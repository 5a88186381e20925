"""The part of the first process in a job that is tuned: it measures and decides.

Its clock is the one that counts. It feeds the search, makes agendas of what the search
asks for, has more candidates looked for where the search has come to an end, and keeps
what was measured.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from concurrent.futures import Future
from typing import Any, Final

from lagom_jax.errors import LagomError
from lagom_jax.online.search import Search, SearchEvent, after, turns
from lagom_jax.online.steps import NEIGHBOURS
from lagom_jax.plan import MeasuredSteps
from lagom_jax.runtime import say
from lagom_jax.runtime.agenda import Agenda, OnlineCandidate
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.online_plans import OnlinePlans
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_clock import StepClock
from lagom_jax.runtime.waiting import in_background
from lagom_jax.units import in_percent

ROUNDS: Final = 8
"""Candidates of which a job asks for the settings around."""
USUAL: Final = 0
"""The candidate that is the program as it was."""
_BETWEEN_SECONDS: Final = 2.0
_BETWEEN_STEPS: Final = (4, 256)


class OnlineLeader:
    """Measures steps, and says what the next ones run."""

    def __init__(self, name: str, source: OnlinePlans, cache: Cache) -> None:
        """Sets it up.

        Args:
            name: The step's.
            source: Finds more candidates.
            cache: Keeps what was measured.
        """
        self._name, self._source, self._cache = name, source, cache
        self._clock = StepClock()
        self._search: Search | None = None
        self._candidates: list[OnlineCandidate] = []
        self._rounds: set[int] = set()
        """Candidates whose neighbours were asked for."""
        self._asked: Future[str] | None = None

    def started(self, candidate: int, at: float, result: Any, *, counts: bool) -> None:
        """Says that a step was begun, as `StepClock.started` takes it."""
        self._clock.started(candidate, at, result, counts=counts)

    def stop(self) -> None:
        """Takes no more times."""
        self._clock.stop()

    def decided(
        self, step: int, states: list[str], candidates: list[OnlineCandidate]
    ) -> str:
        """The next agenda, as text.

        Args:
            step: The number of the step that it begins with.
            states: What each process has said of its planning.
            candidates: What can run.
        """
        times = self._clock.taken()
        if "planning" in states:
            return Agenda(step, next=step + _gap(times)).to_json()
        if "nothing" in states:
            return Agenda(step).to_json()
        self._candidates = candidates
        search = self._search
        if search is None:
            if self._measured_before():
                say.visibly(
                    f"{self._name}: runs with the plan that was measured before"
                )
                return Agenda(step, ((1, 1),)).to_json()
            search = Search.among([one.timed for one in candidates], steps=step)
            self._search = search
        elif times and not search.over:
            self._search = search = after(search, times)
            self._tell_events(search.events)
        found = turns(search)
        if not found:
            return self._around(step, search, _gap(times)).to_json()
        return Agenda(step, _runs(found), step + len(found)).to_json()

    def _around(self, step: int, search: Search, gap: int) -> Agenda:
        """An agenda where the search is over, unless more candidates come."""
        base = ((search.base, 1),)
        if self._asked is None:
            if search.base in self._rounds or len(self._rounds) >= ROUNDS:
                return self._ended(step, search)
            self._rounds.add(search.base)
            ask = functools.partial(
                self._source.around, list(self._candidates), search.base
            )
            self._asked = in_background(ask)
        if not self._asked.done():
            return Agenda(step, base, step + gap)
        error, asked = self._asked.exception(), self._asked
        self._asked = None
        if error is not None:
            LOG.info("no further settings are tried: %s", error)
        text = "" if error is not None else asked.result()
        if not text:
            return self._ended(step, search)
        try:
            found = self._source.taken(self._candidates, text)
        except LagomError as failure:
            LOG.info("no further settings are tried: %s", failure)
            return self._ended(step, search)
        self._search = search.offered([one.timed for one in found])
        return Agenda(step, base, step + NEIGHBOURS, text)

    def _ended(self, step: int, search: Search) -> Agenda:
        self._tell(SearchEvent(step, "ended", search.base))
        return Agenda(step, ((search.base, 1),))

    def _measured_before(self) -> bool:
        choice = self._candidates[1].choice
        assert choice is not None
        measured = choice.plan.evidence.measured
        return measured is not None and measured.kept

    def _tell_events(self, events: tuple[SearchEvent, ...]) -> None:
        for event in events:
            if event.kind != "ended":
                self._tell(event)
            if event.kind in ("proved", "dropped") and event.candidate != USUAL:
                self._keep_measured(event)

    def _tell(self, event: SearchEvent) -> None:
        say.visibly(f"{self._name}, step {event.step}: {self._in_words(event)}")

    def _in_words(self, event: SearchEvent) -> str:
        name = self._candidates[event.candidate].timed.name
        compared = event.compared
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
                spent = self._search.spent if self._search is not None else 0
                share = in_percent(spent, max(1, event.step))
                return (
                    f"nothing else is worth trying; {name} stays. {spent} steps "
                    f"({share}) were spent on measuring"
                )

    def _keep_measured(self, event: SearchEvent) -> None:
        search = self._search
        choice = self._candidates[event.candidate].choice
        if search is None or choice is None:
            return
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
        if kept or tuned - before > noise:
            evidence = dataclasses.replace(choice.plan.evidence, measured=measured)
            plan = dataclasses.replace(choice.plan, evidence=evidence)
            self._cache.keep(choice.parts, plan)


def _runs(found: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for candidate in found:
        last = runs.pop() if runs and runs[-1][0] == candidate else (candidate, 0)
        runs.append((candidate, last[1] + 1))
    return tuple(runs)


def _gap(times: tuple[Any, ...]) -> int:
    least, most = _BETWEEN_STEPS
    if not times:
        return least
    step = sorted(one.seconds for one in times)[len(times) // 2]
    return max(least, min(most, math.ceil(_BETWEEN_SECONDS / max(step, 1e-6))))
