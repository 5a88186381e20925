"""From which order another is looked for, and by which models."""

import dataclasses

import pytest

from lagom_jax.planner.decide import Refused, Taken
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.sought import answered, edits_of, on_rings
from lagom_jax.planner.trial import Asked, Trial
from lagom_jax.scheduled import Scheduled

from .fakes import H100, JUDGE, KINDS, MODULES, an_order

SCORED = Scored(1.0, (1.0,) * 20, 0)
COUNTED = b"\x28\x07"
"""The number that XLA counts a module with."""


def trial(kind="usual", letter="a", captured=b"", **more):
    view = JUDGE.look(Scheduled(MODULES[kind], H100, "step"))
    asked = Asked(given=((letter, True),))
    captured = captured or KINDS[kind]
    return Trial(asked, "ok", "", 1.0, view, captured=captured, **more)


def order(*places):
    return dataclasses.replace(an_order(MODULES["usual"], 1), sequences={0: places})


def taken(of):
    return Taken(of, None, None, (), scored=SCORED)


def in_order(ordering, **more):
    found = trial(ordering=ordering, ordered=True, **more)
    return dataclasses.replace(found, captured=b"")


def test_off_the_rings_a_search_begins_in_the_order_that_was_compiled_on_them():
    usual, off = trial(ordering=order(0)), trial(letter="w", captured=counted())
    ordered = in_order(order(1, 0))
    others = [usual, in_order(order(2, 1, 0), letter="b"), ordered, off]
    found = on_rings(off, usual, taken(ordered), others)
    assert found is not None
    assert found.begin is ordered.ordering
    assert (found.members, found.beside) == (None, SCORED)
    # Without one, in what a glance has found for the same module.
    found = on_rings(off, usual, taken(usual), [usual, off])
    assert found is not None
    assert found.begin is usual.ordering


def counted():
    return KINDS["usual"] + COUNTED


@pytest.mark.parametrize(
    "off", [trial("slow", "w"), dataclasses.replace(trial(letter="w"), captured=b"")]
)
def test_of_another_module_no_order_is_known(off):
    usual = trial(ordering=order(1, 0))
    assert on_rings(off, usual, taken(usual), [usual, off]) is None


def test_models_that_refuse_a_step_begin_where_it_was_refused():
    plain, refused = trial(ordering=order(0)), in_order(order(1, 0))
    found = answered(Refused(refused, (7, 3, 19, 1), SCORED), plain)
    assert found.begin is refused.ordering
    assert (found.members, found.beside) == ((7, 3, 19, 1), SCORED)
    bare = trial()
    assert answered(Refused(bare, (7,), SCORED), bare).begin.sequences == {}


def test_orders_that_a_step_was_compiled_in_are_known():
    plain = trial(ordering=order(0), schedule="of xla")
    other = in_order(order(2, 1, 0), letter="b")
    (edit,) = edits_of(plain, [plain, in_order(order(1, 0)), other])
    assert edit.fingerprint == "of xla"
    assert edit.sequences == {0: (1, 0)}
