"""The verdict of a meeting of processes: what their next steps run."""

from __future__ import annotations

import dataclasses
import json

from lagom_jax.online.belief import StepCandidate
from lagom_jax.runtime.decision import Choice
from lagom_jax.typed_json import plain, typed


@dataclasses.dataclass(frozen=True, slots=True)
class OnlineCandidate:
    """A plan that all processes have built; None for the program as it was."""

    choice: Choice | None
    timed: StepCandidate


@dataclasses.dataclass(frozen=True, slots=True)
class Agenda:
    """The verdict of a meeting: what the next steps run, and when to meet again."""

    first: int
    """The number of the step that it begins with."""
    runs: tuple[tuple[int, int], ...] = ()
    """Candidates, and the steps that each makes, one after the other; then the last
    one goes on."""
    next: int = 0
    """The number of the next step with a meeting; 0 for none."""
    offered: str = ""
    """Further candidates, from the next meeting on."""

    def candidate(self, step: int, before: int) -> int:
        """The candidate of a step.

        Args:
            step: Its number.
            before: What ran before this agenda.

        Example:
            >>> agenda = Agenda(10, ((1, 2), (0, 3)), 15)
            >>> [agenda.candidate(step, 0) for step in range(10, 14)]
            [1, 1, 0, 0]
        """
        left = step - self.first
        for candidate, count in self.runs:
            if left < count:
                return candidate
            left -= count
        return self.runs[-1][0] if self.runs else before

    def to_json(self) -> str:
        """The agenda as text.

        Example:
            >>> Agenda.from_json(Agenda(3, ((1, 2),), 5).to_json())
            Agenda(first=3, runs=((1, 2),), next=5, offered='')
        """
        return json.dumps(plain(self))

    @classmethod
    def from_json(cls, content: str) -> Agenda:
        """The agenda of such a text."""
        return typed(cls, json.loads(content))
