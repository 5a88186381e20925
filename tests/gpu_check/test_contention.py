"""Contention: constants that were planted are found, and a wrong law is refuted."""

import dataclasses

import numpy as np
import pytest

from gpu_stages.contention import judged
from gpu_stages.contention_bench import Pair
from gpu_stages.contention_cases import collective_cases, kernel_cases
from gpu_stages.contention_law import (
    NAMES,
    Measured,
    Predictor,
    collective_load,
    fitted,
    worth_keeping,
)
from gpu_stages.result import StageResult
from gpu_stages.steering import MOST_CHANNELS, RANKS
from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.sharing import SharingConstants, load_sharing_constants

from .staged import staged

H100 = Cluster.parse("h100")
PLANTED = SharingConstants(False, 0.7, 0.3, 0.0, 0.0, 1.5, 4.0)
OLD = load_sharing_constants(H100.gpu)


@pytest.fixture(scope="module")
def predictor():
    return Predictor(H100, load_constants(H100))


def rows_under(planted, predictor):
    """What would be measured where the model is right with these constants."""
    random = np.random.default_rng(1)
    rows = []
    for case in collective_cases():
        for kernel in kernel_cases():
            alone = max(
                kernel.work.flops / 7e14, kernel.work.hbm_bytes / 3e12
            ) * random.uniform(0.99, 1.01)
            channels = case.answer.channels
            collective = (1 << 28) / (channels * 1e10)
            pair = Pair((alone,), (alone,), (collective,), (collective,))
            row = Measured(kernel, case, channels, 1 << 28, pair)
            slow = predictor.kernel(row, planted) * random.uniform(0.99, 1.01)
            rows.append(
                dataclasses.replace(
                    row, pair=dataclasses.replace(pair, kernel_together=(alone * slow,))
                )
            )
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_the_fit_finds_the_constants_that_made_the_rows(persistent, predictor):
    planted = dataclasses.replace(PLANTED, persistent_kernels=persistent)
    rows = rows_under(planted, predictor)
    found = fitted([row for row in rows if not row.kept_out], predictor, OLD)
    # Kernels with several rounds of tiles go by one law with both, and these cases have
    # no others: the other constants are found all the same.
    assert found.persistent_kernels or not persistent
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
    for several in (kernel_cases(), collective_cases()):
        names = [(str(getattr(one, "name", one)), one.kept_out) for one in several]
        assert len({name for name, _ in names}) == len(names)
        assert {out for _, out in names} == {True, False}
    # Both kinds of kernels are on both sides.
    assert {(k.kept_out, bool(k.elements)) for k in kernel_cases()} == {
        (out, triad) for out in (True, False) for triad in (True, False)
    }
    assert max(s.answer.channels for s in collective_cases()) <= MOST_CHANNELS


def test_loads_are_those_of_all_ranks_together(predictor):
    row = rows_under(OLD, predictor)[0]
    load = collective_load(row, OLD)
    assert load.channels == RANKS * row.channels
    assert load.bytes_in_flight == RANKS * row.channels * row.collective.chunk_bytes
    (seconds,) = row.pair.collective_alone
    sent = row.nbytes * (RANKS - 1) / RANKS
    twice = 2 if row.collective.function == "all-reduce" else 1
    assert load.memory_bytes_per_s == pytest.approx(
        RANKS * OLD.ring_passes * sent * twice / seconds
    )


def test_a_law_that_is_right_holds_and_another_is_refuted(predictor):
    rows = rows_under(PLANTED, predictor)
    found = judged(rows, "h100")
    verdict = StageResult("ran", 1.0, checks=tuple(found.checks)).verdict
    assert (verdict, found.constants["ring_passes"]) == (
        "holds",
        pytest.approx(1.5, rel=0.1),
    )
    # One SM that is taken makes every product twice as long.
    wrong = [
        dataclasses.replace(row, pair=dataclasses.replace(row.pair, kernel_together=t))
        for row in rows
        for t in [
            [
                s * (2 if row.kernel.work.matmuls else 1)
                for s in row.pair.kernel_together
            ]
        ]
    ]
    found = judged(wrong, "h100")
    assert StageResult("ran", 1.0, checks=tuple(found.checks)).verdict == "refuted"
    assert found.findings


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
    assert found.verdict == "holds", found
    assert set(found.constants) == set(NAMES)
    assert found.constants["persistent_kernels"] is False
    assert found.constants["eviction"] == pytest.approx(0.1, rel=0.2)
    assert found.constants["ring_passes"] == pytest.approx(1.2, rel=0.1)
    assert found.constants["saturating_sm_share"] == pytest.approx(0.75, rel=0.1)
    assert not found.findings


def test_a_gpu_with_another_law_refutes_the_model(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, static_tiles=1.0)
    assert found.verdict == "refuted", found
    assert any("after the fit the model says" in text for text in found.findings)


def test_what_does_not_fit_the_time_is_listed(tmp_path, monkeypatch):
    # Less than the fit and its like would take.
    found = staged("contention", tmp_path, monkeypatch, seconds=19.0)
    assert found.verdict == "open", found
    assert not found.rows
    assert found.left_out[0].startswith("The time was over before: ")


def test_an_old_nccl_is_named_with_the_way_to_a_newer_one(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, nccl="2.28.9")
    assert found.status == "cannot run"
    assert "NCCL 2.28.9" in found.why
    assert "pip install 'lagom_jax[gpu-check]'" in found.why


def test_a_hang_ends_by_itself_and_is_explained(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=25.0, hangs=1)
    assert found.status == "failed"
    assert "the GPU is not done" in found.why
    assert "nothing else runs on it" in found.why


def test_a_later_hang_keeps_what_was_measured(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=40.0, hangs=1500)
    assert found.status == "ran", found
    assert found.rows
    assert any("It ended with" in finding for finding in found.findings)


def test_a_function_that_fails_is_named(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, fails="gemmEx")
    assert found.status == "failed"
    assert "gemmEx was made to fail" in found.why


def test_nothing_is_measured_with_another_setting(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, disobeys="all-reduce")
    assert found.status == "ran", found
    assert any(f.startswith("NCCL was asked for all-reduce") for f in found.findings)
    rows = [row.what for row in found.rows if "all-reduce" in row.what]
    # That is what it does by itself.
    assert not [what for what in rows if "ring/simple, 8 channels" not in what]
