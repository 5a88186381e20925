"""A measured comparison of a tuned program with the one that it replaces."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from lagom_jax.online.turns import BASELINE, TUNED, judge, schedule
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import say
from lagom_jax.runtime.agenda import Agenda, Guide
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.offer import Choice
from lagom_jax.runtime.programs import StepCall


class Turns(Guide):
    """Two programs take turns, and the one that was faster stays: `verify="measure"`.

    The clock of the first process decides.
    """

    on_trial = TUNED

    def __init__(self, choice: Choice, cache: Cache) -> None:
        """Takes the plan, and the place where it is kept with what was measured."""
        super().__init__(choice)
        self._choice, self._cache = choice, cache
        self._times: list[tuple[int, float]] = []
        self._measuring = threading.Lock()

    def first(self) -> Agenda:
        """All turns."""
        return Agenda.of_turns(0, schedule())

    def timed(
        self, number: int, candidate: int, call: StepCall, run: Callable[[], Any]
    ) -> Any:
        """Runs a step, and waits for its end."""
        # Two at a time tell nothing of how long one takes. Nobody waits for the other:
        # a step may call itself from the host.
        if not self._measuring.acquire(blocking=False):
            return run()
        try:
            # What earlier steps still do is not this one's.
            jax.block_until_ready((call.rest, call.named))
            start = time.perf_counter()
            result = jax.block_until_ready(run())
            self._times.append((candidate, time.perf_counter() - start))
            return result
        finally:
            self._measuring.release()

    def decided(self, number: int, said: list[str]) -> Agenda:
        """The program that was faster, or the turns of which no time was taken."""
        made = collections.Counter(candidate for candidate, _ in self._times)
        if left := collections.Counter(schedule()) - made:
            # Of some no time was taken.
            return Agenda.of_turns(number, sorted(left.elements(), reverse=True))
        # The first step of each came with what happens only once.
        baseline, tuned = (
            [seconds for candidate, seconds in self._times if candidate == one][1:]
            for one in (BASELINE, TUNED)
        )
        measured = judge(baseline, tuned)
        choice = self._choice.measured(measured)
        say.visibly(f"{choice.plan.holds_for.program}: {in_words(measured)}")
        self._cache.keep_verdict(choice.parts, choice.plan)
        return Agenda(number, ((int(measured.kept), 1),), measured=measured)

    def take(self, agenda: Agenda) -> None:
        """Adds to the plan what was measured."""
        if agenda.measured is not None:
            self.candidates[TUNED] = self._choice.measured(agenda.measured)
