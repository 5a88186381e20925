"""Orders under several models at once: what they are worth, and where one is found."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.replay import replay
from lagom_jax.order.find import find_order
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.robust_order import ModelBeside, robust_order
from lagom_jax.order.robust_replay import RobustReplay, StepBeside, worth
from lagom_jax.order.splices import shifted
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import named

from ..depth import slow_examples
from .modules import (
    H100,
    MODEL,
    descent_parts,
    gather,
    gathered,
    matmul,
    program_in,
    steps,
)
from .modules import module as made_of

FEW = slow_examples(8, 100)
OTHER = Ensemble.of(H100, members=3).members[0]
CONTROLS = named("tuner")


@FEW
@given(steps(), st.data())
def test_what_a_change_is_worth_is_what_it_is_worth_once_it_is_made(lines, data):
    builder = Builder(made_of(*lines))
    stage, sequence, terms = descent_parts(builder)
    other = Terms(stage.under(OTHER), stage.untouched)
    order = sequence.given

    def alone(order):
        return [IncrementalReplay(sequence, one, order) for one in (terms, other)]

    def of(order):
        times = [replay.seconds for replay in alone(order)]
        shares = [
            (7 * own + 1e-3) / limit for own, limit in zip(times, limits, strict=True)
        ]
        return worth(shares)

    # By one model there is room, and by the other none.
    limits = [
        factor * (7 * one.seconds + 1e-3)
        for factor, one in zip((1.5, 0.99), alone(order), strict=True)
    ]
    steps_now = [
        StepBeside(7 * one.seconds + 1e-3, limit)
        for one, limit in zip(alone(order), limits, strict=True)
    ]
    robust = RobustReplay(alone(order), steps_now, 7)
    assert robust.seconds == pytest.approx(of(order))
    places = st.integers(0, len(order) - 1)
    for _ in range(6):
        splice = shifted(sequence.units, order, data.draw(places), data.draw(places))
        after = of(splice.applied(order))
        assert robust.seconds_with((splice,)) == pytest.approx(after)
        # What is no better than a limit is none, wherever that was seen.
        assert robust.seconds_with((splice,), after * (1 - 1e-9)) == float("inf")
        assert robust.seconds_with((splice,), after * (1 + 1e-6)) == pytest.approx(
            after
        )
        if data.draw(st.booleans()):
            order = splice.applied(order)
            assert robust.take((splice,)) == pytest.approx(after)
            assert tuple(robust.order) == order


def test_settings_are_the_same_for_all_models():
    """What one search sets is set in the terms that follow, and its price with it."""
    builder = Builder(late()[0])
    stage, sequence, terms = descent_parts(builder)
    other = Terms(stage.under(OTHER), stage.untouched)
    terms.followers = (other,)
    order = sequence.given
    replays = [IncrementalReplay(sequence, one, order) for one in (terms, other)]
    site = stage.space.groups[0].sites[0]
    for candidate in range(1, len(stage.space.groups[0].candidates)):
        terms.choose(0, candidate)
        assert other.choice == terms.choice
        prices = [replay.task_seconds(site) for replay in replays]
        assert (
            prices[1] == stage.under(OTHER).collective_terms(site, candidate)[0].seconds
        )
        assert prices[0] != prices[1]


def seconds(made, ordering, model):
    return replay(program_in(made, ordering), model, model.contention()).step_seconds


def late():
    """A step whose all-gathers begin late, and the order that XLA gave it."""
    made = made_of(
        matmul("a", "p0", "p1"),
        matmul("b", "a", "p1"),
        gather("start", "q0"),
        gathered("done", "start"),
        matmul("c", "b", "done"),
        gather("again", "q1"),
        gathered("again.done", "again"),
        matmul("use", "c", "again.done"),
        "ROOT end = () tuple()",
    )
    given = find_order(made, H100, MODEL, controls=CONTROLS, evaluations=0)
    return made, dataclasses.replace(given, sequences={})


def looked_for(made, begin, limits, evaluations=2000):
    models = [
        ModelBeside(model, lambda prices: prices, limit)
        for model, limit in zip((MODEL, OTHER), limits, strict=True)
    ]
    return robust_order(
        made, H100, models, begin, controls=CONTROLS, evaluations=evaluations
    )


def test_a_step_is_behind_by_no_model_where_an_order_lets_it():
    made, begin = late()
    known = find_order(made, H100, MODEL, controls=CONTROLS, evaluations=2000)
    limits = [1.001 * seconds(made, known, model) for model in (MODEL, OTHER)]
    before = [seconds(made, begin, model) for model in (MODEL, OTHER)]
    assert all(time > limit for time, limit in zip(before, limits, strict=True))
    found = looked_for(made, begin, limits)
    after = [seconds(made, found, model) for model in (MODEL, OTHER)]
    assert all(time <= limit for time, limit in zip(after, limits, strict=True))
    assert looked_for(made, begin, limits).sequences == found.sequences


def test_a_search_begins_where_another_has_ended():
    """Without an evaluation its order is the answer, to the last instruction."""
    made, _ = late()
    known = find_order(made, H100, MODEL, controls=CONTROLS, evaluations=2000)
    assert known.sequences
    same = looked_for(made, known, (1.0, 1.0), evaluations=0)
    assert same.sequences == known.sequences
    assert seconds(made, same, MODEL) == pytest.approx(seconds(made, known, MODEL))


def test_those_are_asked_that_find_the_beginning_furthest_behind(monkeypatch):
    """Of three, with room for one beside the likeliest."""
    made, begin = late()
    others = Ensemble.of(H100, members=3).members
    limits = [
        factor * seconds(made, begin, model)
        for factor, model in zip((2, 0.5, 1), others, strict=True)
    ]
    asked = []
    models = [
        ModelBeside(model, lambda prices: prices, limit)
        for model, limit in zip((MODEL, *others), (1.0, *limits), strict=True)
    ]
    real = RobustReplay.__init__

    def noted(self, replays, steps, times_run):
        asked.append([step.limit for step in steps])
        real(self, replays, steps, times_run)

    monkeypatch.setattr(RobustReplay, "__init__", noted)
    robust_order(made, H100, models, begin, controls=CONTROLS, evaluations=9, most=1)
    assert asked
    assert all(one == [1.0, limits[1]] for one in asked)
