"""The steps drawn by lot: each can be built, whatever the release."""

import pytest
import unseen_steps

import lagom_models
from lagom_jax.cluster import Cluster


@pytest.mark.parametrize("release", ["0.1.0", "0.2.0", "1.0.0"])
def test_each_can_be_built(release):
    found = unseen_steps.drawn(release, unseen_steps.SEEN)
    assert len(found) == unseen_steps.DRAWN
    for model, cluster, asked in found.values():
        lagom_models.build(model, devices=Cluster.parse(cluster).devices, **asked)


def test_what_was_planned_on_before_is_not_drawn():
    every = unseen_steps.drawn("0.1.0", frozenset())
    seen = frozenset((m, c, a["parallelism"]) for m, c, a in every.values())
    others = unseen_steps.drawn("0.1.0", seen)
    assert not seen & {(m, c, a["parallelism"]) for m, c, a in others.values()}
