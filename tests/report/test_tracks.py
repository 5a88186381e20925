"""Tracks of a step, memory over it, fewer slices, collectives that are alike."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import lagom_jax
from lagom_jax.report.alike import alike
from lagom_jax.report.grouping import grouped
from lagom_jax.report.merged import merged
from lagom_jax.report.page_data import page_data
from lagom_jax.report.tracks import stretches_in

from .stories import many, reported


def lasting(tracks):
    return sum(
        times * (end - begin)
        for one, times in stretches_in(tracks.step)
        for begin, end in zip(one.slices.begin, one.slices.end, strict=True)
    )


def slices(tracks):
    return sum(len(one.slices.task) for one, _ in stretches_in(tracks.step))


def test_fewer_slices_stand_for_as_much():
    tracks = many(3000).tracks
    short = merged(tracks, 500)
    assert slices(tracks) == 6000
    assert slices(short) <= 500
    assert sum(task.count for task in short.tasks) > 100
    assert short.step.seconds == tracks.step.seconds
    assert merged(tracks, 10_000) is tracks
    for track in range(len(tracks.names)):
        ends = [
            max(
                end
                for at, end in zip(
                    one.step.slices.track, one.step.slices.end, strict=True
                )
                if at == track
            )
            for one in (tracks, short)
        ]
        assert ends[0] == ends[1]


def test_what_is_long_stays_as_it_is():
    report = reported(layers=1)
    kept = merged(report.tracks, 3)
    names = {task.name for task in kept.tasks}
    assert "all-gather-start.1" in names


def test_collectives_of_layers_are_alike_and_others_are_not():
    report = many(400)
    groups = alike(report.collectives)
    assert sum(len(one.members) for one in groups) == 400
    assert len(groups) == 56
    assert all("layers_#" in one.place for one in groups if len(one.members) > 1)
    nameless = tuple(
        dataclasses.replace(one, op_name="", source="") for one in report.collectives
    )
    assert len(alike(nameless)) == 400


def test_a_row_of_those_alike_is_their_sum():
    report = many(400)
    shown = grouped(report.collectives)
    assert sum(row.sites for row in shown) == 400
    # Some overlap with nothing, and may be the first of their kind.
    exposed = dataclasses.replace(report.collectives[0], hidden_by=())
    rows = grouped((exposed, *report.collectives[1:]))
    hidden = sum(one.seconds for row in rows for one in row.hidden_by)
    total = sum(one.seconds for row in report.collectives for one in row.hidden_by)
    assert hidden == pytest.approx(
        total - sum(one.seconds for one in report.collectives[0].hidden_by)
    )


def test_groups_expose_what_their_members_do():
    report = many(100)
    groups = alike(report.collectives)
    exposed = sum(one.exposed_seconds for one in groups)
    assert exposed == pytest.approx(report.exposed_seconds)
    assert list(groups) == sorted(groups, key=lambda one: -one.exposed_seconds)


def test_the_data_of_a_page_hold_all_times():
    report = reported()
    (step,) = page_data(report, None)["steps"]
    assert step["stretches"][0]["seconds"] == round(report.step_seconds * 1e9)
    json.dumps(step, allow_nan=False)


@pytest.mark.slow
def test_memory_from_the_schedule_is_near_what_xla_counts():
    """Layers whose activations are kept until the backward pass."""

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x.astype(jnp.float32) ** 2).mean()

    weights = tuple(jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16) for _ in range(4))
    x = jax.ShapeDtypeStruct((8192, 1024), jnp.bfloat16)
    report = lagom_jax.analyze(jax.grad(loss), weights, x, cluster="h100:1x1")
    memory = report.memory
    assert memory.argument_bytes == 4 * 2 * 1024**2 + 2 * 8192 * 1024
    assert memory.estimated_peak_bytes == pytest.approx(
        report.peak_memory_bytes, rel=0.15
    )
    held = sum(one.bytes for one in memory.holders) + memory.other_bytes
    assert held == memory.estimated_peak_bytes
    assert 0 <= memory.peak_at_seconds <= report.step_seconds
    curve = report.tracks.step.memory
    assert max(curve.bytes) == memory.estimated_peak_bytes
    assert report.sources
