"""The transport asked for is the one that NCCL logs, or that is seen."""

import csv

import pytest

from gpu_stages.stage import STAGES
from gpu_stages.steering import transports
from gpu_stages.transports import judge, judged
from lagom_jax.cluster import Cluster
from lagom_jax.cost.span import Span
from lagom_jax.cost.transport_constants import load_transport_constants
from lagom_jax.cost.transports import PlacedCall

from .staged import staged

HEAD = "gpu:7:7 [0] NCCL INFO "
COPIED = HEAD + "AllGather [Copy Engine]: 67108864 Bytes -> cudaMemcpy"
ON_RINGS = HEAD + (
    "ReduceScatter: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"
)


def symmetric(function, kernel, blocks):
    return HEAD + (
        f"{function} [Symmetric]: 1048576 Bytes -> Kernel {kernel} nchannels {blocks} "
        "nthreads 512 nWorks 1"
    )


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
def test_every_kernel_that_the_model_names_is_read_as_its_transport(kind, ranks):
    names = {"all-gather": "AllGather", "all-reduce": "AllReduce"}
    h100, constants = Cluster.parse("h100:1x8"), load_transport_constants()
    for nbytes in (1 << 10, 1 << 16, 1 << 20, 1 << 26):
        span = Span(ranks, 1, ranks)
        call = PlacedCall(kind, nbytes, span, h100, ("bf16",), 1)
        found = call.symmetric(constants)
        line = symmetric(names.get(kind, "ReduceScatter"), found.kernel, found.blocks)
        assert transports(kind, [line]) == {found.transport}


def test_every_transport_of_a_function_is_seen():
    lines = [COPIED, symmetric("ReduceScatter", "ReduceScatter_LDMC", 2), ON_RINGS]
    assert transports("all-gather", lines) == {"copy engines"}
    assert transports("reduce-scatter", lines[:2]) == {"switch"}
    assert transports("reduce-scatter", lines) == {"switch", "rings"}
    assert transports("all-reduce", lines) == set()


def test_a_dry_run_finds_every_call_where_it_was_asked_for(tmp_path, monkeypatch):
    found = staged("transports", tmp_path, monkeypatch)
    assert found.verdict == "holds", found
    with (tmp_path / "transports" / "calls.csv").open() as file:
        rows = [(*row["name"].split(), *row.values()) for row in csv.DictReader(file)]
    assert not [row for row in rows if row[-1]]
    ran = {(row[0], row[7], *row[-4:-2]) for row in rows}
    assert ("all-gather", "default", "in ordinary memory", "rings") in ran
    assert ("all-gather", "zero", "in windows", "copy engines") in ran
    # What has to add up stays with kernels.
    assert ("all-reduce", "zero", "in windows", "symmetric kernels") in ran


def test_a_dry_run_without_windows_says_that_one_gpu_cannot_tell(tmp_path, monkeypatch):
    found = staged("transports", tmp_path, monkeypatch, windowless=1)
    assert [check.met for check in found.outcome.checks] == [True]
    assert any("Two GPUs with NVLink" in line for line in found.outcome.left_out)


@pytest.mark.parametrize(
    ("function", "asked", "logged"),
    [
        ("all-gather", "copy engines", {"symmetric kernels"}),
        ("all-reduce", "symmetric kernels", {"rings"}),
        ("all-reduce", "symmetric kernels", set()),
    ],
)
def test_a_call_that_runs_elsewhere_refutes(function, asked, logged):
    copies = "copy engines"
    right = judge("all-gather", 64, True, "zero", copies, {copies})
    wrong = judge(function, 64, True, "zero", asked, logged)
    outcome = judged([right, wrong], "2.30.7")
    (check,) = outcome.checks
    assert (check.value, check.met) == (1, False)
    assert function in outcome.findings[0]
    assert STAGES["transports"].if_refuted
