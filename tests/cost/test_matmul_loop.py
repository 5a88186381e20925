"""Products that a benchmark repeats: warm where all of a turn fits the cache."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lagom_jax.cost
from lagom_jax.cluster import Cluster
from lagom_jax.commands.rows import matmul_microseconds
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.kernel_constants import load_kernel_constants
from lagom_jax.cost.matmul import Problems, matmul_seconds
from lagom_jax.cost.matmul_loop import found_in_cache, looped_seconds
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work

L40S = Cluster.parse("l40s")
KNOWN = load_kernel_constants("l40s")
MIB = 1 << 20
MEASURED = Path(lagom_jax.cost.__file__).parent / "measured" / "matmuls_alone.csv"
SIZES = st.tuples(*[st.integers(1, 1 << 15)] * 3)


def product(m, n, k):
    return Matmul(1, m, n, k, "bf16", "bf16", "bf16")


def cached(m, n, k):
    return float(found_in_cache(Problems.of([product(m, n, k)]), L40S.gpu)[0])


def test_as_many_copies_as_fill_the_cache_but_five():
    """96 MiB: weights of 48 fill it twice, of 32 three times, of 21 more than it."""
    assert L40S.gpu.l2_bytes == 96 * MIB
    assert cached(1, 6144, 4096) > 0.99
    assert cached(1, 8192, 2048) > 0.99
    assert cached(1, 3584, 3072) < 0.1
    # Five copies of 18 MiB leave room; one of 80 has a second one beside it.
    assert cached(1, 12288, 768) == 1.0
    assert cached(1, 8192, 5120) == 0.0


def test_operands_and_output_take_room_too():
    assert cached(16384, 32, 2560) == 1.0
    assert cached(16384, 32, 3584) == 0.0
    assert cached(3073, 10240, 32) == 1.0
    assert cached(4096, 12288, 32) == 0.0


@given(SIZES)
def test_a_loop_takes_no_longer_than_a_step(sizes):
    found = looped_seconds(product(*sizes), L40S.gpu, KNOWN)
    alone = matmul_seconds(product(*sizes), L40S.gpu, KNOWN)
    assert found <= alone
    if not cached(*sizes):
        assert found == alone


@given(SIZES, st.sampled_from(("h100", "h200", "b200", "gb200-nvl72", "a100")))
def test_where_no_cache_was_told_a_loop_is_a_step(sizes, name):
    gpu = Cluster.parse(name).gpu
    known = load_kernel_constants(gpu.name)
    expected = matmul_seconds(product(*sizes), gpu, known)
    assert looped_seconds(product(*sizes), gpu, known) == expected


@given(SIZES)
def test_no_kernel_of_a_step_has_the_cache_of_a_loop(sizes):
    """Its price, and all its traffic, are those of operands in memory."""
    m, n, k = sizes
    one = product(m, n, k)
    work = Work("matmul", float(one.flops), 2 * k * (m + n), 2 * m * n, (one,))
    constants = load_constants(L40S)
    matmuls = {
        rate: dataclasses.replace(item, cache_bytes_per_cycle=0.0)
        for rate, item in KNOWN.matmuls.items()
    }
    without = dataclasses.replace(
        constants, kernels=dataclasses.replace(KNOWN, matmuls=matmuls)
    )
    here = kernel_price(work, L40S, constants)
    assert here == kernel_price(work, L40S, without)
    assert here.seconds >= work.hbm_bytes / L40S.gpu.memory_bytes_per_s
    assert constants.digest == without.digest


@pytest.mark.parametrize(
    ("weights", "low", "high"),
    [((16384, 1536), 1200, 2200), ((2560, 12288), 500, 760)],
)
def test_measured_rows_have_the_two_rates(weights, low, high):
    """48 MiB are read from the cache, 60 from memory: both measured and predicted."""
    n, k = weights
    with MEASURED.open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["gpu"], int(row["n"]), int(row["k"])) == ("l40s", n, k)
            and 1 < int(row["m"]) <= 128
        ]
    assert rows
    nbytes = np.array([2 * (int(r["m"]) * (n + k) + n * k) for r in rows]) / 1e3
    for times in (
        [float(row["microseconds"]) for row in rows],
        [matmul_microseconds(row) for row in rows],
    ):
        assert low < np.median(nbytes / times) < high
