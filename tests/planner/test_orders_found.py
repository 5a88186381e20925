"""Of one module an order is looked for once."""

import pytest

import lagom_jax.planner.judge as judges
from lagom_jax.hlo import read_module

from .fakes import KINDS, Remembering

COUNTED = b"\x28\x07"
"""The number that XLA counts a module with."""


@pytest.fixture
def searches(monkeypatch):
    """What is looked for, as it goes on."""
    found, real = [], judges.find_order

    def find(module, *args, **more):
        found.append(module)
        return real(module, *args, **more)

    monkeypatch.setattr(judges, "find_order", find)
    return found


def asked(judge, data, spare=1 << 40, evaluations=200, policy="default"):
    return judge.order(
        read_module(data), spare_bytes=spare, evaluations=evaluations, policy=policy
    )


def test_the_same_module_is_searched_once_whatever_xla_counts_it_as(searches):
    judge = Remembering(policies=("default", "zero"))
    first = asked(judge, KINDS["usual"])
    # Without symmetric memory no collective is carried otherwise under the policy.
    again = asked(judge, KINDS["usual"] + COUNTED, spare=1 << 39, policy="zero")
    assert again is first
    assert len(searches) == 1


@pytest.mark.parametrize(
    "other",
    [{"spare": 1 << 41}, {"spare": None}, {"spare": -1}, {"evaluations": 201}],
    ids=str,
)
def test_another_question_is_looked_for(searches, other):
    judge = Remembering()
    first = asked(judge, KINDS["usual"])
    assert first.sequences
    asked(judge, KINDS["usual"], **other)
    assert len(searches) == 2


def test_another_module_is_looked_for(searches):
    judge = Remembering()
    asked(judge, KINDS["usual"])
    asked(judge, KINDS["slow"])
    assert len(searches) == 2
