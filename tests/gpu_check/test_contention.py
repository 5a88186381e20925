"""Contention: slowdowns are measured as they are, and a wrong law is refuted."""

import csv
import dataclasses
import re

import pytest

from gpu_stages.contention import judged
from gpu_stages.contention_law import (
    Law,
    Measured,
    Slowed,
    collective_cases,
    kernel_cases,
)
from gpu_stages.gpu import MOST_CHANNELS, RANKS
from gpu_stages.stage import StageResult
from lagom_jax.cluster import Cluster
from lagom_jax.cost.sharing_constants import load_sharing_constants

from .staged import staged

LAW = Law(Cluster.parse("h100"))
SHARING = load_sharing_constants(Cluster.parse("h100").gpu)


def rows(law=LAW, worse=1.0):
    """What would be measured where a law is right, but for products."""
    for case in collective_cases():
        for kernel in kernel_cases():
            alone = max(kernel.work.flops / 7e14, kernel.work.hbm_bytes / 3e12)
            collective = Slowed(*[((1 << 28) / (case.setting.channels * 1e10),)] * 2)
            row = Measured(kernel, case, 1 << 28, Slowed((alone,), ()), collective)
            slow = law.kernel(row) * (worse if kernel.work.matmuls else 1.0)
            yield dataclasses.replace(row, of_kernel=Slowed((alone,), (alone * slow,)))


def verdict(found):
    return StageResult("ran", 1.0, outcome=found).verdict


def test_a_law_that_is_right_holds_and_another_is_refuted():
    assert verdict(judged([*rows()], LAW)) == "holds"
    # One SM that is taken makes every product twice as long.
    found = judged([*rows(worse=2.0)], LAW)
    assert verdict(found) == "refuted"
    assert "matmul" in found.findings[0]
    assert verdict(judged([], LAW)) == "open"


@pytest.mark.parametrize(
    "wrong",
    [
        {"persistent_kernels": not SHARING.persistent_kernels},
        {"saturating_sm_share": 1.0},
        {"eviction": 1.0},
        {"ring_passes": 6.0},
    ],
)
def test_the_cases_tell_every_constant(wrong):
    law = Law(Cluster.parse("h100"), dataclasses.replace(SHARING, **wrong))
    worst = max(abs(LAW.kernel(row) - row.of_kernel.slowdown) for row in rows(law))
    assert worst > 0.05


def test_loads_are_those_of_all_ranks_together():
    row = next(iter(rows()))
    setting, load = row.collective.setting, LAW.load(row)
    assert setting.channels <= MOST_CHANNELS
    assert load.channels == RANKS * setting.channels
    assert load.bytes_in_flight == RANKS * setting.channels * setting.chunk_bytes
    (seconds,) = row.of_collective.alone
    sent = row.nbytes * (RANKS - 1) / RANKS
    twice = 2 if row.collective.function == "all-reduce" else 1
    passes = SHARING.passes(row.collective.function, setting)
    assert load.memory_bytes_per_s == pytest.approx(
        RANKS * passes * sent * twice / seconds
    )


def pairs(folder):
    with (folder / "contention" / "pairs.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.nightly
def test_a_dry_run_finds_the_slowdown_that_the_stand_ins_have(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, slowdown=1.4)
    assert found.status == "ran", found
    assert len(pairs(tmp_path)) == 7 * len(kernel_cases())
    for pair in pairs(tmp_path):
        slowdown = float(pair["microseconds_together"]) / float(pair["microseconds"])
        assert slowdown == pytest.approx(1.4, rel=0.05)
        alike = float(pair["collective_us"]) / float(pair["collective_alone_us"])
        assert alike == pytest.approx(1.0, rel=0.05)


def test_what_does_not_fit_the_time_is_listed(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=4.0)
    assert found.verdict == "open", found
    assert found.outcome.left_out[0].startswith("The time was over before: ")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nccl": "2.28.9"}, "NCCL 2.28.9 has no ranks.*pip install 'lagom_jax.gpu-"),
        ({"hangs": 1, "seconds": 25.0}, "the GPU is not done.*nothing else runs on it"),
        ({"fails": 1}, "gemmEx was made to fail"),
    ],
)
def test_why_nothing_was_measured(tmp_path, monkeypatch, changes, why):
    found = staged("contention", tmp_path, monkeypatch, **changes)
    assert found.status == ("cannot run" if "nccl" in changes else "failed")
    assert re.search(why, found.why)


@pytest.mark.nightly
def test_a_later_hang_keeps_what_was_measured(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, seconds=40.0, hangs=1500)
    assert found.status == "ran", found
    assert pairs(tmp_path)
    assert any("It ended with" in finding for finding in found.outcome.findings)


@pytest.mark.nightly
def test_nothing_is_measured_with_another_setting(tmp_path, monkeypatch):
    found = staged("contention", tmp_path, monkeypatch, disobeys="all-reduce")
    wrong = [f for f in found.outcome.findings if f.startswith("NCCL was asked for")]
    assert len(wrong) == 2
    assert "all-reduce" not in {pair["collective"] for pair in pairs(tmp_path)}
