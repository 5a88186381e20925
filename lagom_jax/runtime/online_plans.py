"""Candidates for a job that is tuned while it trains: found once, built by all."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from lagom_jax.compile import Compiler
from lagom_jax.errors import PlanError
from lagom_jax.hlo.communicated import collectives_of
from lagom_jax.online.belief import StepCandidate
from lagom_jax.runtime import say
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.case import Case
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.decision import Decision, offered
from lagom_jax.runtime.executables import Executables
from lagom_jax.runtime.offer import Choice, OfferedPlan, program_of
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.planning_process import MODULE
from lagom_jax.runtime.programs import Stages
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_profile import StepProfile

_LOW_PRIORITY: Final = 10
AS_IT_WAS: Final = "the step as it was"
Candidates: TypeAlias = "Sequence[Choice | None]"
"""None for the step as it was, which is the first."""


class OnlinePlans:
    """Candidates of a step, found beside it and built in all its processes."""

    def __init__(
        self,
        talk: Talk,
        cache: Cache,
        case_of: Callable[[Compiler], Case],
        programs: Executables,
        first: Stages,
        profile: StepProfile | None = None,
    ) -> None:
        """Sets it up; nothing is planned yet.

        Args:
            talk: The processes that run the step.
            cache: Where decisions are kept.
            case_of: The step as planning has it; called in a thread.
            programs: Its programs.
            first: The arguments of its first step.
            profile: Of the step's first steps; None where none is made.
        """
        self._talk, self._cache, self._case_of = talk, cache, case_of
        self._programs, self._first, self._profile = programs, first, profile
        self._case: Case | None = None
        self._communicated = ""
        self._closed = False

    def find(self) -> tuple[Choice, ...]:
        """Finds what a job could run, and builds it in every process.

        Returns:
            The plan that was decided on, and its alternatives: the same in all
            processes.

        Raises:
            RefusedError: All processes leave the step as it is.
            InDoubtError: This process cannot know what the others have built.
            LagomError: There is no plan, where there is but one process.
        """
        give_way()
        build = functools.partial(self._programs.build, self._first)
        try:
            with Compiler(store=self._cache.folder is not None) as compiler:
                case_of = functools.partial(self._made, compiler)
                found = Decision(self._talk, case_of, build).choices()
        finally:
            if self._profile is not None:
                self._profile.forget()
        if self._planner.calibrated:
            say.visibly(self._planner.calibrated)
        if found:
            # Settings may be all that is worth changing.
            self._communicated = collectives_of(self._first.text())
        return found

    @property
    def _planner(self) -> PlannerBeside:
        assert self._case is not None
        assert isinstance(self._case.planner, PlannerBeside)
        return self._case.planner

    def _made(self, compiler: Compiler) -> Case:
        """The step as planning has it, with a profile of it, if there is one."""
        self._case = self._case_of(compiler)
        if self._closed:
            self.close()
        profile = self._profile.folder if self._profile is not None else None
        if profile is not None:
            (profile / MODULE).write_text(self._first.text(), encoding="utf-8")
            self._planner.profile = profile
        return self._case

    def usual(self, plan: Choice) -> StepCandidate:
        """The step as it was, by all models.

        Args:
            plan: The plan that was decided on.
        """
        timed = self._planner.timed
        if timed:
            return dataclasses.replace(timed[0].timed, name=AS_IT_WAS)
        return StepCandidate(AS_IT_WAS, plan.plan.evidence.default.step_seconds)

    def around(self, candidates: Candidates, base: int) -> tuple[OfferedPlan, ...]:
        """Settings around those of a candidate.

        Only NCCL's settings differ, which go through the tuner's control page: all
        processes have their program already.
        """
        case, choice, plan = self._case, candidates[base], candidates[1]
        assert case is not None
        assert plan is not None
        controls = plan.parts["controls"]
        if controls != "tuner":
            # Where NCCL has no tuner, settings are options of the compiler.
            return ()
        known = self._programs_of(candidates)
        return tuple(
            offered(case, _beside(one, base), controls)
            for one in self._planner.around(None if choice is None else choice.plan)
            if program_of(one.plan) in known and not case.cache.ended_a_job(one.plan)
        )

    def taken(
        self, candidates: Candidates, plans: Sequence[OfferedPlan]
    ) -> list[Choice]:
        """Choices of what was offered, beside candidates that all have built.

        Raises:
            LagomError: One of them cannot run here without a compile.
        """
        known, found = self._programs_of(candidates), list[Choice]()
        for one in plans:
            name, collectives = one.timed.name, known.get(program_of(one.plan))
            if collectives is None:
                raise PlanError(f"the program of {name} is not built here")
            assert candidates[1] is not None
            found.append(one.choice(collectives, name, candidates[1].parts))
        return found

    def _programs_of(self, candidates: Candidates) -> dict[str, str]:
        """A hash of what each program that was built communicates."""
        built = {one.program: one.collectives for one in candidates if one is not None}
        return {program_of(None): self._communicated, **built}

    def close(self) -> None:
        """Ends the process that planned."""
        self._closed = True
        if self._case is not None:
            self._planner.close()


def _beside(one: OfferedPlan, base: int) -> OfferedPlan:
    """A plan as a purchase beside a candidate of the search."""
    assert one.timed.purchase is not None
    purchase = dataclasses.replace(one.timed.purchase, beside=base)
    timed = dataclasses.replace(one.timed, purchase=purchase)
    return dataclasses.replace(one, timed=timed)


def give_way() -> None:
    """Gives this thread a low priority, and what it starts."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
    except (OSError, AttributeError) as error:
        LOG.debug("planning has the job's own priority: %s", error)
