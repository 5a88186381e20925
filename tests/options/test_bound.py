"""The bound: computation alone, or the busiest link."""

import dataclasses

import pytest

from lagom_jax.cost.prices import Price
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Timeline, Totals
from lagom_jax.options import Bound, bound_of
from lagom_jax.plan.setting import REDUCING

from ..cost.programs import ByName, launch, program, run, wait
from .compiled import compiled, model_of


class OnLinks(ByName):
    """Prices given as a table, with the link that each collective keeps busy."""

    def collective(self, collective):
        seconds, link, share = self.seconds[collective.name]
        return Price(seconds, link, resource_share=share)


def bound(step, **seconds):
    return bound_of(replay(step, OnLinks(seconds)))


STEP = program(launch("a", 0), run("k"), wait(0), launch("b", 1), wait(1))


def test_computation_alone():
    found = bound(STEP, a=(1.0, "nvlink", 1.0), b=(2.0, "nvlink", 1.0), k=5.0)
    assert found == Bound(5.0, "computation alone")


def test_collectives_of_one_link_add_up():
    found = bound(STEP, a=(3.0, "nvlink", 1.0), b=(4.0, "nvlink", 1.0), k=5.0)
    assert found == Bound(7.0, "the busiest link alone")


def test_different_links_are_busy_at_the_same_time():
    found = bound(STEP, a=(3.0, "nvlink", 1.0), b=(4.0, "network", 1.0), k=3.5)
    assert found == Bound(4.0, "the busiest link alone")


def test_only_the_busy_part_of_a_collective_counts():
    found = bound(STEP, a=(8.0, "nvlink", 0.5), b=(8.0, "nvlink", 0.25), k=1.0)
    assert found == Bound(6.0, "the busiest link alone")


def test_latency_keeps_no_link_busy():
    found = bound(STEP, a=(8.0, "latency", 1.0), b=(8.0, "latency", 1.0), k=1.0)
    assert found == Bound(1.0, "computation alone")


def test_contention_is_not_part_of_computation_alone():
    totals = Totals(compute_seconds=5.0, contention_seconds=2.0)
    assert bound_of(Timeline(totals, {}, {})).seconds == 3.0


def timelines(step):
    """The step under NCCL's own settings, and under others of its channels."""
    model, compiled_step = model_of(step), compiled(step)
    sites = [site for site, _, _ in compiled_step.collectives()]
    usual = {site: model.usual(site) for site in sites if site.kind in REDUCING}
    for channels in (1, 2, 8, 64):
        others = {
            site: dataclasses.replace(setting, channels=channels)
            for site, setting in usual.items()
        }
        under = model.under(others)
        yield replay(compiled_step, under, under.contention())
    yield replay(compiled_step, model, model.contention())


@pytest.mark.parametrize("step", ["chain", "fsdp"])
def test_the_bound_is_the_step_s_own_whatever_its_settings(step):
    """Channels change what collectives take and slow down, not what must be done."""
    found = list(timelines(step))
    *_, usual = bounds = [bound_of(timeline) for timeline in found]
    assert {bound.what for bound in bounds} == {usual.what}
    for bound in bounds:
        assert bound.seconds == pytest.approx(usual.seconds, rel=1e-6)
    assert max(bound.seconds for bound in bounds) <= min(
        timeline.step_seconds for timeline in found
    )
