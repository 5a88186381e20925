"""Settings that all models choose: less expected regret than those of one model."""

import numpy as np
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.plan.interval import drowns, outweighed
from lagom_jax.program.program import Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.controls import named
from lagom_jax.settings.doubt import Doubt, uncorrected
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import replaced
from lagom_jax.settings.robust import robust
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from .programs import matmul, site

CLUSTERS = ("a40-nvlink:2x8", "h100:2x8", "b200:2x8")


def doubted(name):
    """A layer's gather and scatter beside matmuls, thirty-two times."""
    cluster = Cluster.parse(name)
    gather = site(cluster, "all-gather", 80_000_000)
    scatter = site(cluster, "reduce-scatter", 80_000_000)
    body = (
        *(Launch(gather, Stream.COLLECTIVE, 0), Launch(scatter, Stream.COLLECTIVE, 1)),
        *(Run(matmul(4096, 2560, 10240)), Run(matmul(4096, 10240, 2560))),
        Wait((0,)),
        Wait((1,)),
    )
    program = Program("p", (Loop("l", body, 32, True),), cluster.devices)
    models = Ensemble.of(cluster)
    stage = Stage(program, space_of(program, cluster, named("tuner")), models.likeliest)
    return stage, Doubt(stage, uncorrected(models.members))


def gained(cluster):
    """What asking all models gives on average, as a share of the step."""
    stage, doubt = doubted(cluster)
    found = Lagom().choose(stage)
    before, after = (
        np.array(doubt.step_seconds(decided.choice))
        for decided in (doubt.settled(found, drowns), doubt.decided(found))
    )
    return float(np.mean(1 - after / before))


def test_it_costs_less_on_average_than_what_one_model_finds():
    gains = [gained(cluster) for cluster in CLUSTERS]
    assert min(gains) >= 0
    assert max(gains) > 5e-3


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_it_takes_is_worth_what_it_may_cost(cluster):
    stage, doubt = doubted(cluster)
    choice = robust(stage, doubt.stages, Lagom().choose(stage)).choice
    with_it = doubt.step_seconds(choice)
    for group, candidate in enumerate(choice):
        if candidate:
            without = doubt.step_seconds(replaced(choice, group, 0))
            gains = [b - a for b, a in zip(without, with_it, strict=True)]
            assert not outweighed(gains, stage.score(choice).step_seconds)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_all_settings_together_do_not_drown(cluster):
    stage, doubt = doubted(cluster)
    choice = doubt.decided(Lagom().choose(stage)).choice
    usual = stage.untouched
    pairs = zip(doubt.step_seconds(usual), doubt.step_seconds(choice), strict=True)
    gains = [before - after for before, after in pairs]
    assert choice == usual or not drowns(gains, stage.score(usual).step_seconds)


def test_of_one_model_alone_nothing_is_asked():
    stage, _ = doubted("h100:2x8")
    found = Lagom().choose(stage)
    assert robust(stage, (), found) is found
