"""Intervals of a step and its parts: by an ensemble, and on a page."""

import dataclasses

import pytest

from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.plan import Interval
from lagom_jax.report.page import to_html
from lagom_jax.report.story import Story
from lagom_jax.settings.doubt import step_intervals, uncorrected

from .stories import CLUSTER, reported, step


@pytest.fixture(scope="module")
def found():
    models = Ensemble.of(CLUSTER)
    likeliest, *members = uncorrected([models.likeliest, *models.members])
    return step_intervals(step()[0], likeliest, members)


def test_every_part_has_an_interval_around_what_is_expected(found):
    for part in (found.step, found.exposed, found.contention):
        assert part.low < part.expected < part.high
    assert found.exposed.high < found.step.high


def test_a_page_has_them_before_and_after():
    before = dataclasses.replace(
        reported(), exposed_interval=Interval(0.031, 0.032, 0.047)
    )
    after = dataclasses.replace(
        reported(), exposed_interval=Interval(0.011, 0.012, 0.017)
    )
    page = to_html(Story(before, after))
    assert "31.0 ms to 47.0 ms" in page
    assert "11.0 ms to 17.0 ms" in page
    assert "31.0 ms to" not in to_html(Story(after))
