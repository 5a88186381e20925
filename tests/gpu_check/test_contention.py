"""Contention: what was planted is found, and what goes wrong is said."""

import dataclasses

import numpy as np
import pytest

from gpu_stages.beside.asked import kernels, settings
from gpu_stages.beside.bench import Pair
from gpu_stages.beside.fitting import (
    NAMES,
    Measured,
    Predictor,
    collective_load,
    fitted,
    worth_keeping,
)
from gpu_stages.steering import MOST_CHANNELS, RANKS
from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.sharing import SharingConstants, load_sharing_constants

from .staged import staged

H100 = Cluster.parse("h100")
PLANTED = SharingConstants(False, 0.7, 0.3, 0.0, 0.0, 1.5, 4.0)
OLD = load_sharing_constants(H100.gpu)
SLOWDOWN = "slowdown of kernels after the fit"


@pytest.fixture(scope="module")
def predictor():
    return Predictor(H100, load_constants(H100))


def rows_under(planted, predictor):
    """What would be measured where the model is right with these constants."""
    random = np.random.default_rng(1)
    rows = []
    for setting in settings():
        for kernel in kernels():
            alone = max(
                kernel.work.flops / 7e14, kernel.work.hbm_bytes / 3e12
            ) * random.uniform(0.99, 1.01)
            channels = setting.answer.channels
            collective = (1 << 28) / (channels * 1e10)
            pair = Pair((alone,), (alone,), (collective,), (collective,))
            row = Measured(kernel, setting, channels, 1 << 28, pair)
            slow = predictor.kernel(row, planted) * random.uniform(0.99, 1.01)
            rows.append(
                dataclasses.replace(
                    row, pair=dataclasses.replace(pair, kernel_beside=(alone * slow,))
                )
            )
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_the_fit_finds_the_constants_that_made_the_rows(persistent, predictor):
    planted = dataclasses.replace(PLANTED, persistent_kernels=persistent)
    rows = rows_under(planted, predictor)
    found = fitted([row for row in rows if not row.kept_out], predictor, OLD)
    assert found.persistent_kernels == persistent
    assert found.eviction == pytest.approx(0.3, rel=0.1)
    assert found.saturating_sm_share == pytest.approx(0.7, rel=0.1)
    assert found.ring_passes == pytest.approx(1.5, rel=0.1)
    assert found.exchange_passes == OLD.exchange_passes


def test_a_constant_is_only_kept_where_it_makes_kept_out_rows_better(predictor):
    apart = [row for row in rows_under(PLANTED, predictor) if row.kept_out]
    worse = dataclasses.replace(PLANTED, eviction=2.9)
    start = dataclasses.replace(PLANTED, ring_passes=3.0, eviction=0.3)
    kept = worth_keeping(apart, predictor, start, worse)
    assert kept == dataclasses.replace(PLANTED, eviction=0.3)
    assert worth_keeping(apart, predictor, PLANTED, worse) == PLANTED


def test_whole_shapes_and_whole_settings_are_kept_out():
    for several in (kernels(), settings()):
        names = [(str(getattr(one, "name", one)), one.kept_out) for one in several]
        assert len({name for name, _ in names}) == len(names)
        assert {out for _, out in names} == {True, False}
    # Both kinds of kernels are on both sides.
    assert {(k.kept_out, bool(k.elements)) for k in kernels()} == {
        (out, triad) for out in (True, False) for triad in (True, False)
    }
    assert max(s.answer.channels for s in settings()) <= MOST_CHANNELS


def test_loads_are_those_of_all_ranks_together(predictor):
    row = rows_under(OLD, predictor)[0]
    load = collective_load(row, OLD)
    assert load.channels == RANKS * row.channels
    assert load.bytes_in_flight == RANKS * row.channels * row.setting.chunk_bytes
    (seconds,) = row.pair.collective_alone
    sent = row.nbytes * (RANKS - 1) / RANKS
    twice = 2 if row.setting.function == "all-reduce" else 1
    assert load.memory_bytes_per_s == pytest.approx(
        RANKS * OLD.ring_passes * sent * twice / seconds
    )


@pytest.mark.slow
def test_a_dry_run_finds_what_the_stand_ins_were_given(tmp_path, monkeypatch):
    found = staged(
        "contention",
        tmp_path,
        monkeypatch,
        eviction=0.1,
        passes=1.2,
        saturating=0.75,
        persistent=0,
    )
    assert found.status == "ran", found
    updates = {update.name: update.value for update in found.updates}
    assert set(updates) == set(NAMES)
    assert updates["persistent_kernels"] is False
    assert updates["eviction"] == pytest.approx(0.1, rel=0.1)
    assert updates["ring_passes"] == pytest.approx(1.2, rel=0.1)
    assert updates["saturating_sm_share"] == pytest.approx(0.75, rel=0.1)
    scores = [score for score in found.scores if SLOWDOWN in score.what]
    assert [score.met for score in scores] == [True, True]
    assert all(score.kept_out for score in found.scores)
    assert len(found.rows) == 2 * len(kernels()) * len(settings())
    assert not found.findings


def test_what_does_not_fit_the_time_is_said(tmp_path, monkeypatch):
    # Less than the fit and its like would take.
    found = staged("contention", tmp_path, monkeypatch, seconds=19.0)
    assert found.status == "ran", found
    assert not found.rows
    assert found.left_out[0].startswith("The time was over before: ")
    assert found.left_out[0].count("channel") == len(settings())


def test_an_old_nccl_is_told_how_to_become_newer(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, nccl=22809)
    assert found.status == "cannot run"
    assert "NCCL 2.28.9" in found.why
    assert "pip install 'nvidia-nccl-cu13>=2.30'" in found.why


def test_a_hang_ends_by_itself_and_is_explained(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=25.0, hangs=1)
    assert found.status == "failed"
    assert "the GPU is not done" in found.why
    assert "nothing else runs on it" in found.why
    assert found.seconds < 20


def test_a_later_hang_keeps_what_was_measured(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=40.0, hangs=2500)
    assert found.status == "ran", found
    assert found.rows
    assert any("It ended with" in finding for finding in found.findings)
    assert not found.updates


def test_a_function_that_fails_is_named(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, fails="cublasGemmEx")
    assert found.status == "failed"
    assert "cublasGemmEx failed with 999: told to fail" in found.why


def test_nothing_is_measured_beside_another_setting(tmp_path, monkeypatch):
    found = staged(
        "contention", tmp_path, monkeypatch, seconds=23.0, disobeys="AllReduce"
    )
    assert found.status == "ran", found
    assert any(f.startswith("NCCL was told all-reduce") for f in found.findings)
    beside = [row.what for row in found.rows if "all-reduce" in row.what]
    # That is what it does by itself.
    assert not [what for what in beside if "ring/simple, 8 channels" not in what]
