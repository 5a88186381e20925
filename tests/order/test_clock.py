"""A replay without books comes to the same end as the one with them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.replay import replay
from lagom_jax.hlo.groups import Groups
from lagom_jax.order.clock import Clock, snapped
from lagom_jax.order.terms import Terms
from lagom_jax.program.program import Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.arms import decided

from ..depth import examples
from ..settings.programs import CLUSTERS, model_of, programs, site, stage_of

# A clock counts in steps of 14 fs.
ROUNDED = 1e-12


def run(actions, now, state):
    """The time and the streams after some actions."""
    for action in actions:
        now, state = action(now, state)
    return now, state


@examples(by_day=50, by_night=1000)
@given(st.data(), st.sampled_from(CLUSTERS))
def test_the_clock_agrees_with_the_replay(data, name):
    cluster = Cluster.parse(name)
    step = decided(data.draw(programs(cluster)), model_of(name))
    stage = stage_of(step, name)
    choice = tuple(
        data.draw(st.integers(0, len(group.candidates) - 1))
        for group in stage.space.groups
    )
    terms = Terms(stage, stage.untouched).under(choice)
    expected = replay(step, terms, terms).totals.step_seconds

    clock = Clock([(node,) for node in step.body], terms)
    stop = data.draw(st.integers(0, len(step.body)))
    now, state = run(clock.actions[:stop], 0.0, clock.idle)
    for _ in range(2):
        end = clock.drain(*run(clock.actions[stop:], now, state))
        assert end == pytest.approx(expected, rel=1e-9, abs=ROUNDED)


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_synchronous_collective_shares_the_link_or_waits_for_its_turn(name, in_turn):
    """As the model itself has it, without terms between."""
    cluster, model = Cluster.parse(name), model_of(name)
    one, other = (site(cluster, "all-gather", 1 << n) for n in (28, 27))
    if not in_turn:
        # In another order, and so with a communicator of its own.
        listed = Groups(other.groups.members[:, ::-1])
        other = dataclasses.replace(other, groups=listed)
    body = (Launch(one, Stream.COLLECTIVE, 1), Run(other), Wait((1,)))
    step = Program("two at once", body, cluster.devices)
    stage = stage_of(step, name)
    terms = Terms(stage, stage.untouched)
    timeline = replay(step, model, model.contention())
    expected = timeline.totals
    alone = model.collective(other).seconds
    assert timeline.tasks[other].seconds == pytest.approx(alone) or not in_turn
    assert timeline.tasks[other].seconds > 1.01 * alone or in_turn
    assert replay(step, terms, terms).totals == expected

    clock = Clock([(node,) for node in body], terms)
    end = clock.drain(*run(clock.actions, 0.0, clock.idle))
    assert end == pytest.approx(expected.step_seconds, rel=1e-9, abs=ROUNDED)


@examples(by_day=20, by_night=400)
@given(st.data(), st.sampled_from(CLUSTERS))
def test_another_choice_changes_what_is_known(data, name):
    cluster = Cluster.parse(name)
    step = decided(data.draw(programs(cluster)), model_of(name))
    # What is inside loops keeps its settings while a clock is in use.
    plain = tuple(node for node in step.body if not isinstance(node, Loop))
    step = dataclasses.replace(step, body=plain)
    stage = stage_of(step, name)
    terms = Terms(stage, stage.untouched)
    clock = Clock([(node,) for node in step.body], terms)
    for group, found in enumerate(stage.space.groups):
        terms.choose(group, data.draw(st.integers(0, len(found.candidates) - 1)))
        fresh = terms.under(terms.choice)
        expected = replay(step, fresh, fresh).totals.step_seconds
        end = clock.drain(*run(clock.actions, 0.0, clock.idle))
        assert end == pytest.approx(expected, rel=1e-9, abs=ROUNDED)


@examples(by_day=20, by_night=400)
@given(st.data(), st.sampled_from(CLUSTERS))
def test_streams_alike_are_equal_however_they_came_about(data, name):
    """From the time of a state on, and from none: the same states to the last bit."""
    cluster = Cluster.parse(name)
    step = decided(data.draw(programs(cluster)), model_of(name))
    terms = Terms(stage_of(step, name), stage_of(step, name).untouched)
    clock = Clock([(node,) for node in step.body], terms)
    stop = data.draw(st.integers(0, len(step.body)))
    now, state = run(clock.actions[:stop], 0.0, clock.idle)
    later = data.draw(st.floats(0.0, 9.0).map(snapped))
    end, after = run(clock.actions[stop:], now, state)
    moved, same = run(clock.actions[stop:], now + later, state)
    assert same == after
    assert same[0] is after[0]
    assert moved == end + later
