"""The compiled programs send what config and layout imply, to the byte."""

from collections import defaultdict

import jax
import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.hlo import read_module
from lagom_jax.program.build import build_program
from lagom_models.traffic import flows, total_bytes

CASES = [
    (name, parallelism)
    for name in lagom_models.names()
    for parallelism in lagom_models.parallelisms(name)
]


def compiled_bytes(
    step: lagom_models.TrainingStep, cluster: str
) -> dict[tuple[str, int], int]:
    lowered = lower(step.function, *step.arguments)
    compiled = compile_step(lowered, Cluster.parse(cluster))
    program = build_program(read_module(compiled.module_bytes))
    assert not program.unknown_loops()
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    for collective, executions, _ in program.collectives():
        # A permute has pairs, not groups; only the model axis has permutes.
        pairs = collective.kind == "collective-permute"
        size = step.model.layout.model if pairs else collective.groups.size
        totals[collective.kind, size] += collective.bytes * executions
    return dict(totals)


def along_model(parallelism: str, devices: int) -> int | None:
    """Devices on the model axis, for those that have one."""
    return None if parallelism in ("dp", "fsdp") else devices


# Layers are written out by the same code for all: a dense model and a mixture will do.
DENSE, MIXTURE = "llama-3-8b", "olmoe-1b-7b"
SCANS = [
    pytest.param(
        *case, scan, id=f"{'-'.join(case)}-{'scanned' if scan else 'unrolled'}"
    )
    for case in CASES
    for scan in (True, False)
    # The dense one is compiled below, in other sizes, scanned and written out.
    if case[0] != DENSE and (scan or case[0] == MIXTURE)
]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "parallelism", "scan"), SCANS)
def test_bytes_of_every_model(name: str, parallelism: str, scan: bool) -> None:
    # Two hosts, data axis 4 and model axis 4: sums over either axis differ in bytes.
    step = lagom_models.build(
        name,
        devices=16,
        parallelism=parallelism,
        model_axis=along_model(parallelism, 4),
        scan=scan,
        tiny=True,
    )
    assert compiled_bytes(step, "h100:2x8") == total_bytes(step)


# All that can be chosen is chosen one way and the other, on other axes than above.
SIZES = {
    "scanned": {
        "model_axis": 2,
        "layers": 16,
        "batch": 6,
        "sequence": 64,
        "remat": True,
        "shard_data": True,
        "scan": True,
    },
    "unrolled": {
        "model_axis": 8,
        # Written out, each costs as much as the first; a stage has to have one.
        "layers": 3,
        "batch": 4,
        "sequence": 128,
        "remat": False,
        "shard_data": False,
        "scan": False,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("parallelism", lagom_models.parallelisms(MIXTURE))
def test_bytes_of_other_sizes(parallelism: str, size: str) -> None:
    name = MIXTURE if parallelism == "ep" else DENSE
    chosen = SIZES[size]
    if parallelism == "pp":
        chosen = {**chosen, "layers": max(chosen["layers"], 8)}
    step = lagom_models.build(
        name,
        devices=16,
        parallelism=parallelism,
        **{**chosen, "model_axis": along_model(parallelism, chosen["model_axis"])},
        tiny=True,
    )
    assert compiled_bytes(step, "h100:2x8") == total_bytes(step)


KINDS = {
    "dp": {"all-reduce"},
    "fsdp": {"all-gather", "reduce-scatter", "all-reduce"},
    "tp": {"all-reduce"},
    "tp-sp": {"all-gather", "reduce-scatter", "all-reduce"},
    "tp-sliced": {"all-reduce"},
    "cp": {"all-gather", "reduce-scatter", "all-reduce"},
    "ep": {"all-to-all", "all-gather", "reduce-scatter", "all-reduce"},
    "pp": {"collective-permute", "all-gather", "reduce-scatter", "all-reduce"},
}


@pytest.mark.parametrize(("name", "parallelism"), CASES)
def test_kinds_that_a_parallelism_implies(name: str, parallelism: str) -> None:
    step = lagom_models.build(
        name,
        devices=4,
        parallelism=parallelism,
        model_axis=along_model(parallelism, 4),
        tiny=True,
    )
    assert {flow.kind for flow in flows(step)} == KINDS[parallelism]


def test_fsdp_sends_every_weight_thrice() -> None:
    step = lagom_models.build("llama-3-8b", devices=64)
    totals = total_bytes(step)
    outer = step.arguments[0].weights["outer"]
    words = sum(leaf.size for leaf in jax.tree.leaves(outer))
    assert totals["reduce-scatter", 64] == 2 * step.parameters
    assert totals["all-gather", 64] == 2 * (2 * step.parameters - words)


def test_tensor_parallelism_adds_up_four_times_per_layer() -> None:
    sizes = [
        total_bytes(
            lagom_models.build("llama-3-8b", devices=8, parallelism="tp", layers=n)
        )["all-reduce", 8]
        for n in (1, 2)
    ]
    activations = 4 * 2048 * 4096 * 2
    assert sizes[1] - sizes[0] == 4 * activations


def test_experts_are_visited_four_times_per_layer() -> None:
    sizes = [
        total_bytes(
            lagom_models.build("olmoe-1b-7b", devices=8, parallelism="ep", layers=n)
        )["all-to-all", 8]
        for n in (1, 2)
    ]
    # Half a micro batch of two is one sequence; each of its tokens has 8 choices.
    slots = 2048 * 8 * 5 // 4
    assert sizes[1] - sizes[0] == 4 * 2 * slots * 2048 * 2
