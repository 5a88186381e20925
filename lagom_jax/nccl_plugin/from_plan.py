"""From a plan's settings to rules for NCCL's tuner plugin.

Where all calls of one size have one setting the plan alone gives the rules. Otherwise
the place of each call in a step decides, and so the program is needed too.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.cost.span import span_of
from lagom_jax.errors import TunerError
from lagom_jax.hlo.collective import Collective
from lagom_jax.nccl_plugin.rules import Answer, Place, Rule, Rules, Scope
from lagom_jax.nccl_plugin.windows import different, unique_windows
from lagom_jax.plan import Call, Cap, Plan, Setting
from lagom_jax.plan.setting import REDUCING
from lagom_jax.program.program import Block, Branch, Launch, Loop, Program, Run
from lagom_jax.settings.calls import calls_of

LONGEST_SEQUENCE: Final = 20_000
"""Calls of a communicator in a step; a longer one is not followed."""
_BROADCAST: Final = "collective-broadcast"
_Shape: TypeAlias = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """The rules of a plan."""

    rules: Rules
    notes: tuple[str, ...]
    """Parts of the plan that rules cannot express, with the reasons."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A collective that NCCL asks its tuner about."""

    name: str
    shape: _Shape
    """Ranks and domains."""
    members: bytes
    """The members of its communicator."""
    calls: tuple[Call, ...]
    answer: Answer | None


def rules_by_size(plan: Plan) -> Rules | None:
    """The rules that make NCCL do what a plan says, from the plan alone.

    Args:
        plan: The plan; its caps are XLA's business.

    Returns:
        Rules; None where only `rules_of` can make them: what the plan says is about
        places in the program, or calls of one size have different settings, or the
        plan is of an older format that does not say how many operands calls have.
    """
    calls = _calls_of_plan(plan)
    if calls is None:
        return None
    answers = {
        call: {_answer(*choice) for choice in choices}
        for call, choices in calls.items()
    }
    if any(len(several) > 1 for several in answers.values()):
        return None
    return _by_size({call: answer for call, (answer,) in answers.items()})


def nearest_rules(plan: Plan) -> Compiled | None:
    """Rules from the plan alone that give calls of one size what they share.

    NCCL divides channels among operands and does not show them to its tuner. Calls of
    one size and one setting, but with different numbers of operands, all get the
    channels of those with the most operands: fewer than the plan has for the others.

    Args:
        plan: The plan; its caps are XLA's business.

    Returns:
        The rules, and a note for each such size; None where `rules_by_size` has
        another reason to have none.
    """
    calls = _calls_of_plan(plan)
    if calls is None:
        return None
    answers: dict[Call, Answer] = {}
    notes: list[str] = []
    for call, choices in sorted(calls.items()):
        if len({setting for setting, _ in choices}) > 1:
            return None
        ((setting, most), *others) = sorted(choices, key=lambda choice: -choice[1])
        answers[call] = _answer(setting, most)
        if others:
            notes.append(
                f"{call}: collectives with different numbers of operands make such "
                f"calls, and all run with {answers[call].channels} channels for each "
                "operand"
            )
    return Compiled(_by_size(answers), tuple(notes))


def _calls_of_plan(plan: Plan) -> dict[Call, set[tuple[Setting, int]]] | None:
    """Settings and numbers of operands by call; None where the plan does not tell."""
    found: defaultdict[Call, set[tuple[Setting, int]]] = defaultdict(set)
    for one in plan.settings:
        if isinstance(one.setting, Cap):
            continue
        if plan.controls.tells_apart == "places" or not one.calls:
            return None
        for call in one.calls:
            if call.operands is None:
                return None
            found[call].add((one.setting, call.operands))
    return dict(found)


def _by_size(answers: Mapping[Call, Answer]) -> Rules:
    return Rules(
        tuple(
            Scope(
                ranks,
                domains=domains,
                rules=tuple(
                    _rule(call, answers[call])
                    for call in sorted(answers)
                    if (call.ranks, call.domains) == (ranks, domains)
                ),
            )
            for ranks, domains in sorted({(c.ranks, c.domains) for c in answers})
        )
    )


def _rule(call: Call, answer: Answer) -> Rule:
    return Rule(call.function, call.bytes, call.bytes, answer)


def rules_of(plan: Plan, program: Program, cluster: Cluster) -> Compiled:
    """The rules that make NCCL do what a plan says.

    Calls that all have one answer get a rule for their size. Where two collectives of
    one size are told different things, the communicators that run them are followed
    through the sequence of their calls.

    Args:
        plan: The plan; its caps are XLA's business.
        program: The step as the plan makes it.
        cluster: What it runs on.

    Example:
        >>> from lagom_jax.program.program import Program
        >>> from lagom_jax.plan import load
        >>> rules_of(load("plan.json"), Program("p", (), 8), Cluster.parse("h100:1x8"))
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: cannot read the plan plan.json: ...
    """
    told = {
        site: setting
        for one in plan.settings
        if not isinstance(setting := one.setting, Cap)
        for site in one.sites
    }
    sites = {
        id(found): site
        for found, _, _ in program.collectives()
        if (site := _site(found, cluster, told.get(found.name))) is not None
    }
    notes = [
        f"{name} is told something, but NCCL asks no tuner about it here"
        for name in sorted(told.keys() - {site.name for site in sites.values()})
    ]
    scopes: list[Scope] = []
    for shape in sorted({site.shape for site in sites.values()}):
        here = [site for site in sites.values() if site.shape == shape]
        by_call = _answers(here)
        split = {call for call, answers in by_call.items() if len(answers) > 1}
        rules = tuple(
            _rule(call, answer)
            for call, answers in sorted(by_call.items())
            if call not in split and (answer := answers[0]) is not None
        )
        sequences, doubts = _sequences(program, sites, here, split)
        notes += doubts
        if rules or sequences:
            ranks, domains = shape
            scopes.append(
                Scope(ranks, domains=domains, rules=rules, sequences=sequences)
            )
    return Compiled(Rules(tuple(scopes)), tuple(notes))


def _site(found: Collective, cluster: Cluster, told: Setting | None) -> _Site | None:
    span = span_of(found.groups, cluster)
    if found.kind not in REDUCING or found.one_shot_kernel or span.size == 1:
        return None
    answer = None if told is None else _answer(told, len(found.operands))
    return _Site(
        found.name,
        (span.size, span.domains),
        found.groups.communicator,
        calls_of(found, span),
        answer,
    )


def _answer(told: Setting, operands: int) -> Answer:
    # NCCL gives each operand of a group so many channels, and adds them up.
    channels = max(1, told.channels // max(1, operands))
    return Answer(told.algorithm, told.protocol, channels, told.chunk_bytes)


def _answers(sites: Sequence[_Site]) -> dict[Call, list[Answer | None]]:
    found: defaultdict[Call, list[Answer | None]] = defaultdict(list)
    for site in sites:
        for call in site.calls:
            if site.answer not in found[call]:
                found[call].append(site.answer)
    return found


def _sequences(
    program: Program,
    sites: dict[int, _Site],
    here: Sequence[_Site],
    split: set[Call],
) -> tuple[tuple[tuple[Place, ...], ...], list[str]]:
    """The sequences of those communicators whose equal calls have unequal answers."""
    followed = list(
        dict.fromkeys(site.members for site in here if not split.isdisjoint(site.calls))
    )
    found: list[tuple[Place, ...]] = []
    broadcasts = {
        found.groups.communicator
        for found, _, _ in program.collectives()
        if found.kind == _BROADCAST
    }
    try:
        if not broadcasts.isdisjoint(followed):
            raise TunerError("broadcasts stand between them, which NCCL may ask about")
        for members in followed:
            places: list[Place] = []
            for site in _executed(program.body, sites, members):
                for call in site.calls:
                    answer = site.answer if call in split else None
                    places.append(Place(call.function, call.bytes, answer))
                if len(places) > LONGEST_SEQUENCE:
                    raise TunerError(
                        f"a communicator makes more than {LONGEST_SEQUENCE} calls in a "
                        "step"
                    )
            found.append(tuple(places))
        unique_windows(different(tuple(found)))
    except TunerError as error:
        sizes = ", ".join(map(str, sorted(split)))
        return (), [f"left to NCCL, since they cannot be told apart: {sizes} ({error})"]
    return tuple(found), []


def _executed(block: Block, sites: dict[int, _Site], members: bytes) -> Iterator[_Site]:
    """A communicator's collectives in the order in which a step runs them.

    Raises:
        TunerError: The program decides as it runs.
    """
    for node in block:
        if isinstance(node, Run | Launch):
            site = sites.get(id(node.task))
            if site is not None and site.members == members:
                yield site
        elif isinstance(node, Loop):
            body = list(_executed(node.body, sites, members))
            if body and not node.trips_known:
                raise TunerError(f"how often the loop {node.name} runs is not known")
            for _ in range(node.trips if body else 0):
                yield from body
        elif isinstance(node, Branch):
            for arm in node.arms:
                if any(True for _ in _executed(arm, sites, members)):
                    raise TunerError(f"which arm of {node.name} runs is not known")
