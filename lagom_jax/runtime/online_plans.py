"""Candidates for a job that is tuned while it trains: found once, built by all."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, LagomError, PlanError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.online.belief import StepCandidate
from lagom_jax.plan import Plan, from_json, to_json
from lagom_jax.runtime import decision, say
from lagom_jax.runtime.agenda import OnlineCandidate
from lagom_jax.runtime.cache import Cache, digest_of
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.decision import Case, Choice, decide, program_of
from lagom_jax.runtime.executables import Executables
from lagom_jax.runtime.planned_beside import PlannerBeside, TimedPlan
from lagom_jax.runtime.planning_process import MODULE
from lagom_jax.runtime.programs import Built, Stages, collectives_of
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_profile import StepProfile
from lagom_jax.typed_json import plain, typed

MOST: Final = 6
"""Alternatives that are built, beside the plan; those that share a program with
another one cost nothing."""
_LOW_PRIORITY: Final = 10
AS_IT_WAS: Final = "the step as it was"


def measured_before(
    talk: Talk,
    cache: Cache,
    case_of: Callable[[Compiler], Case],
    build: Callable[[Plan], Built],
    tell: Callable[[Rules | None], None],
) -> Choice | None:
    """The plan that an earlier job has measured, built in all processes.

    It is looked for before the first step; where nothing was ever measured, that costs
    one round and a look into a folder.

    Args:
        talk: The processes that run the step.
        cache: Where decisions are kept.
        case_of: The step as planning has it.
        build: Builds a plan's program here.
        tell: Lets rules of NCCL hold in all processes.

    Returns:
        None where there is none, or not all could build it.

    Raises:
        InDoubtError: This process cannot know what the others run.
    """
    try:
        known = talk.agree(
            Word("before"),
            lambda words: "measured" if cache.has_measured() else "",
            binding=False,
        )
        if not known:
            return None
        with Compiler(store=cache.folder is not None) as compiler:

            def case() -> Case:
                return dataclasses.replace(case_of(compiler), measured_only=True)

            return decide(case, talk, build, tell)
    except InDoubtError:
        raise
    except LagomError as error:
        LOG.debug("nothing that was measured before runs: %s", error)
        return None


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
        self._known: dict[str, str] = {}
        """A hash of what each program that was built communicates."""
        self._case: Case | None = None
        self._planner: PlannerBeside | None = None
        self._parts: Mapping[str, str] = {}
        self._closed = False

    def find(self) -> list[OnlineCandidate]:
        """Finds what a job could run, and builds it in every process.

        Returns:
            The program as it was, the plan that was decided on, and its alternatives:
            the same in all processes.

        Raises:
            RefusedError: All processes leave the step as it is.
            InDoubtError: This process cannot know what the others have built.
            LagomError: There is no plan, where there is but one process.
        """
        with Compiler(store=self._cache.folder is not None) as compiler:
            return self._found(functools.partial(self._made, compiler))

    def _made(self, compiler: Compiler) -> Case:
        """The step as planning has it, with a profile of it, if there is one."""
        self._case = case = self._case_of(compiler)
        assert isinstance(case.planner, PlannerBeside)
        self._planner = case.planner
        if self._closed:
            self.close()
        profile = self._profile.folder if self._profile is not None else None
        if profile is not None:
            (profile / MODULE).write_text(self._first.text(), encoding="utf-8")
            self._planner.profile = profile
        return case

    def _found(self, case_of: Callable[[], Case]) -> list[OnlineCandidate]:
        give_way()
        try:
            choice = decide(case_of, self._talk, self._built, lambda rules: None)
        finally:
            if self._profile is not None:
                self._profile.forget()
        case, planner = self._case, self._planner
        assert case is not None
        assert planner is not None
        if planner.calibrated:
            say.visibly(planner.calibrated)
        offers = functools.partial(_offered, case, planner.timed, choice)
        content = self._talk.agree(
            Word("alternatives"), lambda words: offers(), binding=False
        )
        offered = json.loads(content)
        usual = typed(StepCandidate, offered["usual"])
        found = [self._candidate(one, case, choice) for one in offered["plans"]]
        own = [one.choice.collectives if one and one.choice else "" for one in found]
        content = self._talk.agree(Word("built", json.dumps(own)), _built_by_all)
        alike = json.loads(content)
        kept = [one for one, by_all in zip(found, alike, strict=True) if by_all and one]
        self._parts = choice.parts if choice is not None else {}
        # Settings may be all that is worth changing.
        communicated = collectives_of(self._first.text())
        self._known.setdefault(program_of(None), communicated)
        return [OnlineCandidate(None, usual), *kept]

    def around(self, candidates: list[OnlineCandidate], base: int) -> str:
        """Settings around those of a candidate, as text; empty where there are none.

        Only NCCL's settings differ, which go through the tuner's control page: all
        processes have their program already.
        """
        case, planner, choice = self._case, self._planner, candidates[base].choice
        # Where NCCL has no tuner, settings are options of the compiler.
        if not case or not planner or self._parts.get("controls") != "tuner":
            return ""
        found = planner.around(None if choice is None else choice.plan)
        plans = [
            _told(one, to_json(one.plan), _rules(case, one.plan))
            for one in found
            if program_of(one.plan) in self._known
            and not case.cache.ended_a_job(one.plan)
        ]
        for one in plans:
            one["timed"]["purchase"]["beside"] = base
        return json.dumps({"plans": plans}) if plans else ""

    def taken(
        self, candidates: list[OnlineCandidate], text: str
    ) -> list[OnlineCandidate]:
        """The candidates of such a text.

        Raises:
            LagomError: One of them cannot run here without a compile.
        """
        assert self._case is not None
        found: list[OnlineCandidate] = []
        for one in json.loads(text)["plans"]:
            plan = from_json(one["plan"], "settings of the first process")
            collectives = self._known.get(program_of(plan))
            if collectives is None:
                name = one["timed"]["name"]
                raise PlanError(f"the program of {name} is not built here")
            found.append(_candidate_of(one, plan, collectives, self._parts))
        return found

    def close(self) -> None:
        """Ends the process that planned, and forgets the profile."""
        self._closed = True
        if self._planner is not None:
            self._planner.close()

    def _built(self, plan: Plan) -> Built:
        built = self._programs.build(self._first, plan)
        self._known[program_of(plan)] = built.collectives
        return built

    def _candidate(
        self, offered: Mapping[str, Any], case: Case, choice: Choice | None
    ) -> OnlineCandidate | None:
        """An alternative, built here; None where that cannot be."""
        if not offered["plan"]:
            return OnlineCandidate(choice, typed(StepCandidate, offered["timed"]))
        assert choice is not None
        try:
            plan = from_json(offered["plan"], "a plan of the first process")
            decision.check_plan(plan, case)
            collectives = self._built(plan).collectives
            return _candidate_of(offered, plan, collectives, choice.parts)
        except Exception as error:
            LOG.info("%s is not built: %s", offered["timed"]["name"], error)
            return None


def _candidate_of(
    offered: Mapping[str, Any], plan: Plan, collectives: str, parts: Mapping[str, str]
) -> OnlineCandidate:
    """An alternative with the rules that the first process made for it."""
    timed = typed(StepCandidate, offered["timed"])
    rules = decision.rules_in(offered["rules"])
    return OnlineCandidate(Choice(plan, rules, collectives, timed.name, parts), timed)


def _rules(case: Case, plan: Plan) -> str:
    """A plan's rules, where NCCL can be told; empty text where there are none."""
    tells = case.nccl is not None and not case.nccl.objection()
    return decision.rules_image(case, plan) if tells else ""


def give_way() -> None:
    """Gives this thread a low priority, and what it starts."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
    except (OSError, AttributeError) as error:
        LOG.debug("planning has the job's own priority: %s", error)


def _offered(case: Case, timed: tuple[TimedPlan, ...], choice: Choice | None) -> str:
    """Alternatives, as the first process offers them."""
    plans: list[dict[str, Any]] = []
    usual = StepCandidate(AS_IT_WAS, 0.0)
    if choice is not None:
        parts = choice.plan.evidence
        usual = StepCandidate(AS_IT_WAS, parts.default.step_seconds)
        # Of one that was kept nobody here knows what other models say.
        alone = StepCandidate("the plan", parts.tuned.step_seconds)
        same = [one for one in timed if _same(one.plan, choice.plan)]
        plans.append(_told(same[0] if same else TimedPlan(choice.plan, alone)))
        others = [one for one in timed[1:] if one not in same]
        for one in others[:MOST] if choice.parts else ():
            if not case.cache.ended_a_job(one.plan):
                plans.append(_told(one, to_json(one.plan), _rules(case, one.plan)))
    if timed:
        usual = dataclasses.replace(timed[0].timed, name=AS_IT_WAS)
    return json.dumps({"plans": plans, "usual": plain(usual)})


def _told(one: TimedPlan, plan: str = "", rules: str = "") -> dict[str, Any]:
    return {"plan": plan, "rules": rules, "timed": plain(one.timed)}


def _same(one: Plan, other: Plan) -> bool:
    return digest_of(one) == digest_of(other)


def _built_by_all(words: tuple[Word, ...]) -> str:
    """For each alternative, whether all have built it, and communicate alike."""
    columns = zip(*(json.loads(word.own) for word in words), strict=True)
    return json.dumps([len(set(one)) == 1 and bool(one[0]) for one in columns])
