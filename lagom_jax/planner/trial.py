"""One set of options, compiled and looked at, and what became of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from lagom_jax.cost.model import symmetric_buffers_of
from lagom_jax.hlo import Module, read_module
from lagom_jax.options import Idea
from lagom_jax.options.memory import PERCENT, SLOP, MemoryRoom
from lagom_jax.order import Ordering
from lagom_jax.plan import PlanCandidate, Status
from lagom_jax.plan.evidence import COSTS, ORDER
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.planner.judge import View
from xla_flags import OptionValue

_USABLE: Final = ("ok", "slower", "no gain", "no effect")


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """The request for one compile: ideas, costs, given options.

    Example:
        >>> one = Idea("double", {"xla_gpu_enable_while_loop_double_buffering": True},
        ...            "why", 0.1)
        >>> Asked((one,)).name, Asked((one,)).without(one, "#1").name
        ('double', '#1 without double')
    """

    ideas: tuple[Idea, ...] = ()
    costs: str | None = None
    """The text of a profile, made for the program that `ideas` give."""
    title: str = ""
    """Its origin in words; by default its parts."""
    given: tuple[tuple[str, OptionValue], ...] = ()
    """Options that do not come from an idea."""

    @property
    def name(self) -> str:
        """In words."""
        parts = [idea.name for idea in self.ideas]
        if self.costs is not None:
            parts.append("our costs")
        return self.title or ", ".join(parts) or "as it is"

    @property
    def options(self) -> dict[str, OptionValue]:
        """The compiler options of the request, without the user's own."""
        options: dict[str, OptionValue] = dict(self.given)
        for idea in self.ideas:
            options.update(idea.options)
        if self.costs is not None:
            options[COSTS] = self.costs.encode()
        return options

    @property
    def keys(self) -> frozenset[frozenset[tuple[str, OptionValue]]]:
        """The keys of its ideas."""
        return frozenset(idea.key for idea in self.ideas)

    def with_(self, idea: Idea, base: str = "") -> Asked:
        """With another idea, which goes before those that it rules out.

        Args:
            idea: The idea.
            base: What to call this one in the new one's name.
        """
        others = (other for other in self.ideas if not idea.rules_out(other))
        return Asked((*others, idea), title=f"{base} + {idea.name}" if base else "")

    def beside(self, idea: Idea, base: str) -> Asked:
        """With another idea, and all else as it is."""
        return dataclasses.replace(self.with_(idea, base), costs=self.costs)

    def without(self, idea: Idea, base: str) -> Asked:
        """With one idea less."""
        others = tuple(other for other in self.ideas if other is not idea)
        return Asked(others, title=f"{base} without {idea.name}")

    def titled(self, title: str) -> Asked:
        """The same under another name."""
        return dataclasses.replace(self, title=title)

    def with_costs(self, costs: str, base: str) -> Asked:
        """With a profile for XLA's scheduler."""
        return Asked(self.ideas, costs, f"{base} + our costs", self.given)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The result of one request."""

    asked: Asked
    status: Status
    reason: str
    compile_seconds: float
    view: View | None = None
    """None where there is no program."""
    ordering: Ordering | None = None
    """Another order of it, where one was looked for."""
    schedule: str = ""
    """The fingerprint of XLA's schedule."""
    captured: bytes = b""
    """The module as XLA's scheduler left it."""
    order_bytes: int = 0
    """Device memory that any other order takes more: results that no longer live in
    the memory of donated arguments."""
    ordered: bool = False
    """True if it was compiled in another order than XLA's."""
    number: int = 0
    """Its place among the candidates."""

    @property
    def label(self) -> str:
        """Display label."""
        return f"#{self.number}"

    @property
    def usable(self) -> bool:
        """True if a plan may be made of it."""
        return self.view is not None and self.status in _USABLE

    @property
    def seconds(self) -> float:
        """The best that is known of it: with its own settings, in a better order."""
        assert self.view is not None
        if self.ordering is None:
            return self.view.tuned_seconds
        return min(self.view.tuned_seconds, self.ordering.after_seconds)

    @property
    def tuned_seconds(self) -> float:
        """Of what was compiled, with its own settings."""
        assert self.view is not None
        return self.view.tuned_seconds

    @property
    def peak_bytes(self) -> int | None:
        """Of device memory."""
        return None if self.view is None else self.view.scheduled.peak_memory_bytes

    def candidate(self) -> PlanCandidate:
        """As a plan keeps it."""
        view = self.view
        levers: Mapping[str, OptionValue | None] = {
            name: None if isinstance(value, bytes) else value
            for name, value in self.asked.options.items()
        } | ({ORDER: None} if self.ordered else {})
        return PlanCandidate(
            name=f"{self.label} {self.asked.name}",
            levers=tuple(levers.items()),
            status=self.status,
            reason=self.reason,
            step_seconds=None if view is None else view.default_seconds,
            tuned_seconds=None if view is None else view.tuned_seconds,
            peak_bytes=self.peak_bytes,
            compile_seconds=self.compile_seconds,
        )


def edit_of(schedule: str, ordering: Ordering) -> ScheduleEdit:
    """The change of XLA's schedule that makes a step run in an order.

    Args:
        schedule: The fingerprint of the schedule that the order was found for.
        ordering: What was found.
    """
    return ScheduleEdit(schedule, ordering.sequences, ordering.on_second_stream)


def plain_of(options: Mapping[str, OptionValue], trials: Iterable[Trial]) -> Trial:
    """The candidate with some options, in XLA's own order."""
    same = (trial for trial in trials if trial.asked.options == options)
    return next(trial for trial in same if trial.view and not trial.ordered)


def captured_module(trial: Trial) -> Module:
    """The module as XLA's scheduler left it, with what is stated of its kernels.

    XLA places buffers after it has scheduled, and copies what it has to. So symmetric
    memory is told by the program that was compiled: its collectives have their names.

    Args:
        trial: One that has a program, and was captured.
    """
    assert trial.view is not None
    program = trial.view.program
    stated = () if program.module is None else program.module.stated
    buffers = {
        site.name: symmetric_buffers_of(site) for site, _, _ in program.collectives()
    }
    placed = {name: found for name, found in buffers.items() if found}
    module = read_module(trial.captured)
    return dataclasses.replace(module, stated=stated, placed=placed)


def memory_of(trial: Trial, limit_bytes: int) -> MemoryRoom | None:
    """Memory of a candidate beside what it may take; None where that is unknown.

    Args:
        trial: One that has a program.
        limit_bytes: Bytes on a device that it may take.
    """
    assert trial.view is not None
    scheduled = trial.view.scheduled
    peak, kept = scheduled.peak_memory_bytes, scheduled.kept_bytes
    if peak is None or kept is None:
        return None
    present = trial.asked.options.get(SLOP)
    return MemoryRoom(
        # Symmetric memory is none of what XLA's scheduler counts.
        peak - scheduled.symmetric_bytes,
        kept,
        limit_bytes,
        scheduled.cluster.gpu.memory_bytes,
        present if isinstance(present, int) else PERCENT,
    )
