"""A measured comparison of a tuned program with the one that it replaces."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from lagom_jax.online.turns import Side, judge, schedule
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import say
from lagom_jax.runtime.agenda import Agenda, Guide
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.offer import Choice
from lagom_jax.runtime.programs import StepCall

_SIDES: Final[tuple[Side, ...]] = ("baseline", "tuned")
"""In the order of candidates."""


class Turns(Guide):
    """Two programs take turns, and the one that was faster stays: `verify="measure"`.

    The clock of the first process decides.
    """

    on_trial = 1

    def __init__(self, choice: Choice, cache: Cache) -> None:
        """Takes the plan, and the place where it is kept with what was measured."""
        super().__init__(choice)
        self._choice, self._cache = choice, cache
        self._times: list[tuple[Side, float]] = []
        self._measuring = threading.Lock()

    def first(self) -> Agenda:
        """All turns."""
        return self._agenda(0, schedule())

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
            self._times.append((_SIDES[candidate], time.perf_counter() - start))
            return result
        finally:
            self._measuring.release()

    def decided(self, number: int, said: list[str]) -> Agenda:
        """The program that was faster, or the turns of which no time was taken."""
        if left := self._left():
            return self._agenda(number, left)
        # The first step of each came with what happens only once.
        baseline, tuned = (
            [seconds for side, seconds in self._times if side == one][1:]
            for one in _SIDES
        )
        measured = judge(baseline, tuned)
        choice = self._choice.measured(measured)
        say.visibly(f"{choice.plan.holds_for.program}: {in_words(measured)}")
        self._cache.keep_verdict(choice.parts, choice.plan)
        return Agenda(number, ((int(measured.kept), 1),), measured=measured)

    def take(self, agenda: Agenda) -> None:
        """Adds to the plan what was measured."""
        if agenda.measured is not None:
            self.candidates[1] = self._choice.measured(agenda.measured)

    def _left(self) -> list[Side]:
        """The turns of which no time was taken."""
        left = collections.Counter(schedule())
        left.subtract(side for side, _ in self._times)
        return [side for side in reversed(_SIDES) for _ in range(left[side])]

    def _agenda(self, number: int, sides: Sequence[Side]) -> Agenda:
        return Agenda.of_turns(number, map(_SIDES.index, sides))
