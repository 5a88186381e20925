"""The transport asked for is the one that NCCL logs, or that is seen."""

import pytest

from gpu_stages.nccl_log import off_rings, run_otherwise
from gpu_stages.stage import STAGES
from gpu_stages.transports import Called, outcome_of
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
        (read,) = off_rings([line])
        assert (read.function, read.transport) == (kind, found.transport)
        assert read.blocks == found.blocks


def test_copies_hold_no_sm():
    (read,) = off_rings([COPIED])
    assert (read.transport, read.blocks, read.bytes) == ("copy engines", 0, 64 << 20)


def test_another_transport_is_seen():
    asked = {"all-gather": "copy engines", "reduce-scatter": "switch"}
    by_switch = symmetric("ReduceScatter", "ReduceScatter_LDMC", 2)
    assert run_otherwise(asked, [COPIED, by_switch]) == {}
    assert run_otherwise(asked, [COPIED, ON_RINGS]) == {"reduce-scatter": ("rings",)}
    both = run_otherwise(asked, [COPIED, by_switch, ON_RINGS])
    assert both == {"reduce-scatter": ("rings", "switch")}
    assert run_otherwise(asked, [by_switch]) == {"all-gather": ()}


def test_a_dry_run_finds_every_call_where_it_was_asked_for(tmp_path, monkeypatch):
    found = staged("transports", tmp_path, monkeypatch)
    assert found.verdict == "holds", found
    (listing,) = found.outcome.listings
    by_memory = {(row[0], row[2], row[3]): row[4:] for row in listing.rows}
    assert by_memory["all-gather", "ordinary", "default"] == ("rings", "rings")
    assert by_memory["all-gather", "windows", "zero"] == ("copy engines",) * 2
    # What has to add up stays with kernels.
    assert by_memory["all-reduce", "windows", "zero"] == ("symmetric kernels",) * 2


def test_a_dry_run_without_windows_says_that_one_gpu_cannot_tell(tmp_path, monkeypatch):
    found = staged("transports", tmp_path, monkeypatch, windowless=1)
    assert [check.met for check in found.outcome.checks] == [True]
    assert any("Two GPUs with NVLink" in line for line in found.outcome.left_out)


@pytest.mark.parametrize(
    ("function", "asked", "logged"),
    [
        ("all-gather", "copy engines", ("symmetric kernels",)),
        ("all-reduce", "symmetric kernels", ("rings",)),
        ("all-reduce", "symmetric kernels", ()),
    ],
)
def test_a_call_that_runs_elsewhere_refutes(function, asked, logged):
    right = Called("all-gather", 64, True, "zero", "copy engines", ("copy engines",))
    wrong = Called(function, 64, True, "zero", asked, logged)
    outcome = outcome_of([right, wrong], "2.30.7")
    (check,) = outcome.checks
    assert (check.value, check.met) == (1, False)
    assert function in outcome.findings[0]
    assert STAGES["transports"].if_refuted
