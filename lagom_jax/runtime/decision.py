"""The choice of plans for a step, the same in all its processes.

Three rounds, of which the processes learn together how each ended: the first process
offers a plan, and with `verify="online"` its alternatives; all build their programs and
see whether they communicate alike; and where the plan has rules for NCCL, all let them
hold. An order of instructions that is not met where the step runs leads to a second
offer, without one.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lagom_jax.errors import InDoubtError, LagomError, PlanError, RefusedError
from lagom_jax.nccl_plugin import Rules, pack, rules_by_size, rules_of
from lagom_jax.online.belief import StepCandidate
from lagom_jax.plan import Plan, Setting, to_json
from lagom_jax.planner import Request
from lagom_jax.program.build import build_program
from lagom_jax.runtime import say
from lagom_jax.runtime.allowance import ALLOWANCE
from lagom_jax.runtime.cache import Cache, digest_of, was_faster
from lagom_jax.runtime.case import Case
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.offer import Choice, OfferedPlan, PlanOffer
from lagom_jax.runtime.options import plan_given
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.programs import Built
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.typed_json import plain, typed
from lagom_jax.units import counted, in_seconds

MOST: Final = 6
"""Alternatives that are built, beside the plan; those that share a program with
another one cost nothing."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """One decision of all processes of a step."""

    talk: Talk
    """The processes that run it."""
    case_of: Callable[[], Case]
    """The step; fails where this process cannot even say what it is."""
    build: Callable[[Plan], Built]
    """Builds a plan's program here."""
    tell: Callable[[Rules | None], None] = lambda rules: None
    """Lets rules of NCCL hold in all processes."""

    def choices(self) -> tuple[Choice, ...]:
        """Finds or makes plans, and builds their programs in every process.

        Returns:
            The plan, ready to run, and alternatives that all have built; nothing where
            nothing would be gained.

        Raises:
            RefusedError: All processes leave the step as it is.
            InDoubtError: This process cannot know what the others run.
            LagomError: There is no plan, where there is but one process.
        """
        case = functools.cache(self.case_of)
        word, without_order = self.talk.word(lambda: case().word()), False
        while True:
            make = functools.partial(_offer, case, without_order=without_order)
            said = self.talk.agree(word, make, binding=False)
            offer = typed(PlanOffer, json.loads(said))
            plan = offer.plans[0].plan
            if objection := _objection(plan, offer.how):
                if self.talk.group.leads:
                    say.visibly(objection)
                return ()
            try:
                return self._built(case(), offer)
            except (RefusedError, PlanError) as error:
                if plan.order is None or without_order:
                    raise
                LOG.info("the plan's order is left out: %s", error)
                without_order = True

    def measured_before(self, cache: Cache) -> tuple[Choice, ...]:
        """The plan that an earlier job has measured, built in all processes.

        It is looked for before the first step; where nothing was ever measured, that
        costs one round and a look into a folder.

        Args:
            cache: Where decisions are kept.

        Returns:
            Nothing where there is none, or not all could build it.

        Raises:
            InDoubtError: This process cannot know what the others run.
        """

        def case() -> Case:
            return dataclasses.replace(self.case_of(), measured_only=True)

        def known(words: tuple[Word, ...]) -> str:
            return "measured" if cache.has_measured() else ""

        try:
            if not self.talk.agree(Word("before"), known, binding=False):
                return ()
            return dataclasses.replace(self, case_of=case).choices()
        except InDoubtError:
            raise
        except LagomError as error:
            LOG.debug("nothing that was measured before runs: %s", error)
            return ()

    def _built(self, case: Case, offer: PlanOffer) -> tuple[Choice, ...]:
        def choice_of(offered: OfferedPlan, how: str) -> Choice:
            case.check(offered.plan)
            collectives = self.build(offered.plan).collectives
            return offered.choice(collectives, how, offer.parts)

        def alternative(offered: OfferedPlan) -> Choice | None:
            try:
                return choice_of(offered, offered.timed.name)
            except Exception as error:
                LOG.info("%s is not built: %s", offered.timed.name, error)
                return None

        choices: list[Choice | None] = []
        first, *others = offer.plans

        def word() -> Word:
            choices.append(choice_of(first, offer.how))
            choices.extend(map(alternative, others))
            communicated = [one.collectives if one else "" for one in choices]
            return Word(f"collectives {communicated[0]}", json.dumps(communicated))

        by_all = json.loads(self.talk.agree(self.talk.word(word), _built_by_all))
        found = [one for one, all_ in zip(choices, by_all, strict=True) if one and all_]
        self.tell(found[0].rules)
        return tuple(found)


def _objection(plan: Plan, how: str) -> str:
    """The reason why the step as it was is better; empty where it is not."""
    if not plan.levers and not plan.settings:
        return f"{plan.holds_for.program}: nothing would be gained; {how}"
    measured = plan.evidence.measured
    if measured is not None and not measured.kept:
        return "the plan was measured before, and was not faster"
    return ""


def _built_by_all(words: tuple[Word, ...]) -> str:
    """For each plan, whether all have built it, and communicate alike."""
    columns = zip(*(json.loads(word.own) for word in words), strict=True)
    return json.dumps([len(set(one)) == 1 and bool(one[0]) for one in columns])


def _offer(
    case_of: Callable[[], Case], words: tuple[Word, ...], *, without_order: bool
) -> str:
    """A plan and its alternatives, with rules, as the first process offers them."""
    case = case_of()
    objections = [word.own for word in words if word.own]
    for objection in objections[:1]:
        LOG.info("NCCL is told nothing by a tuner: %s", objection)
    controls = "caps" if objections else "tuner"
    levers = case.options.levers
    if without_order:
        levers = tuple(one for one in levers if one not in ("order", "streams"))
    parts, given = case.key(levers, controls), case.options.plan
    if given is not None:
        plan, how = _given(case, parts, given)
    else:
        plan, how = _found(case, parts, levers, controls)
    if case.cache.ended_a_job(plan):
        if plan.order is not None and not without_order:
            return _offer(case_of, words, without_order=True)
        raise PlanError(
            "a job with this plan ended in its first step: it is not tried again. "
            f"Remove {case.cache.mark_of(plan)} to try it"
        )
    plans = tuple(offered(case, one, controls) for one in _alternatives(case, plan))
    return json.dumps(plain(PlanOffer(plans, how, parts)))


def _alternatives(case: Case, plan: Plan) -> list[OfferedPlan]:
    """A plan as all models time it, and others that a job could try instead."""
    planner = case.planner
    timed = planner.timed if isinstance(planner, PlannerBeside) else ()
    found = {digest_of(one.plan): one for one in timed}
    # Of one that was kept nobody here knows what other models say.
    alone = StepCandidate("the plan", plan.evidence.tuned.step_seconds)
    first = found.pop(digest_of(plan), OfferedPlan(to_json(plan), alone))
    usual = timed[0] if timed else None
    others = [one for one in found.values() if one is not usual][:MOST]
    return [first, *(one for one in others if not case.cache.ended_a_job(one.plan))]


def offered(case: Case, one: OfferedPlan, controls: str) -> OfferedPlan:
    """A plan with its rules, as the first process offers it.

    Args:
        case: The step.
        one: The plan without them.
        controls: The means to tell NCCL.
    """
    tells = case.nccl is not None and controls == "tuner"
    rules = rules_image(case, one.plan) if tells else ""
    return dataclasses.replace(one, rules=rules)


def _given(
    case: Case, parts: dict[str, str], given: Plan | str | Path
) -> tuple[Plan, str]:
    """The plan that a user gives, with what earlier jobs have measured of it."""
    plan, how = plan_given(given), "given"
    if not isinstance(given, Plan):
        how = f"from {given}"
    # Beside what is found without it: its times are not those of another plan.
    parts["given"] = digest_of(plan)
    if case.options.verify != "model":
        plan = case.cache.find(parts) or plan
    if case.measured_only and not was_faster(plan):
        raise PlanError("the plan that is given was not measured before")
    return plan, how


def _found(
    case: Case, parts: Mapping[str, str], levers: tuple[str, ...], controls: str
) -> tuple[Plan, str]:
    options = case.options
    plan = case.cache.find(parts, measured_only=case.measured_only)
    if plan is not None:
        try:
            case.check(plan)
        except PlanError as error:
            # Somebody has moved files about, or there is less memory.
            LOG.warning("a decision that was kept is not used: %s", error)
        else:
            return plan, "kept from before"
    if options.mode == "load" or case.measured_only:
        raise PlanError(
            "there is no plan to load: name one (plan=, --lagom_plan), or let one be "
            "made first (mode='tune')"
        )
    with ALLOWANCE.rest_of(case.budget) as budget:
        online = options.verify == "online"
        waits = "the job trains meanwhile" if online else "the step waits for it"
        say.visibly(
            f"planning for {case.planner.cluster.name}: up to "
            f"{counted(budget.compiles, 'compile')}, none begun after "
            f"{in_seconds(budget.seconds)}; {waits}"
        )
        quiet = functools.partial(LOG.debug, "%s")
        plan = case.planner.plan(
            Request(
                levers,
                controls,
                budget,
                deterministic=options.deterministic,
                progress=say.visibly if options.progress else quiet,
            )
        )
    case.cache.keep(parts, plan)
    evidence = plan.evidence
    how = f"{counted(evidence.compiles, 'compile')} in {in_seconds(evidence.seconds)}"
    return plan, how


def rules_image(case: Case, plan: Plan) -> str:
    """The rules for NCCL's tuner plugin, as base64 text; empty where there are none."""
    if not any(isinstance(one.setting, Setting) for one in plan.settings):
        return ""
    rules = rules_by_size(plan)
    if rules is None:
        options = plan.compiler_options()
        scheduled, _ = case.planner.compile(options, plan.order)
        program = build_program(scheduled.module)
        made = rules_of(plan, program, case.planner.cluster)
        for note in made.notes:
            LOG.info("the plan: %s", note)
        rules = made.rules
    return base64.b64encode(pack(rules)).decode()
