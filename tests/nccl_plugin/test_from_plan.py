"""What a plan says of sites becomes rules for the calls that NCCL makes of them."""

import dataclasses

import numpy as np
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.groups import Groups
from lagom_jax.nccl_plugin.from_plan import (
    LONGEST_SEQUENCE,
    nearest_rules,
    rules_by_size,
    rules_of,
)
from lagom_jax.nccl_plugin.reference import ReferenceCommunicator
from lagom_jax.nccl_plugin.rules import Answer, Rule
from lagom_jax.plan import Call, Cap, PlanControls, Setting, SiteSetting
from lagom_jax.program.program import Branch, Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.calls import aggregated
from lagom_jax.settings.controls import named
from lagom_jax.settings.space import space_of

from ..cost.programs import collective
from ..plan.plans import made_by_hand

H100 = Cluster.parse("h100:2x8")
EVERYONE = Groups(np.arange(16).reshape(1, 16))
INSIDE = Groups(np.arange(16).reshape(2, 8))
MIB = 1 << 20


def gather(name, *operands, groups=EVERYONE):
    """Operands of so many bytes; the call has as many for each rank."""
    return dataclasses.replace(
        collective(
            "all-gather",
            operands=tuple(("bf16", n) for n in operands),
            result_bytes=sum(operands) * groups.members.shape[1],
            groups=groups,
        ),
        name=name,
    )


def launch(site):
    return (Launch(site, Stream.COLLECTIVE, 0), Wait((0,)))


def plan(**told):
    """Settings by the names of sites."""
    usual = Setting("ring", "simple", 24, 544, 2097152)
    settings = tuple(
        SiteSetting(
            "all-gather", MIB, 16, 2, (), (name,), usual, Setting.parse(text), "why"
        )
        for name, text in told.items()
    )
    return dataclasses.replace(made_by_hand(), settings=settings)


def compiled(program, **told):
    nodes = tuple(program)
    return rules_of(plan(**told), Program("p", nodes, 16), H100)


def test_a_call_gets_a_rule_for_its_size():
    one, other = gather("one", MIB), gather("other", MIB, groups=INSIDE)
    made = compiled([*launch(one), *launch(other)], one="ring/simple/8/544/1048576")
    (scope,) = made.rules.scopes
    assert (scope.ranks, scope.hosts, scope.domains) == (16, None, 2)
    answer = Answer("ring", "simple", 8, 1048576)
    assert scope.rules == (Rule("all-gather", 16 * MIB, 16 * MIB, answer),)
    assert not scope.sequences
    assert not made.notes


@pytest.mark.parametrize(("operands", "channels"), [(1, 8), (2, 4), (3, 2), (9, 1)])
def test_channels_are_divided_among_operands(operands, channels):
    site = gather("one", *[MIB] * operands)
    made = compiled(launch(site), one="ring/simple/8/544/1048576")
    (rule,) = made.rules.scopes[0].rules
    assert rule.least == 16 * MIB * operands
    assert rule.answer.channels == channels


def test_operands_that_differ_much_are_several_calls():
    site = gather("one", MIB, 5 * MIB)
    made = compiled(launch(site), one="ring/simple/8/544/1048576")
    assert [rule.least for rule in made.rules.scopes[0].rules] == [16 * MIB, 80 * MIB]


def test_sites_of_one_size_are_told_apart_by_their_place():
    first, second, last = gather("a", MIB), gather("b", MIB), gather("c", 2 * MIB)
    loop = Loop("layers", (*launch(first), *launch(second)), 3, True)
    made = compiled(
        [loop, *launch(last)],
        a="ring/simple/4/544/1048576",
        b="ring/simple/6/544/1048576",
        c="ring/ll/2/512/32768",
    )
    one = ReferenceCommunicator(made.rules, ranks=16, hosts=2)
    sizes = [16 * MIB] * 6 + [32 * MIB]
    told = [one.asked("all-gather", nbytes).channels for nbytes in sizes * 2]
    assert told == [4, 6, 4, 6, 4, 6, 2] * 2


def test_a_communicator_is_one_however_its_groups_are_listed():
    turned = Groups(np.arange(16).reshape(2, 8)[::-1])
    told = {"a": "ring/simple/4/544/1048576", "b": "ring/simple/6/544/1048576"}
    mark = gather("c", 2 * MIB, groups=turned)
    first, second = gather("a", MIB, groups=INSIDE), gather("b", MIB, groups=turned)
    made = compiled([*launch(first), *launch(second), *launch(mark)], **told)
    (scope,) = made.rules.scopes
    assert [len(sequence) for sequence in scope.sequences] == [3]


def test_calls_of_mixed_types_come_in_the_order_of_their_largest_operands():
    operands = (("bf16", MIB), ("f32", 2 * MIB), ("s8", MIB // 2))
    assert aggregated(operands) == (2 * MIB, MIB, MIB // 2)


def test_a_communicator_with_broadcasts_is_not_followed():
    told = {"a": "ring/simple/4/544/1048576", "b": "ring/simple/6/544/1048576"}
    broadcast = dataclasses.replace(gather("c", MIB), kind="collective-broadcast")
    nodes = [*launch(gather("a", MIB)), *launch(broadcast), *launch(gather("b", MIB))]
    made = compiled([*nodes, *launch(gather("d", 2 * MIB))], **told)
    assert not made.rules.scopes
    assert "broadcasts stand between them" in made.notes[0]


def test_only_communicators_that_need_it_are_followed():
    told = {"a": "ring/simple/4/544/1048576", "b": "ring/simple/6/544/1048576"}
    elsewhere = gather("c", 3 * MIB, groups=INSIDE)
    mark = gather("d", MIB // 2)
    nodes = [*launch(gather("a", MIB)), *launch(gather("b", MIB)), *launch(mark)]
    made = compiled([*nodes, *launch(elsewhere)], **told)
    assert [len(scope.sequences) for scope in made.rules.scopes] == [1]


def test_what_is_not_the_same_in_every_step_is_left_to_nccl():
    told = {"a": "ring/simple/4/544/1048576", "b": "ring/simple/6/544/1048576"}
    first, second = launch(gather("a", MIB)), launch(gather("b", MIB))
    mark = launch(gather("c", 2 * MIB))
    for program, why in (
        ([Branch("choice", (first, ())), *second], "which arm of choice"),
        ([Loop("unknown", first, 1, False), *second], "how often the loop unknown"),
        ([*first, *second], "say where in its sequence"),
        ([Loop("long", first, LONGEST_SEQUENCE, True), *second, *mark], "more than"),
    ):
        made = compiled(program, **told)
        assert not made.rules.scopes
        assert len(made.notes) == 1
        assert why in made.notes[0]


def test_what_no_tuner_is_asked_about_is_said():
    alone = gather("one", MIB, groups=Groups(np.arange(16).reshape(16, 1)))
    made = compiled([Run(alone)], one="ring/simple/8/544/1048576")
    assert made.notes == (
        "one is told something, but NCCL asks no tuner about it here",
    )


def of_sizes(*settings, apart="sizes"):
    """A plan for all-gathers: calls and settings by pairs."""
    usual = Setting("ring", "simple", 24, 544, 2097152)
    made = tuple(
        SiteSetting("all-gather", MIB, 16, 2, calls, ("a",), usual, setting, "why")
        for calls, setting in settings
    )
    controls = PlanControls("by hand", apart, "made by hand")
    return dataclasses.replace(made_by_hand(), settings=made, controls=controls)


EIGHT = Setting("ring", "simple", 8, 544, 1048576)
FOUR = Setting("ring", "simple", 4, 544, 1048576)


def call(nbytes, operands=1, ranks=16, domains=2):
    return Call("all-gather", ranks, domains, nbytes, operands)


def test_a_plan_alone_gives_the_rules_that_its_program_gives():
    one, other = gather("a", MIB), gather("b", 2 * MIB, 10 * MIB)
    last = gather("c", MIB, groups=INSIDE)
    program = Program("p", (*launch(one), *launch(other), *launch(last)), 16)
    space = space_of(program, H100, named("tuner"))
    settings = tuple(
        SiteSetting(
            "all-gather",
            group.sites[0].bytes,
            16,
            2,
            group.calls,
            tuple(site.name for site in group.sites),
            group.usual[0],
            (EIGHT, FOUR)[number % 2],
            "why",
        )
        for number, group in enumerate(space.groups)
    )
    plan = dataclasses.replace(made_by_hand(), settings=settings)
    alone = rules_by_size(plan)
    with_program = rules_of(plan, program, H100)
    assert len(alone.scopes) == 2
    assert alone == with_program.rules
    assert not with_program.notes


def test_channels_are_divided_among_the_operands_of_a_call():
    rules = rules_by_size(of_sizes(((call(16 * MIB, operands=3),), EIGHT)))
    assert rules.scopes[0].rules[0].answer.channels == 2


@pytest.mark.parametrize(
    "plan",
    [
        of_sizes(((call(MIB),), EIGHT), apart="places"),
        of_sizes(((call(MIB, operands=None),), EIGHT)),
        of_sizes(((call(MIB),), EIGHT), ((call(MIB),), FOUR)),
        of_sizes(((call(MIB, 1), call(MIB, 2)), EIGHT)),
        of_sizes(((), EIGHT)),
    ],
)
def test_what_a_plan_alone_cannot_say_needs_its_program(plan):
    assert rules_by_size(plan) is None


def test_calls_that_differ_only_in_operands_share_the_fewest_channels():
    one, several = call(MIB, 1), call(MIB, 4)
    plan = of_sizes(((one, several, call(2 * MIB)), EIGHT))
    found = nearest_rules(plan)
    channels = {
        rule.least: rule.answer.channels for rule in found.rules.scopes[0].rules
    }
    assert channels == {MIB: 2, 2 * MIB: 8}
    (note,) = found.notes
    assert note.startswith(f"{one}: collectives with different numbers of operands")
    assert "2 channels for each operand" in note


@pytest.mark.parametrize(
    "plan",
    [
        of_sizes(((call(MIB),), EIGHT), apart="places"),
        of_sizes(((call(MIB, operands=None),), EIGHT)),
        of_sizes(((call(MIB),), EIGHT), ((call(MIB),), FOUR)),
        of_sizes(((), EIGHT)),
    ],
)
def test_calls_with_different_settings_have_no_rule_in_common(plan):
    assert nearest_rules(plan) is None


def test_caps_need_no_rules():
    assert not rules_by_size(of_sizes(((), Cap(8)), apart="nothing")).scopes
