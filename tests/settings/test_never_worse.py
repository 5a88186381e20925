"""On random steps no choice is worse than NCCL's own, and few are far from the best."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.replay import replay
from lagom_jax.plan.setting import Setting
from lagom_jax.program.program import Program
from lagom_jax.settings.controls import COARSE, FINE, PRESETS
from lagom_jax.settings.exhaustive import Exhaustive, TooManyError
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.stage import Stage
from tests.depth import slow_examples

from .programs import CLUSTERS, model_of, programs, stage_of

PARTS = list(itertools.product(CLUSTERS, PRESETS))
ROUNDING = 1e-9
LARGE = 157_000_000


def seconds(stage, choice):
    found = stage.step_seconds(choice)
    # To the last bit: one adds up less.
    assert found == stage.score(choice).step_seconds
    return found


def replayed(step, cluster, stage, choice):
    """The step from its start to its end under a choice, windows or not."""
    chosen = {
        site: group.setting(position, group.candidates[candidate])
        for group, candidate in zip(stage.space.groups, choice, strict=True)
        for position, site in enumerate(group.sites)
        if candidate
    }
    model = model_of(cluster).under(chosen)
    return replay(step, model, model.contention()).step_seconds


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "controls"), PARTS)
def test_lagom_is_never_worse_than_nccl(cluster, controls):
    """Some dozens of steps in all, and at night thousands."""

    @slow_examples(by_day=3, by_night=150)
    @given(programs(Cluster.parse(cluster)))
    def holds(step):
        stage = stage_of(step, cluster, controls)
        found = Lagom().choose(stage)
        default = replayed(step, cluster, stage, stage.untouched)
        chosen = replayed(step, cluster, stage, found.choice)
        assert seconds(stage, stage.untouched) == pytest.approx(default, rel=ROUNDING)
        assert seconds(stage, found.choice) == pytest.approx(chosen, rel=ROUNDING)
        assert seconds(stage, found.choice) <= seconds(stage, stage.untouched)
        assert chosen <= default * (1 + ROUNDING)
        assert set(found.regions) == set(range(len(stage.space.groups)))

    holds()


def alike(cluster):
    """Steps with many collectives that only their places tell apart."""
    sizes = st.sampled_from([1 << 24, LARGE])
    return programs(cluster, 12, ("all-gather", "reduce-scatter"), sizes)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_coarser_controls_choose_is_a_choice_of_finer_ones(cluster):
    @slow_examples(by_day=8, by_night=200)
    @given(alike(Cluster.parse(cluster)), st.data())
    def holds(step, data):
        fine = stage_of(step, cluster, "sequence")
        if fine.space.coarser is None:
            groups = stage_of(step, cluster, "tuner").space.groups
            assert all(len(group.sites) == 1 or not group.calls for group in groups)
            return
        coarse = fine.with_space(fine.space.coarser)
        choice = tuple(
            data.draw(st.integers(0, len(group.candidates) - 1))
            for group in coarse.space.groups
        )
        carried = seconds(fine, fine.space.carried(choice))
        assert carried == pytest.approx(seconds(coarse, choice), rel=ROUNDING)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_finer_controls_are_never_worse_than_coarser_ones(cluster):
    @slow_examples(by_day=5, by_night=250)
    @given(alike(Cluster.parse(cluster)))
    def holds(step):
        coarse = stage_of(step, cluster, "tuner")
        fine = stage_of(step, cluster, "sequence")
        one, other = Lagom().choose(coarse), Lagom().choose(fine)
        least = seconds(coarse, one.choice)
        assert seconds(fine, other.choice) <= least * (1 + ROUNDING)
        own = other.evaluations - one.evaluations
        # In proportion to the groups: most need less than half of this.
        assert own <= 400 * len(fine.space.groups)

    holds()


def near_the_best(step, cluster, controls, grid, most):
    """Whether Lagom came within 1 % of the best there is; None if that is not known."""
    stage = stage_of(step, cluster, controls, grid)
    try:
        best = Exhaustive(most=most).choose(stage)
    except TooManyError:
        return None
    least = seconds(stage, best.choice)
    assert least <= seconds(stage, stage.untouched)
    assert best.evaluations <= sum(
        stage_combinations(stage, members) for members in stage.components()
    )
    return seconds(stage, Lagom().choose(stage).choice) <= 1.01 * least


def stage_combinations(stage: Stage, members):
    product = 1
    for group in members:
        product *= len(stage.space.groups[group].candidates)
    return product


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "controls"), PARTS)
def test_lagom_is_near_the_best_where_groups_meet(cluster, controls):
    @slow_examples(by_day=6, by_night=100)
    @given(programs(Cluster.parse(cluster), most=4))
    def holds(step):
        assert near_the_best(step, cluster, controls, COARSE, 5000) is not False

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "controls"), PARTS)
def test_lagom_is_near_the_best_of_a_fine_grid(cluster, controls):
    @slow_examples(by_day=4, by_night=50)
    @given(programs(Cluster.parse(cluster), most=4))
    def holds(step):
        assert near_the_best(step, cluster, controls, FINE, 2500) is not False

    holds()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_nothing_that_nccl_could_not_run_is_a_candidate(cluster):
    @slow_examples(by_day=16, by_night=400)
    @given(programs(Cluster.parse(cluster)), st.sampled_from(list(PRESETS)))
    def holds(step, controls):
        space = stage_of(step, cluster, controls).space
        sites = [site for group in space.groups for site in group.sites]
        sites += [site for site, _ in space.fixed]
        assert sorted(map(id, sites)) == sorted(
            {id(site) for site, _, _ in step.collectives()}
        )
        model = model_of(cluster)
        for group in space.groups:
            assert group.candidates[0] is None
            assert len(set(group.candidates)) == len(group.candidates)
            for position, site in enumerate(group.sites):
                usual = group.setting(position, None)
                # What NCCL chooses, said aloud, changes nothing.
                told = model.under({site: usual}).collective(site).seconds
                assert told == pytest.approx(model.collective(site).seconds)
                for candidate in group.candidates[
                    :: max(1, len(group.candidates) // 50)
                ]:
                    setting = group.setting(position, candidate)
                    # Made anew, it is checked anew.
                    assert dataclasses.replace(setting) == setting
                    if site.kind in ("all-to-all", "collective-permute"):
                        assert not isinstance(candidate, Setting)
                        assert setting.channels.bit_count() == 1 or candidate is None

    holds()


@pytest.mark.parametrize("policy", [Lagom(), Exhaustive()], ids=lambda p: p.name)
def test_an_empty_step(policy):
    stage = stage_of(Program("p", (), 16), "h100:2x8")
    assert policy.choose(stage).choice == ()
