"""The steps drawn by lot: each can be built, whatever the release."""

import pytest
import unseen_steps

import lagom_models
from lagom_jax.cluster import Cluster


@pytest.mark.parametrize("release", ["0.1.0", "0.2.0", "1.0.0"])
def test_each_can_be_built(release):
    for found in unseen_steps.all_drawn(release, 2):
        assert len(found) == unseen_steps.DRAWN
        for model, cluster, asked in found.values():
            lagom_models.build(model, devices=Cluster.parse(cluster).devices, **asked)


def test_what_was_planned_on_before_is_not_drawn():
    every = unseen_steps.all_drawn("0.1.0", 5)
    steps = [(m, c, a["parallelism"]) for draw in every for m, c, a in draw.values()]
    assert len({name for draw in every for name in draw}) == len(steps)
    for number, draw in enumerate(every):
        before = {*steps[: number * unseen_steps.DRAWN]}
        before |= unseen_steps.DEVELOPED_BESIDE
        assert not before & {(m, c, a["parallelism"]) for m, c, a in draw.values()}


def test_what_is_planned_for_is_the_last_draw():
    *before, last = unseen_steps.all_drawn(unseen_steps.RELEASE, unseen_steps.DRAWS)
    assert last == unseen_steps.UNSEEN
    assert not unseen_steps.UNSEEN.keys() & {name for draw in before for name in draw}
