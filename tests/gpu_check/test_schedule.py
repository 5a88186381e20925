"""Schedules that differ in one thing differ in that thing, and in nothing else."""

import dataclasses
import json

import numpy as np
import pytest

from gpu_stages import schedule
from gpu_stages.running import ChildError
from gpu_stages.schedule import compare, transfers
from gpu_stages.stage import CannotRunError, Request
from lagom_jax.compile import Target
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import (
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Wait,
)
from tests.cost.programs import collective

from .staged import staged


def product(m, n, k, parts=1):
    matmul = Matmul(parts, m, n, k // parts, "bf16", "bf16", "bf16")
    return Run(Kernel("product", Work("matmul", float(matmul.flops), 0, 0, (matmul,))))


def norm():
    return Run(Kernel("norm", Work("reduction", 0.0, 100, 0)))


def start(token, nbytes=1 << 20, **more):
    task = collective(f"gather.{token}", nbytes=nbytes, **more)
    return Launch(task, Stream.COLLECTIVE, token)


def program(*nodes):
    return Program("step", nodes, 2)


# Weights are gathered while the layer before computes, gradients scattered behind.
STEP = (
    start(1, 1 << 20),
    norm(),
    Wait((1,)),
    start(2, 2 << 20),
    product(64, 32, 16),
    norm(),
    Wait((2,)),
    start(3, 4 << 20, kind="reduce-scatter"),
    product(64, 16, 32),
    Wait((3,)),
)


def differences(*nodes, of=STEP):
    """Collectives in another order, and with other products."""
    found = compare(program(*of), program(*nodes))
    numbers = (found.other_order, found.other_products)
    return numbers, found.only_first, found.only_second


def test_a_schedule_is_like_itself():
    assert differences(*STEP) == ((0, 0), (), ())
    assert compare(program(*STEP), program(*STEP)).collectives == 3
    assert compare(program(), program()).collectives == 0


def test_names_and_sides_of_products_mean_nothing():
    turned = [
        dataclasses.replace(node, task=dataclasses.replace(node.task, name="other"))
        if isinstance(node, Run | Launch)
        else node
        for node in STEP
    ]
    turned[4] = product(32, 64, 16)
    assert differences(*turned) == ((0, 0), (), ())


def test_a_sum_that_was_split_is_the_same_product():
    split = (*STEP[:4], product(64, 32, 16, parts=4), *STEP[5:])
    assert differences(*split) == ((0, 0), (), ())


def test_one_that_starts_elsewhere():
    a, b, c = (start(n, n << 20) for n in (1, 2, 4))
    wait = Wait((1, 2, 4))
    found = differences(c, a, b, wait, of=(a, b, c, wait))
    moved = "all-gather of 4.19 MB in groups of 2 (1 time)"
    assert found == ((1, 0), (moved,), (moved,))


GROUPS = Groups(np.array([[0, 2], [1, 3]]))
AMONG = dataclasses.replace(STEP[3].task, groups=GROUPS)
SYNC = Run(dataclasses.replace(STEP[0].task, is_sync=True))


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        pytest.param((*STEP[:3], *STEP[4:6], *STEP[7:]), (1, 1), id="missing"),
        pytest.param((start(1, 3 << 20), *STEP[1:]), (1, 1), id="other bytes"),
        pytest.param(
            (*STEP[:3], Launch(AMONG, Stream.COLLECTIVE, 2), *STEP[4:]),
            (1, 1),
            id="among others",
        ),
        pytest.param(
            (*STEP[:3], STEP[4], STEP[3], *STEP[5:]), (0, 1), id="behind a product"
        ),
        pytest.param(
            (*STEP[:3], norm(), *STEP[3:5], *STEP[6:]), (0, 0), id="behind another"
        ),
        pytest.param((SYNC, STEP[1], *STEP[3:]), (0, 1), id="synchronous"),
    ],
)
def test_one_that_differs(nodes, numbers):
    assert differences(*nodes)[0] == numbers


def test_differences_are_shown():
    (_, (first,), (second,)) = differences(*STEP[:3], STEP[4], STEP[3], *STEP[5:])
    assert second == "all-gather of 2.10 MB in groups of 2 (1 time)"
    assert first == f"{second} beside 32 x 64 x 16"


def test_loops_count():
    def loop(trips):
        return Loop("layers", STEP, trips, True)

    assert [one.times for one in transfers(program(loop(32)))] == [32] * 3
    assert differences(loop(16), of=(loop(32),))[0] == (3, 3)


def test_what_one_iteration_starts_may_end_in_the_next():
    one, other, last = (product(8, 8, n) for n in (1, 2, 3))
    body = (one, Wait((0, 1)), other, start(1), last)
    (first, carried) = transfers(program(start(0), Loop("layers", body, 4, True)))
    assert first.products == ((8, 8, 1),)
    assert carried.times == 4
    assert carried.products == ((8, 8, 1), (8, 8, 3))


def test_of_a_branch_all_arms_count():
    branch = Branch("either", ((product(8, 8, 1),), (product(8, 8, 2),)))
    (one,) = transfers(program(start(1), branch, Wait((1,))))
    assert one.products == ((8, 8, 1), (8, 8, 2))


def test_several_that_share_a_token_end_together():
    found = transfers(program(start(1), start(1), product(8, 8, 1), Wait((1,))))
    assert [one.products for one in found] == [((8, 8, 1),)] * 2


def request(folder, seconds=280.0):
    return Request("h100", True, seconds, str(folder))


@pytest.mark.nightly
def test_a_program_of_other_options_refutes_it(tmp_path, monkeypatch):
    options = json.dumps({"xla_gpu_all_gather_combine_threshold_bytes": 1})
    found = staged("schedule", tmp_path, monkeypatch, xla_options=options)
    assert found.verdict == "refuted", found
    assert any("on the GPU alone" in text for text in found.outcome.findings)


@pytest.mark.parametrize(
    ("sizes", "seconds", "why"),
    [
        ({"parallelism": "tp", "model_axis": 3}, 60.0, "does not divide"),
        ({"parallelism": "dp"}, 0.1, "not done after 0 s"),
    ],
)
def test_a_step_that_cannot_be_compiled_says_why(tmp_path, sizes, seconds, why):
    target = Target("h100", "a target", "1x8x1")
    with pytest.raises(ChildError, match=why):
        schedule.on_the_gpu(("phi-2", sizes), request(tmp_path), seconds, target)


def test_without_time_nothing_is_claimed(tmp_path):
    with pytest.raises(CannotRunError, match="no time was left"):
        schedule.run(request(tmp_path, seconds=1.0))
