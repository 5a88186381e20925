"""Errors about arguments are also those of Python, which users catch."""

import jax
import pytest

import lagom_jax
from lagom_jax import Cluster
from lagom_jax.compile import lower
from lagom_jax.compile.deviceless import compile_step
from lagom_jax.errors import ClusterError, LagomError, StepError
from lagom_jax.plan.setting import Cap, Setting, SettingError
from lagom_jax.planner import Budget, LeverError, Planner, Request
from lagom_jax.planner.budget import BudgetError
from lagom_jax.runtime.options import OptionError, Options
from lagom_jax.scheduled import cluster_named
from lagom_jax.settings.controls import ControlsError, named
from lagom_jax.settings.tuning import PolicyError, policy_named


def planner():
    return Planner(lambda x: x, 1.0, cluster="h100:1x1")


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        (lambda: Cluster.parse("h1000:8"), ClusterError),
        (lambda: lagom_jax.tune(abs, cluster="h100:0x8"), ClusterError),
        (lambda: Setting.parse("ring/simple"), SettingError),
        (lambda: Cap(0), SettingError),
        (lambda: named("all"), ControlsError),
        (lambda: policy_named("best"), PolicyError),
        (lambda: Budget(compiles=0), BudgetError),
        (lambda: planner().plan(Request(("magic",))), LeverError),
        (lambda: Options(mode="fast"), OptionError),
        (lambda: lagom_jax.tune(abs, levers=("magic",)), OptionError),
    ],
)
def test_a_wrong_value_is_a_value_error(wrong, subject):
    with pytest.raises(subject) as caught:
        wrong()
    assert isinstance(caught.value, LagomError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        (lambda: cluster_named(8), ClusterError),
        (lambda: lagom_jax.tune(abs, cluster=8), ClusterError),
        (lambda: lagom_jax.tune(3), OptionError),
        (lambda: lagom_jax.tune(jax.jit(abs).lower(1.0).compile()), OptionError),
        (lambda: lower(3), StepError),
        (
            lambda: compile_step(lower(abs, 1.0), Cluster.parse("h100:1x1"), {"x": []}),
            StepError,
        ),
    ],
)
def test_a_wrong_type_is_a_type_error(wrong, subject):
    with pytest.raises(subject) as caught:
        wrong()
    assert isinstance(caught.value, LagomError)
    assert isinstance(caught.value, TypeError)
