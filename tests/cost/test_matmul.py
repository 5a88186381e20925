"""Matmuls alone: closed forms of the formula, laws, and the measurements."""

import csv
import dataclasses
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lagom_jax.cost
from lagom_jax.cluster import Cluster
from lagom_jax.cost.kernel_constants import (
    Correction,
    MatmulConstants,
    hat_weights,
    load_kernel_constants,
)
from lagom_jax.cost.matmul import (
    Problems,
    formula,
    matmul_seconds,
    predicted,
    rate_of,
)
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.matmul import Matmul

COST = Path(lagom_jax.cost.__file__).parent
RECORDS = sorted((COST / "constants" / "kernels").glob("*.json"))
GPUS = {name: Cluster.parse(name).gpu for name in Cluster.names()}
H100 = GPUS["h100"]
PEAK = 1e15
NOTHING = Correction((1.0,), (1.0,), (1.0,), (1.0,), np.zeros((1, 1, 1, 1)))
# Everything but arithmetic free, and splitting never worth it.
ARITHMETIC_ONLY = MatmulConstants(
    launch_seconds=0.0,
    arithmetic_efficiency=1.0,
    feed_bytes_per_cycle=1e9,
    tile_seconds=0.0,
    memory_efficiency=1e9,
    join_seconds=1.0,
    join_share=1e9,
    correction=NOTHING,
    calibrated=False,
    source="",
)


def bare(batch, m, n, k, constants=ARITHMETIC_ONLY, types="bf16", peak=PEAK):
    problems = Problems.of([Matmul(batch, m, n, k, types, types, types)])
    return float(formula(problems, H100, peak, constants)[0])


def seconds(gpu, batch, m, n, k, types="bf16"):
    matmul = Matmul(batch, m, n, k, types, types, types)
    return matmul_seconds(matmul, gpu, load_kernel_constants(gpu.name))


def one_wave(rows, columns, k):
    return 2 * rows * columns * k * H100.sm_count / PEAK


def test_waves_quantise():
    full = one_wave(64, 64, 4096)
    assert bare(1, 64, 64, 4096) == pytest.approx(full)
    assert bare(H100.sm_count, 64, 64, 4096) == pytest.approx(full)
    assert bare(H100.sm_count + 1, 64, 64, 4096) == pytest.approx(2 * full)


def test_k_comes_in_steps():
    assert bare(1, 64, 64, 65) == bare(1, 64, 64, 128) == 2 * bare(1, 64, 64, 64)


def test_the_best_tile_is_taken():
    """132 tiles of 256x128 fill the GPU; smaller ones do no better, none do worse."""
    assert bare(1, 256 * 12, 128 * 11, 512) == pytest.approx(one_wave(256, 128, 512))
    fed = dataclasses.replace(ARITHMETIC_ONLY, feed_bytes_per_cycle=100.0)
    rate = fed.feed_bytes_per_cycle * H100.boost_clock_hz
    # Tiles of 64x64 are needed to occupy all SMs, but they bring in more per operation.
    bringing = 512 * (64 + 64) * 2 / rate
    small = bare(H100.sm_count, 64, 64, 512, fed)
    assert small == pytest.approx(max(bringing, one_wave(64, 64, 512)))


def test_a_long_sum_is_split():
    free = dataclasses.replace(ARITHMETIC_ONLY, join_seconds=0.0)
    whole = bare(1, 64, 64, 16384)
    assert bare(1, 64, 64, 16384, free) == pytest.approx(whole / 16)
    dear = dataclasses.replace(ARITHMETIC_ONLY, join_seconds=whole / 4)
    assert bare(1, 64, 64, 16384, dear) == pytest.approx(whole / 4 + whole / 16)


def test_a_short_sum_is_not_split():
    free = dataclasses.replace(ARITHMETIC_ONLY, join_seconds=0.0)
    assert bare(1, 64, 64, 768, free) == bare(1, 64, 64, 768)
    assert bare(1, 64, 64, 1024, free) == pytest.approx(bare(1, 64, 64, 768))


def test_memory_limits_thin_products():
    narrow = dataclasses.replace(ARITHMETIC_ONLY, memory_efficiency=0.5)
    moved = 2 * (64 * 1024 + 1024 * 1024 + 64 * 1024)
    limit = moved / (H100.memory_bytes_per_s / 2)
    found = bare(1, 64, 1024, 1024, narrow, peak=1e18)
    assert found == pytest.approx(limit, rel=1e-3)


def test_operands_that_outgrow_the_cache_are_read_again():
    narrow = dataclasses.replace(ARITHMETIC_ONLY, memory_efficiency=1e-3)
    side = 16384
    once = 3 * 2 * side**2 / (H100.memory_bytes_per_s * 1e-3)
    assert bare(1, side, side, side, narrow) > 2 * once


def test_tiles_smaller_than_the_largest_reach_less():
    less = dataclasses.replace(ARITHMETIC_ONLY, small_tile_share=0.8)
    largest = one_wave(256, 128, 512)
    assert bare(1, 256 * 12, 128 * 11, 512, less) == pytest.approx(largest)
    one = one_wave(64, 64, 512)
    assert bare(H100.sm_count, 64, 64, 512, less) == pytest.approx(one / 0.8)
    # At half of the rate a wave of small tiles is no better than one of the largest.
    half = dataclasses.replace(ARITHMETIC_ONLY, small_tile_share=0.5)
    one = one_wave(256, 64, 512)
    assert bare(H100.sm_count, 256, 64, 512, half) == pytest.approx(2 * one)


def test_a_tile_takes_time_by_its_area():
    written = dataclasses.replace(ARITHMETIC_ONLY, area_seconds=1e-6)
    for side, share in ((64, 1 / 4), (128, 1)):
        found = bare(H100.sm_count, side, side, 64, written)
        assert found == pytest.approx(one_wave(side, side, 64) + 1e-6 * share)


def test_long_kernels_run_at_the_rate_that_the_power_sustains():
    held = dataclasses.replace(
        ARITHMETIC_ONLY, sustained_share=0.5, settle_seconds=1e-3
    )
    ratios = [
        bare(1, 8192, 8192, k, held) / (2 * 8192 * 8192 * k / PEAK)
        for k in (64, 4096, 1 << 22)
    ]
    full = bare(1, 8192, 8192, 64) / (2 * 8192 * 8192 * 64 / PEAK)
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(full, rel=0.02)
    assert ratios[-1] == pytest.approx(2, rel=0.01)
    # Waves that are not full leave power to spare.
    more = dataclasses.replace(held, sustained_share=0.6)
    poor = bare(H100.sm_count + 1, 64, 64, 1 << 22, more)
    assert poor == pytest.approx(bare(H100.sm_count + 1, 64, 64, 1 << 22))


def test_a_correction_is_interpolated_and_ends_at_its_edges():
    grid = np.zeros((2, 1, 1, 1))
    grid[1] = 1.0
    found = Correction((1.0, 16.0), (256.0,), (256.0,), (256.0,), grid)
    batches = np.array([0.5, 1, 4, 16, 64])
    same = np.full((3, 5), 512.0)
    np.testing.assert_allclose(found.log_factor(batches, *same), [0, 0, 0.5, 1, 1])


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=5),
    st.lists(st.integers(0, 16), min_size=1, max_size=4, unique=True),
)
def test_weights_of_knots_add_up(sizes, exponents):
    knots = (tuple(2.0**e for e in sorted(exponents)),) * 2
    weights = hat_weights(knots, (np.array(sizes), np.array(sizes[::-1])))
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all()


SIZE = st.integers(1, 1 << 15)
TYPES = st.sampled_from(["bf16", "f16", "f32", "f8e4m3fn", "s8", "f64", "c64"])


@given(
    st.sampled_from(sorted(GPUS)),
    TYPES,
    st.tuples(st.integers(1, 64), SIZE, SIZE, SIZE),
    st.integers(0, 3),
    st.integers(1, 1 << 12),
)
def test_more_work_never_takes_less_time(name, types, sizes, axis, more):
    larger = list(sizes)
    larger[axis] += more
    gpu = GPUS[name]
    assert seconds(gpu, *larger, types) >= seconds(gpu, *sizes, types) * (1 - 1e-12)


@given(
    st.sampled_from(sorted(GPUS)),
    TYPES,
    st.tuples(st.integers(1, 1 << 12), SIZE, SIZE, SIZE),
)
def test_no_product_beats_the_peaks(name, types, sizes):
    gpu = GPUS[name]
    matmul = Matmul(*sizes, types, types, types)
    batch, m, n, k = sizes
    found = seconds(gpu, *sizes, types)
    assert matmul.flops / found <= rate_of(types, gpu)[1] * (1 + 1e-12)
    nbytes = batch * (m * k + k * n + m * n) * element_bytes(types)
    assert nbytes / found <= gpu.memory_bytes_per_s * (1 + 1e-12)


@pytest.mark.parametrize("name", sorted(GPUS))
def test_large_products_come_near_the_peak_everywhere(name):
    found = 2 * 16384**3 / seconds(GPUS[name], 1, 16384, 16384, 16384)
    # Cards for PCIe run into their power: the L40S was measured at 0.5 to 0.7.
    least = 0.5 if not GPUS[name].nvlink_links else 0.6
    assert least < found / GPUS[name].dense_flops_per_s["bf16"] < 0.95


def test_half_precision_types_are_alike_and_wider_ones_slower():
    sizes = (1, 4096, 4096, 4096)
    found = [seconds(H100, *sizes, t) for t in ("s8", "bf16", "f32", "f64", "c64")]
    assert found == sorted(found)
    assert seconds(H100, *sizes, "f16") == seconds(H100, *sizes, "bf16")
    assert seconds(H100, *sizes, "s32") > seconds(H100, *sizes, "bf16")


def test_empty_products_cost_a_launch():
    launch = load_kernel_constants("h100").matmul("bf16").launch_seconds
    assert 0 < seconds(H100, 1, 0, 4096, 64) < 2 * launch


def measured(gpu, types):
    name = {"h100": "h100-sxm"}.get(gpu, gpu)
    with (COST / "measured" / "matmuls.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == name]
    kind = f"{types}x{types}->{types}"
    return [
        (
            Matmul(*(int(r[c]) for c in ("batch", "m", "n", "k")), types, types, types),
            float(r["microseconds"]) * 1e-6,
        )
        for r in rows
        if r["types"] == kind
    ]


@pytest.mark.parametrize("gpu", ["h100", "b200"])
@pytest.mark.parametrize("types", ["bf16", "f32"])
def test_the_records_hold_the_fit(gpu, types):
    """What is written in the records predicts the rows it was fitted to."""
    matmuls, times = zip(*measured(gpu, types), strict=True)
    constants = load_kernel_constants(gpu)
    rate, peak = rate_of(types, GPUS[gpu])
    found = predicted(
        Problems.of(list(matmuls)), GPUS[gpu], peak, constants.matmul(rate)
    )
    # The table has a part of each launch in its times.
    found = found + constants.launch_in_table_seconds
    errors = abs(found / np.array(times) - 1)
    assert len(errors) > 150
    assert np.median(errors) < 0.07
    assert np.percentile(errors, 90) < 0.23


def test_no_long_kernel_of_the_l40s_was_measured_at_the_rate_of_a_short_one():
    with (COST / "measured" / "matmuls_alone.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == "l40s"]
    sizes = np.array([[int(r[c]) for c in ("m", "n", "k")] for r in rows], float)
    seconds = np.array([float(r["microseconds"]) for r in rows]) * 1e-6
    rates = 2 * sizes.prod(axis=1) / seconds / GPUS["l40s"].dense_flops_per_s["bf16"]
    assert rates[seconds > 1e-2].max() < 0.6
    assert rates[seconds < 1e-3].max() > 0.75
    sustained = load_kernel_constants("l40s").matmul("bf16").sustained_share
    assert 0.5 < sustained < 0.6


@pytest.mark.parametrize(("gpu", "rate"), [("h100", "tf32"), ("b200", "bf16")])
def test_rows_that_the_fit_has_not_seen_are_predicted(gpu, rate, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    script = importlib.import_module("fit_matmuls")
    everything, _ = script.all_rows()
    (rows,) = [r for r in everything if (r.gpu.name, r.rate) == (gpu, rate)]
    name, part = next(script.kept_out(rows))
    assert name == "shapes"
    errors = script.kept_out_errors(rows, part)
    # TensorFloat-32 on the H100 is short of launch times that cancel: the worst.
    assert np.median(errors) <= 0.1
    assert np.percentile(errors, 90) <= (0.35 if rate == "tf32" else 0.18)


def test_every_gpu_has_a_record_and_every_figure_a_source():
    assert {path.stem for path in RECORDS} == {gpu.name for gpu in GPUS.values()}
    estimated = json.loads((COST / "constants/estimated/kernels.json").read_text())
    for item in estimated["kernels"].values():
        assert item["source"].startswith("estimated: ")
    for path in RECORDS:
        record = json.loads(path.read_text())
        for item in record["matmuls"].values():
            assert item["source"], f"{path.name}: say where the figures are from"
            assert item["source"].startswith("estimated") != item["calibrated"], (
                f"{path.name}: the source of what is not calibrated to measurements of "
                "this GPU begins with 'estimated'"
            )
            assert item["calibrated"] or "errors" not in item, (
                f"{path.name}: errors are those of a fit, and nothing was fitted"
            )
            grid = np.array(item["correction"]["log_factors"])
            assert all((np.diff(grid, axis=axis) >= 0).all() for axis in range(4))
    for path in (COST / "constants" / "measured").glob("*.json"):
        for section in json.loads(path.read_text()).values():
            for item in section.values():
                assert item["source"].startswith("measured ")


def test_a_gpu_without_kernel_constants_is_refused():
    with pytest.raises(ClusterError, match=r"no kernel constants.*h100.*CONTRIBUTING"):
        load_kernel_constants("h1000")
