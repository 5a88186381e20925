"""Kernels alone that are more, or other, than one matmul."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price, memory_seconds
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.matmul import matmul_seconds
from lagom_jax.hlo.work import KINDS, Matmul, Work

H100 = Cluster.parse("h100")
CONSTANTS = load_constants(H100)
KNOWN = CONSTANTS.kernels
SQUARE = Matmul(1, 4096, 4096, 4096, "bf16", "bf16", "bf16")
OPERANDS = 2 * 4096 * 4096 * 2


def price(work):
    return kernel_price(work, H100, CONSTANTS)


def test_products_in_one_kernel_share_a_launch():
    one = price(Work("matmul", SQUARE.flops, OPERANDS, OPERANDS // 2, (SQUARE,)))
    two = price(Work("matmul", 2 * SQUARE.flops, OPERANDS, OPERANDS, (SQUARE,) * 2))
    launch = KNOWN.matmul("bf16").launch_seconds
    assert two.seconds == pytest.approx(2 * one.seconds - launch)
    assert one.seconds == matmul_seconds(SQUARE, H100.gpu, KNOWN)


@given(st.tuples(*[st.integers(1, 1 << 14)] * 3), st.sampled_from(["l40s", "b200"]))
def test_a_product_alone_takes_what_its_shape_says(sizes, name):
    """Also where its operands lay in the cache when kernels of its size were measured."""
    m, n, k = sizes
    cluster, product = Cluster.parse(name), Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    constants = load_constants(cluster)
    moved = Work("matmul", product.flops, 2 * k * (m + n), 2 * m * n, (product,))
    expected = matmul_seconds(product, cluster.gpu, constants.kernels)
    assert kernel_price(moved, cluster, constants).seconds == expected


def test_what_is_fused_to_a_product_can_be_what_takes_long():
    thin = Matmul(1, 16, 4096, 4096, "bf16", "bf16", "bf16")
    alone = price(Work("matmul", thin.flops, 1 << 25, 1 << 17, (thin,)))
    fused = price(Work("matmul", thin.flops, 1 << 30, 1 << 17, (thin,)))
    assert alone.bound == fused.bound == "memory"
    assert fused.seconds > (1 << 30) / H100.gpu.memory_bytes_per_s > alone.seconds


def test_attention_runs_its_visible_operations():
    scores = Matmul(32, 4096, 4096, 128, "bf16", "bf16", "f32")
    mix = Matmul(32, 4096, 128, 4096, "bf16", "bf16", "bf16")
    full = Work("attention", 2 * scores.flops, 1 << 27, 1 << 25, (scores, mix))
    half = dataclasses.replace(full, flops=full.flops / 2)
    launch = KNOWN.launch_seconds
    spent = price(full).seconds - launch
    assert price(half).seconds - launch == pytest.approx(spent / 2)
    assert price(full).resource_share == pytest.approx(
        KNOWN.attention_efficiency * spent / (spent + launch)
    )


def test_a_convolution_without_a_shape_uses_the_tensor_cores():
    found = price(Work("convolution", 1e13, 1 << 20, 1 << 20))
    peak = H100.gpu.dense_flops_per_s["bf16"] * KNOWN.convolution_efficiency
    assert found.bound == "arithmetic"
    assert found.seconds == pytest.approx(1e13 / peak, rel=1e-3)


def test_plain_arithmetic_takes_issue_slots():
    found = price(Work("fusion", 1e12, 1 << 20, 1 << 20))
    slots = 128 * H100.gpu.sm_count * H100.gpu.boost_clock_hz
    assert found.seconds == pytest.approx(
        1e12 * KNOWN.issued_per_operation / slots, rel=1e-3
    )


def test_what_is_computed_again_for_each_element_counts():
    once = Work("fusion", 1e9, 1 << 20, 1 << 20)
    again = dataclasses.replace(once, executed=1e12)
    assert price(again).seconds > 100 * price(once).seconds
    assert price(again).bound == "arithmetic"


def test_arithmetic_and_memory_about_equal_take_longer_than_either():
    slots = 128 * H100.gpu.sm_count * H100.gpu.boost_clock_hz
    arithmetic = price(Work("fusion", 1e11, 0, 0)).seconds - KNOWN.launch_seconds
    assert arithmetic == pytest.approx(1e11 * KNOWN.issued_per_operation / slots)
    rate = H100.gpu.memory_bytes_per_s * KNOWN.memory_shares["fusion"]
    both = price(Work("fusion", 1e11, round(arithmetic * rate), 0)).seconds
    assert both - KNOWN.launch_seconds == pytest.approx(2**0.25 * arithmetic, rel=1e-3)


def test_a_reduction_by_columns_is_slower_and_starts_no_later():
    rows = Work("reduction", 0.0, 1 << 30, 1 << 20)
    columns = dataclasses.replace(rows, by_columns=True)
    shares = KNOWN.memory_shares
    start = KNOWN.launch_seconds + KNOWN.reduction_seconds
    assert (price(columns).seconds - start) / (
        price(rows).seconds - start
    ) == pytest.approx(shares["reduction"] / shares["reduction by columns"])


def test_an_element_that_is_written_alone_moves_a_sector():
    rows = Work("reduction", 0.0, 1 << 30, 1 << 20)
    across = dataclasses.replace(rows, strided=10_000_000)
    rate = H100.gpu.memory_bytes_per_s * KNOWN.sector_speedup
    more = price(across).seconds - price(rows).seconds
    assert more == pytest.approx(32 * 10_000_000 / rate)


def test_the_gap_is_a_part_of_a_kernels_time_and_not_the_products():
    small = price(Work("copy", 0.0, 64, 64))
    assert small.gap_seconds == KNOWN.gap_seconds
    assert small.seconds - small.gap_seconds == pytest.approx(
        KNOWN.start_seconds, rel=1e-3
    )
    product = price(Work("matmul", SQUARE.flops, OPERANDS, OPERANDS // 2, (SQUARE,)))
    assert product.gap_seconds == 0.0


def test_scattered_traffic_is_slower_than_streams():
    kinds = ("copy", "reduction", "transpose", "scatter")
    found = [price(Work(kind, 0.0, 1 << 29, 1 << 29)).seconds for kind in kinds]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_the_share_of_the_bandwidth_grows_with_the_bytes():
    shares = [
        price(Work("copy", 0.0, 1 << n, 1 << n)).resource_share for n in range(26, 34)
    ]
    assert shares == sorted(shares)


def test_what_fits_in_the_cache_moves_faster():
    gpu = H100.gpu
    room = gpu.l2_bytes * KNOWN.cache_share
    rate = gpu.memory_bytes_per_s * KNOWN.memory_shares["copy"]
    inside = memory_seconds("copy", room, gpu, KNOWN)
    assert inside == pytest.approx(room / rate / KNOWN.cache_speedup)
    outside = memory_seconds("copy", 2 * room, gpu, KNOWN)
    assert outside == pytest.approx(2 * room / rate)


BYTES = st.integers(0, 1 << 32)


@given(st.sampled_from(sorted(KINDS)), BYTES, BYTES)
def test_more_bytes_never_take_less_time(kind, one, other):
    small, big = sorted((one, other))
    assert (
        price(Work(kind, 0.0, small, 0)).seconds
        <= price(Work(kind, 0.0, big, 0)).seconds
    )


@given(st.sampled_from(sorted(KINDS)), st.floats(0, 1e15), BYTES, BYTES, BYTES)
def test_prices_are_times_and_shares_are_shares(kind, flops, read, written, host):
    found = price(Work(kind, flops, read, written, (), host))
    assert found.seconds >= KNOWN.launch_seconds
    assert 0 <= found.resource_share <= 1
    assert found.bound in ("arithmetic", "memory", "host link", "launch")
