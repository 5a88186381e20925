"""The programs of the next steps, as all processes have agreed on them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

from lagom_jax.plan import MeasuredSteps
from lagom_jax.runtime.offer import Choice, OfferedPlan
from lagom_jax.runtime.programs import StepCall

USUAL: Final = 0
"""The candidate that is the program as it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Agenda:
    """The verdict of a meeting: what the next steps run, and when to meet again."""

    first: int
    """The number of the step that it begins with."""
    runs: tuple[tuple[int, int], ...] = ((USUAL, 1),)
    """Candidates, and the steps that each makes, one after the other; then the last
    one goes on."""
    next: int = 0
    """The number of the next step with a meeting; 0 for none."""
    offered: tuple[OfferedPlan, ...] = ()
    """Further candidates, from the next meeting on."""
    measured: MeasuredSteps | None = None
    """The times by which the plan was judged, if that is what ends here."""

    @classmethod
    def of_turns(cls, first: int, candidates: Iterable[int]) -> Agenda:
        """An agenda of single steps, with a meeting after them.

        Args:
            first: The number of the first step.
            candidates: The candidate of each.

        Example:
            >>> Agenda.of_turns(10, [1, 1, 0]).runs
            ((1, 2), (0, 1))
        """
        runs = tuple(
            (candidate, len([*steps]))
            for candidate, steps in itertools.groupby(candidates)
        )
        return cls(first, runs, first + sum(count for _, count in runs))

    def candidate(self, step: int) -> int:
        """The candidate of a step.

        Args:
            step: Its number.

        Example:
            >>> agenda = Agenda(10, ((1, 2), (0, 3)), 15)
            >>> [agenda.candidate(step) for step in range(10, 14)]
            [1, 1, 0, 0]
        """
        left = step - self.first
        for candidate, count in self.runs:
            if left < count:
                return candidate
            left -= count
        return self.runs[-1][0]


class Guide:
    """The candidates of a step, and a reason to run one of them: the last, for good.

    Those that measure steps before they know take their part in the meetings of all
    processes.
    """

    on_trial: int | None = None
    """The candidate that is spoken of as what runs, until that is known."""

    def __init__(self, *choices: Choice) -> None:
        """Takes what could run instead of the step as it was."""
        self.candidates: list[Choice | None] = [None, *choices]

    def first(self) -> Agenda:
        """The steps before anything more is known."""
        return Agenda(0, ((len(self.candidates) - 1, 1),))

    def timed(
        self, number: int, candidate: int, call: StepCall, run: Callable[[], Any]
    ) -> Any:
        """Runs a step, and takes its time.

        Args:
            number: Its number.
            candidate: The candidate that runs.
            call: Its arguments.
            run: Runs it.
        """
        return run()

    def said(self) -> str:
        """This process's part in a meeting; raises where it cannot go on."""
        return ""

    def decided(self, number: int, said: list[str]) -> Agenda:
        """The next agenda, in the first process only.

        Args:
            number: The number of the next step.
            said: What each process has said.
        """
        return self.first()

    def take(self, agenda: Agenda) -> None:
        """Hears what was decided."""

    def stop(self) -> None:
        """Ends what goes on beside the steps."""
