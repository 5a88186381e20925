"""The floor is one: no choice of settings makes a step shorter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.program.program import Branch, Launch, Program, Run, Stream, Wait
from lagom_jax.settings.controls import PRESETS
from lagom_jax.settings.exhaustive import Exhaustive
from lagom_jax.settings.floor import floors
from lagom_jax.settings.lagom import Lagom

from ..depth import slow_examples
from .programs import CLUSTERS, matmul, programs, site, stage_of

A40 = "a40-nvlink:2x8"


def floor_of(stage):
    return sum(
        scene.times * least
        for scene, least in zip(stage.scenes, floors(stage), strict=True)
    )


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_choice_is_below_the_floor(cluster):
    @slow_examples(16, 400)
    @given(programs(Cluster.parse(cluster)), st.sampled_from(list(PRESETS)), st.data())
    def holds(step, controls, data):
        stage = stage_of(step, cluster, controls)
        choice = tuple(
            data.draw(st.integers(0, len(group.candidates) - 1))
            for group in stage.space.groups
        )
        least = floor_of(stage)
        assert stage.score(choice).step_seconds >= least * (1 - 1e-9)

    holds()


def test_settings_do_not_decide_which_arm_is_taken():
    """Else a slower all-gather would do: the longest arm would be the shorter step."""
    made = site(Cluster.parse(A40), "all-gather", 1 << 28)
    work = Run(matmul(8192, 8192, 8192))
    arms = ((Launch(made, Stream.COLLECTIVE, 1), work, Wait((1,))), (work, work))
    stage = stage_of(Program("p", (Branch("b", arms),), 16), A40)
    steps = [
        stage.score((candidate,)).step_seconds
        for candidate in range(len(stage.space.groups[0].candidates))
    ]
    assert stage.untouched == Lagom().choose(stage).choice
    assert stage.untouched == Exhaustive().choose(stage).choice
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert floor_of(stage) == pytest.approx(steps[0])
