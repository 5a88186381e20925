"""Kernels: which are measured, what of a profile counts, and which constants follow."""

import dataclasses
import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from gpu_stages import kernels
from gpu_stages.clusters import cluster_of
from gpu_stages.kernel_cases import Case, arrays, cases, chain, product_case
from gpu_stages.kernel_fit import Measurement, changed, fit
from gpu_stages.kernel_report import Found, Timed, outcome
from gpu_stages.kernel_times import (
    compile_case,
    kernel_seconds,
    ready,
    seconds_of_a_launch,
)
from gpu_stages.model_products import heaviest, products_of
from gpu_stages.stage import CannotRunError, Clock, Request, Spread
from lagom_jax.compile import compile_step, lower
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo import read_module
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.measure.executions import Event
from lagom_jax.schedule.build import build_program
from lagom_jax.schedule.program import Kernel, Loop, Program, Run

CLUSTER = cluster_of("h100")
OLD = load_constants(CLUSTER)


def copy_of(nbytes, kind="copy"):
    return Work(kind, 0.0, nbytes // 2, nbytes // 2)


# Products of models


def test_products_are_those_of_one_devices_share():
    whole = products_of("phi-2", "dp", 8)
    cut = products_of("phi-2", "tp", 8)
    # 2 sequences of 2048 tokens by themselves, or 8 of them with an eighth of the
    # feed-forward each.
    assert any((p.m, p.n, p.k) == (4096, 10240, 2560) for p in whole)
    assert any((p.m, p.n, p.k) == (16384, 1280, 2560) for p in cut)
    first = heaviest(whole, 3)
    assert [p.flops * whole[p] for p in first] == sorted(
        (p.flops * n for p, n in whole.items()), reverse=True
    )[:3]


def test_the_backward_pass_has_twice_the_products_of_the_forward_pass():
    products = products_of("llama-3-8b", "fsdp", 8)
    feed_forward = {
        (1, *sizes): sum(n for p, n in products.items() if (p.m, p.n, p.k) == sizes)
        for sizes in itertools.permutations((2048, 4096, 14336))
    }
    # Three products forward, twice as many backward, and the forward ones again.
    assert sum(feed_forward.values()) == 12 - 1


# Cases


@pytest.mark.parametrize("dry", [True, False])
def test_cases_can_be_traced_and_have_names_of_their_own(dry):
    found = [
        case
        for case in cases(CLUSTER.gpu, dry=dry)
        if not case.what.startswith("atten")
    ]
    assert len({case.what for case in found}) == len(found)
    for case in found:
        jax.eval_shape(case.function, *case.arguments)


def test_when_time_runs_out_there_are_products_and_sizes_to_fit_and_to_judge():
    found = list(cases(CLUSTER.gpu, dry=False))
    first = [case.what for case in found[: len(found) // 3]]
    assert {"sort, 128 MiB", "sort, 256 MiB"} <= set(first)
    assert sum(what.endswith(("bf16", "f32")) for what in first) > 20
    assert any(what.startswith("attention") for what in first)
    assert max(case.nbytes for case in found) < 3 << 30


def test_gpus_without_fp8_are_not_asked_for_it():
    def types(gpu):
        return {
            str(c.arguments[0].dtype) for c in cases(cluster_of(gpu).gpu, dry=False)
        }

    assert "float8_e4m3fn" in types("h200")
    assert "float8_e4m3fn" not in types("a100")


def test_arguments_are_random_and_in_bounds():
    numbers = jax.ShapeDtypeStruct((1 << 10,), jnp.float32)
    rows = jax.ShapeDtypeStruct((1 << 12,), jnp.int32)
    x, row = arrays(Case("", lambda x, row: x[row], (numbers, rows), below=1 << 10))
    assert 0.9 < float(x.std()) < 1.1
    assert 0 <= int(row.min()) <= int(row.max()) < 1 << 10
    assert len(set(row.tolist())) > 900


def test_a_product_is_compiled_as_it_is_asked_for():
    wanted = Matmul(2, 64, 32, 16, "f32", "f32", "f32")
    program = compile_case(product_case(wanted), "product").program
    (product,) = [m for task, _, _ in program.tasks() for m in task.work.matmuls]
    assert product.flops == wanted.flops


def test_what_cannot_be_compiled_is_replaced_and_told():
    def refuse(x):
        raise NotImplementedError("no such library\nsearched in vain")

    shape = (jax.ShapeDtypeStruct((8,), jnp.float32),)
    instead = compile_case(Case("", refuse, shape, else_function=jnp.tanh), "instead")
    assert instead.instead_because == "no such library"
    with pytest.raises(NotImplementedError, match="searched"):
        compile_case(Case("", refuse, shape), "refused")


@pytest.mark.slow
def test_a_chain_stays_a_chain_on_gpus():
    case = chain(12)
    compiled = compile_step(lower(case.function, *case.arguments), CLUSTER_OF_ONE)
    program = build_program(read_module(compiled.module_bytes))
    assert sum(n for _, n, _ in program.tasks()) == 12


CLUSTER_OF_ONE = cluster_of("h100", 1)


def test_chains_of_as_many_kernels_measure_no_launch():
    short = compile_case(chain(4), "short")
    count = sum(n for _, n, _ in short.program.tasks())
    with pytest.raises(CannotRunError, match=f"into {count} and {count} kernels"):
        seconds_of_a_launch(short, short, rounds=1, runs=1)


# Profiles


def event(start, seconds, kernel, op, module="step"):
    return Event("gpu0", "s", start, seconds, kernel, op, module)


def test_all_kernels_of_an_instruction_count():
    once, often = (Kernel(name, copy_of(1 << 20)) for name in ("sort.1", "body.1"))
    program = Program("step", (Run(once), Loop("l", (Run(often),), 3, True)), 1)
    events = []
    for run in range(2):
        at = 100 * run
        # A radix sort is a kernel for the histogram, and then the same one for each
        # digit.
        events += [event(at, 1e-6, "histogram", "sort.1")]
        events += [event(at + n, 4e-6, "digit", "sort.1") for n in (1, 2, 3)]
        events += [event(at + n, 5e-6, "k", "body.1") for n in (10, 11, 12)]
    found = kernel_seconds(program, events, CostModel.of(CLUSTER), runs=2)
    assert found[once] == pytest.approx(13e-6)
    assert found[often] == pytest.approx(5e-6)
    assert kernel_seconds(program, [], CostModel.of(CLUSTER), runs=2) == {}


def test_a_program_that_does_not_run_does_not_stop_the_others():
    def fail(x):
        return jax.pure_callback(lambda _: 1 / 0, x, x)

    shape = (jax.ShapeDtypeStruct((8,), jnp.float32),)
    good, bad = (
        compile_case(Case(what, function, shape), what)
        for what, function in (("good", jnp.tanh), ("bad", fail))
    )
    now = Clock.of(Request("h100", True, 60.0, Path()))
    found, failed = ready([bad, good], now, 0.0)
    assert list(found) == [good]
    (line,) = failed
    assert line.startswith("bad does not run: ")
    found, failed = ready([good, bad], now, 100.0)
    assert list(found) == [good]
    assert failed == ["no time was left to run: bad"]


# Constants


def measurements(constants, works, *, off=1.0):
    """As the kernels would be measured if these were the constants."""
    return [
        Measurement.of(
            Kernel("k", work), off * kernel_price(work, CLUSTER, constants).seconds
        )
        for work in works
    ]


SIZES = [2**n for n in range(20, 31)]


def test_a_share_is_found_again_and_others_stay():
    true = changed(OLD, {"memory_shares": {"copy": 0.7, "gather": 0.5}})
    works = [copy_of(n, kind) for n in SIZES for kind in ("copy", "gather", "fusion")]
    choices, new = fit(measurements(true, works), CLUSTER, OLD)
    shares = new.kernels.memory_shares
    assert shares["copy"] == pytest.approx(0.7, rel=0.02)
    assert shares["gather"] == pytest.approx(0.5, rel=0.02)
    assert shares["fusion"] == OLD.kernels.memory_shares["fusion"]
    assert {choice.what for choice in choices} == {"memory, copy", "memory, gather"}
    assert all(choice.after.median < 0.03 for choice in choices)


def test_launches_cache_attention_and_the_host_link_are_found_again():
    true = changed(
        OLD,
        {
            "launch_seconds": 1.5e-6,
            "attention_efficiency": 0.8,
            "host_link_efficiency": 0.6,
            "host_link_seconds": 1e-5,
        },
    )
    heads = Matmul(1, 64, 64, 64, "bf16", "bf16", "f32")
    works = [
        *(copy_of(n) for n in SIZES),
        *(copy_of(2**n) for n in range(8, 16)),
        *(Work("attention", 2.0**n, 0, 0, (heads,)) for n in range(34, 42)),
        *(Work("host-copy", 0.0, 0, 0, (), 2**n) for n in range(20, 28)),
    ]
    _, new = fit(measurements(true, works), CLUSTER, OLD)
    found, wanted = new.kernels, true.kernels
    assert found.launch_seconds == pytest.approx(wanted.launch_seconds, rel=0.1)
    assert found.attention_efficiency == pytest.approx(0.8, rel=0.03)
    assert found.host_link_efficiency == pytest.approx(0.6, rel=0.05)


def test_what_makes_kept_out_sizes_worse_is_no_choice():
    works = [copy_of(n) for n in SIZES]
    exact = measurements(OLD, works)
    # The sizes that are fitted to say another thing than those that judge.
    bent = [
        m if m.kept_out else dataclasses.replace(m, seconds=1.5 * m.seconds)
        for m in exact
    ]
    assert fit(bent, CLUSTER, OLD) == ([], OLD)


def test_every_second_size_is_kept_out():
    kept_out = {n: Measurement.of(Kernel("k", copy_of(n)), 1.0).kept_out for n in SIZES}
    assert [kept_out[n] for n in SIZES] == [bool(n % 2) for n in range(20, 31)]
    with_noise = Measurement.of(Kernel("k", copy_of(3 * (1 << 20) // 2)), 1.0)
    assert with_noise.kept_out == (round(math.log2(1.5 * (1 << 20))) % 2 == 1)


# What is said


def found_with(timed):
    tiny = Kernel("tiny", copy_of(2048, "fusion"))
    spread = Spread.of([2.0, 2.1])
    return Found(timed, tiny, spread, Spread.of([4.0]), 1.5, 0.5, 0.0, None, ["why"])


def timed(work, seconds):
    return Timed("a case", Kernel("k", work), Spread.of([1e6 * seconds] * 3))


def said(factor):
    matmul = Matmul(1, 4096, 4096, 4096, "bf16", "bf16", "bf16")
    product = Work("matmul", float(matmul.flops), 1 << 26, 1 << 25, (matmul,))
    works = [product] * 3 + [copy_of(n) for n in SIZES]
    kernels_ = [
        timed(work, factor * kernel_price(work, CLUSTER, OLD).seconds) for work in works
    ]
    found = found_with(kernels_)
    choices, new = fit([one.measurement for one in kernels_], CLUSTER, OLD)
    return outcome(found, CLUSTER, OLD, choices, new)


def test_a_model_that_is_right_meets_its_goals():
    found = said(1.0)
    scores = {score.what: score for score in found.scores}
    assert scores["matmul, median error of 3"].met
    assert scores["matmul, 90th percentile"].met
    assert scores["copy, median error of 11"].met is None
    assert all(row.kept_out for row in found.rows)
    assert not found.updates
    # The chain alone is not as the model has it.
    (finding,) = found.findings
    assert finding.startswith("A tiny kernel takes 2.05 us of a CUDA graph")
    assert "why" in found.left_out


def test_a_model_that_is_wrong_misses_them_and_is_mended_where_it_can_be():
    found = said(2.0)
    scores = {score.what: score for score in found.scores}
    assert scores["matmul, median error of 3"].met is False
    assert any(
        "the kind matmul the model's times are 0.50" in finding
        for finding in found.findings
    )
    updates = {update.name: update for update in found.updates}
    assert updates["memory_shares"].value["copy"] == pytest.approx(0.45, rel=0.05)
    assert "kernels; on" in updates["memory_shares"].source
    (mended,) = (s for s in found.scores if "copy" in s.what and "before" in s.what)
    assert mended.kept_out
    assert mended.value < 0.1


def test_shares_of_an_earlier_run_are_kept(monkeypatch):
    monkeypatch.setattr(
        "gpu_stages.kernel_report.measured",
        lambda gpu, section: {"memory_shares": {"sort": 0.1}},
    )
    (shares,) = (u for u in said(2.0).updates if u.name == "memory_shares")
    assert shares.value["sort"] == 0.1
    assert "copy" in shares.value


@pytest.mark.slow
def test_a_dry_run_goes_the_whole_way(tmp_path):
    found = kernels.run(Request("h100", True, 280.0, tmp_path))
    series = {row.series for row in found.rows}
    assert series >= {"launch", "copy", "fusion", "reduction", "transpose"}
    assert series >= {"gather", "scatter", "sort", "fft"}
    assert any(name.startswith("matmul") for name in series)
    assert {row.measured.count for row in found.rows if row.series != "clock"} == {2}
    assert all(row.predicted > 0 for row in found.rows if row.series != "clock")
    assert any("cuDNN" in line for line in found.left_out)
    assert not any("no time" in line for line in found.left_out)
    assert any("matmul, median error" in score.what for score in found.scores)


@pytest.mark.slow
def test_without_time_little_is_measured_and_that_is_said(tmp_path):
    found = kernels.run(Request("h100", True, 1.0, tmp_path))
    assert {row.series for row in found.rows} <= {"launch", "clock"}
    assert any("no time was left to compile: " in line for line in found.left_out)
