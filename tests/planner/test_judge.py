"""A judge that takes another model of its ensemble for the likeliest."""

from lagom_jax.planner.judge import Judge
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.controls import named

from .fakes import H100, MODULES

PLACE = 3


def times(judge):
    """By the likeliest and by all others, with everything left to NCCL."""
    view = judge.look(Scheduled(MODULES["fast"], H100, "step"))
    doubt = judge.doubt(view.stage, view.policy)
    return view.default_seconds, doubt.step_seconds(view.stage.untouched)


def test_two_models_change_places_and_the_others_stay():
    judge = Judge(H100, named("tuner"))
    likeliest, others = times(judge)
    led, beside = times(judge.led_by(PLACE))
    assert led == others[PLACE] != likeliest
    assert beside[PLACE] == likeliest
    assert [*beside[:PLACE], *beside[PLACE + 1 :]] == [
        *others[:PLACE],
        *others[PLACE + 1 :],
    ]
    assert times(judge.led_by(PLACE).led_by(PLACE)) == (likeliest, others)


def test_orders_are_kept_by_the_model_they_were_found_under():
    judge = Judge(H100, named("tuner"))
    assert judge.led_by(PLACE).model.digest != judge.model.digest
