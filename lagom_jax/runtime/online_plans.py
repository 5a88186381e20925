"""Candidates for a job that is tuned while it trains: found once, built by all."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from lagom_jax.compile import Compiler
from lagom_jax.nccl_plugin import Rules, unpack
from lagom_jax.online.belief import StepCandidate
from lagom_jax.plan import Plan, from_json, to_json
from lagom_jax.runtime import decision
from lagom_jax.runtime.cache import Cache, digest_of
from lagom_jax.runtime.coordination import ProcessGroup, Talk, told
from lagom_jax.runtime.decision import Case, Choice, decide
from lagom_jax.runtime.online import OnlineCandidate, OnlineSteps
from lagom_jax.runtime.planned_beside import PlannerBeside, TimedPlan
from lagom_jax.runtime.programs import ArgumentForm, Built
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG

MOST: Final = 6
"""Alternatives that are built, beside the plan; those that share a program with
another one cost nothing."""
_LOW_PRIORITY: Final = 10
AS_IT_WAS: Final = "the step as it was"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ProgramsOfStep:
    """The means to build the programs of a step in this process."""

    usual: Callable[[Any], Built]
    """The program as it was, for a kind of arguments."""
    planned: Callable[[Plan], Built]
    """Builds that of a plan, for the arguments of the first step."""
    again: Callable[[Choice, Any], Built]
    """Builds that of a plan which all processes have built, for other arguments."""
    first: ArgumentForm
    """The arguments of the first step."""


def online_steps(
    name: str,
    group: ProcessGroup,
    patience: float,
    cache: Cache,
    case_of: Callable[[Compiler], Case],
    programs: ProgramsOfStep,
    tell: Callable[[Rules | None], None],
    warn: Callable[[BaseException], None],
) -> tuple[Talk, OnlineSteps]:
    """The steps of a program that is tuned while it trains.

    Args:
        name: The step's.
        group: The processes that run it.
        patience: For how many seconds they wait for each other.
        cache: Where decisions are kept.
        case_of: The step as planning has it; called in a thread.
        programs: Builds its programs.
        tell: Lets rules of NCCL hold in all processes.
        warn: Says why nothing comes of it.

    Returns:
        The rounds in which its steps are agreed on, and the steps.
    """
    talk = group.begin(name, patience)

    def work() -> list[OnlineCandidate]:
        with Compiler(store=cache.folder is not None) as compiler:
            try:
                case = case_of(compiler)
            except Exception as error:
                # The others are not to wait for this process.
                if group.coordinator is not None:
                    word = Word("", told(error), refuses=True)
                    talk.agree(word, lambda words: "")
                raise
            return online_candidates(case, talk, programs.planned)

    def build(choice: Choice | None, form: Any) -> Built:
        if choice is None:
            return programs.usual(form)
        if form is programs.first:
            return choice.built
        return programs.again(choice, form)

    meetings = group.begin(f"{name} steps", patience)
    steps = OnlineSteps(name, meetings, work, build, tell, cache, warn)
    return meetings, steps


def online_candidates(
    case: Case, talk: Talk, build: Callable[[Plan], Built]
) -> list[OnlineCandidate]:
    """Finds what a job could run, and builds it in every process.

    Args:
        case: The step.
        talk: The processes that run it.
        build: Builds a plan's program here.

    Returns:
        The program as it was, the plan that was decided on, and its alternatives: the
        same in all processes.

    Raises:
        RefusedError: All processes leave the step as it is.
        InDoubtError: This process cannot know what the others have built.
        LagomError: There is no plan, where there is but one process.
    """
    give_way()
    programs: dict[str, Built] = {}

    def built(plan: Plan) -> Built:
        key = repr((sorted(plan.compiler_options().items()), plan.order))
        if key not in programs:
            programs[key] = build(plan)
        return programs[key]

    choice = decide(case, talk, built, lambda rules: None)
    content = talk.agree(
        Word("alternatives"), lambda words: _offered(case, choice), binding=False
    )
    offered = json.loads(content)
    usual = StepCandidate(AS_IT_WAS, offered["seconds"], tuple(offered["by_model"]))
    found: list[OnlineCandidate | None] = [
        _candidate(one, case, choice, built) for one in offered["plans"]
    ]
    own = [_communicates(one) for one in found]
    content = talk.agree(Word("built", json.dumps(own)), _built_by_all)
    alike = json.loads(content)
    kept = [one for one, by_all in zip(found, alike, strict=True) if by_all and one]
    return [OnlineCandidate(None, usual), *kept]


def give_way() -> None:
    """Gives this thread a low priority, and what it starts."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
    except (OSError, AttributeError) as error:
        LOG.debug("planning has the job's own priority: %s", error)


def _communicates(one: OnlineCandidate | None) -> str:
    """A hash of what a built candidate communicates; empty where it is not built."""
    if one is None or one.choice is None:
        return ""
    return one.choice.built.collectives


def _offered(case: Case, choice: Choice | None) -> str:
    """Alternatives, as the first process offers them."""
    planner = case.planner
    timed = planner.timed if isinstance(planner, PlannerBeside) else ()
    plans: list[dict[str, Any]] = []
    if choice is not None:
        known = next((t for t in timed if _same(t.plan, choice.plan)), None)
        plans.append({"plan": "", **_timed(known or _alone(choice.plan))})
    others = [t for t in timed[1:] if choice is None or not _same(t.plan, choice.plan)]
    parts = choice.parts if choice is not None else {}
    for one in others[:MOST] if parts else ():
        if case.cache.ended_a_job(one.plan):
            continue
        plans.append({"plan": to_json(one.plan), "rules": "", **_timed(one)})
        if case.nccl is not None and not case.nccl.objection():
            plans[-1]["rules"] = decision._image(case, one.plan)  # pyright: ignore
    if timed:
        first = timed[0].timed
        usual = {"seconds": first.seconds, "by_model": first.by_model}
    else:
        seconds = 0.0 if choice is None else _default_seconds(choice.plan)
        usual = {"seconds": seconds, "by_model": ()}
    return json.dumps({"plans": plans, **usual})


def _timed(one: TimedPlan) -> dict[str, Any]:
    timed = one.timed
    return {"name": timed.name, "seconds": timed.seconds, "by_model": timed.by_model}


def _alone(plan: Plan) -> TimedPlan:
    """A plan of which nobody here knows what other models say."""
    return TimedPlan(plan, StepCandidate("the plan", plan.evidence.tuned.step_seconds))


def _default_seconds(plan: Plan) -> float:
    return plan.evidence.default.step_seconds


def _same(one: Plan, other: Plan) -> bool:
    return digest_of(one) == digest_of(other)


def _candidate(
    offered: Mapping[str, Any],
    case: Case,
    choice: Choice | None,
    build: Callable[[Plan], Built],
) -> OnlineCandidate | None:
    """An alternative, built here; None where that cannot be."""
    timed = StepCandidate(
        offered["name"], offered["seconds"], tuple(offered["by_model"])
    )
    if not offered["plan"]:
        return OnlineCandidate(choice, timed)
    assert choice is not None
    try:
        plan = from_json(offered["plan"], "a plan of the first process")
        decision._check(plan, case)  # pyright: ignore
        image = base64.b64decode(offered["rules"])
        rules = unpack(image, "what the first process said") if image else None
        made = Choice(plan, rules, build(plan), offered["name"], choice.parts)
    except Exception as error:
        LOG.info("%s is not built: %s", offered["name"], error)
        return None
    return OnlineCandidate(made, timed)


def _built_by_all(words: tuple[Word, ...]) -> str:
    """For each alternative, whether all have built it, and communicate alike."""
    columns = zip(*(json.loads(word.own) for word in words), strict=True)
    return json.dumps([len(set(one)) == 1 and bool(one[0]) for one in columns])
