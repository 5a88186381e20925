"""What a program is made of, and what is different about another, in words."""

import dataclasses

import pytest

from lagom_jax.hlo.work import Work
from lagom_jax.options import StepStructure, changes, structure_of
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

from ..cost.programs import collective, launch, program, wait
from .compiled import compile_again, compiled


def copy(nbytes=8):
    return Run(Kernel("copy", Work("copy", 0.0, nbytes, nbytes)))


def step(*nodes):
    return structure_of(program(*nodes))


GATHERED = (launch("gather", 7), copy(), wait(7))


def looped(trips, *nodes):
    return Loop("l", nodes or GATHERED, trips, True)


def test_names_and_tokens_do_not_matter():
    one = step(launch("gather", 7), copy(), wait(7))
    assert one == step(launch("another", 3), copy(), wait(3))
    assert changes(one, one) == ""


@pytest.mark.slow
def test_the_same_step_compiled_twice_has_the_same_structure():
    assert structure_of(compile_again("chain")) == structure_of(compiled("chain"))


def test_another_order():
    other = step(copy(), launch("gather", 7), wait(7))
    assert changes(step(*GATHERED), other) == "the same tasks in another order"


def test_which_launch_is_waited_for_first():
    two = (launch("a", 1), launch("b", 2))
    one, other = step(*two, wait(1), wait(2)), step(*two, wait(2), wait(1))
    assert changes(one, other) == "the same tasks in another order"


def test_a_collective_that_nothing_hides_any_more():
    other = step(Run(collective("gather", is_sync=True)), copy())
    assert changes(step(*GATHERED), other) == "all-gathers that nothing hides 0 → 1"


def test_a_loop_with_other_trips():
    assert changes(step(looped(32)), step(looped(16))) == (
        "a loop of 32 trips has 16; all-gathers 32 → 16; copies 32 → 16"
    )


def test_loops_alike_are_named_once():
    one = step(looped(32), looped(32))
    other = step(looped(16), looped(16))
    assert changes(one, other).startswith("a loop of 32 trips has 16; ")


def test_a_loop_that_is_written_out():
    assert changes(step(looped(2)), step(*GATHERED, *GATHERED)) == (
        "trips of loops 2 → none"
    )


def test_loops_without_collectives_are_not_named():
    one, other = step(looped(4, copy())), step(looped(8, copy()))
    assert one.loops == ()
    assert changes(one, other) == "copies 4 → 8"


def test_other_sizes_are_told_apart():
    assert changes(step(copy(8)), step(copy(16))) == "other kernels, or other sizes"


def test_all_arms_of_a_branch_count():
    branch = Branch("b", ((copy(),), GATHERED))
    assert step(branch).kernels == {"copy": 2}
    assert step(branch).collectives == {"all-gather": (1, 0)}
    turned = Branch("b", (GATHERED, (copy(),)))
    assert changes(step(branch), step(turned)) == "the same tasks in another order"


def test_a_task_on_another_stream_is_another_program():
    site = collective("gather")
    one, other = (
        structure_of(Program("p", (Launch(site, stream, 1), Wait((1,))), 2))
        for stream in (Stream.COLLECTIVE, Stream.SEND)
    )
    assert one.digest != other.digest


def test_kinds_that_come_and_go():
    one = StepStructure("a", "a", (), {"all-reduce": (3, 0)}, {"matmul": 2})
    other = StepStructure("b", "b", (), {"reduce-scatter": (3, 1)}, {"matmul": 1})
    assert changes(one, other) == (
        "all-reduces 3 → 0; reduce-scatters 0 → 3; reduce-scatters that nothing hides "
        "0 → 1; matmuls 2 → 1"
    )
    assert changes(one, dataclasses.replace(other, digest="a")) == ""
