"""What a plan needs of a process, kept, told apart from what is there, and refused."""

import dataclasses
import json

import pytest

from lagom_jax.errors import PlanError
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import Needs, ProcessVariable, Refusal, from_json, to_json
from lagom_jax.plan.check import check, require
from lagom_jax.plan.process_needs import NOTHING_NEEDED

from .plans import made_by_hand

POLICY = ProcessVariable("NCCL_CTA_POLICY", "2", "copy engines", 0.5)
NEEDS = Needs("2.29.0", "12.5", 20_000_000_000)
PLAN = dataclasses.replace(
    made_by_hand(),
    variables=(POLICY,),
    needs=NEEDS,
    refusals=(Refusal("copy engines", "no reduction", "copy engines cannot add"),),
)
THERE = ProcessHere({"NCCL_CTA_POLICY": "2"}, "2.29.7", "13.0")


def told(process):
    return [(one.severity, one.text) for one in check(PLAN, process=process)]


def test_it_is_kept_and_comes_back():
    assert from_json(to_json(PLAN)) == PLAN


def test_a_plan_of_the_format_before_needs_nothing():
    document = json.loads(to_json(made_by_hand()))
    for key in ("variables", "needs", "refusals"):
        del document[key]
    document["format_version"] = 4
    found = from_json(json.dumps(document))
    assert (found.variables, found.needs, found.refusals) == ((), NOTHING_NEEDED, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "x.so"),
        ("NCCL_ALGO", "ring"),
        ("NCCL_CTA_POLICY", "3"),
        ("NCCL_CTA_POLICY", "2; rm"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.5"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "-.5"),
    ],
)
def test_a_plan_sets_no_other_variables(name, value):
    with pytest.raises(PlanError):
        ProcessVariable(name, value, "why", None)
    document = json.loads(to_json(PLAN))
    document["variables"][0].update(name=name, value=value)
    with pytest.raises(PlanError):
        from_json(json.dumps(document))


def test_variables_are_part_of_the_environment():
    assert PLAN.environment()["NCCL_CTA_POLICY"] == "2"


def test_where_all_is_there_nothing_speaks_against_it():
    assert told(THERE) == []
    assert told(None) == []
    # Of what is not known nothing is said.
    assert told(dataclasses.replace(THERE, nccl="", cuda_driver="")) == []


@pytest.mark.parametrize("variables", [{}, {"NCCL_CTA_POLICY": "1"}])
def test_a_variable_that_is_not_set_names_the_second_best(variables):
    ((severity, text),) = told(dataclasses.replace(THERE, variables=variables))
    assert severity == "warning"
    assert "500 ms a step" in text
    assert "NCCL_CTA_POLICY is not 2 here" in text


def test_an_old_nccl_an_old_driver_and_a_full_pool_are_errors():
    full = {**THERE.variables, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
    for change, word in (
        ({"nccl": "2.28.9"}, "NCCL 2.29.0"),
        ({"cuda_driver": "12.4"}, "the driver's CUDA 12.5"),
        ({"variables": full}, "no room for"),
    ):
        ((severity, text),) = told(dataclasses.replace(THERE, **change))
        assert severity == "error"
        assert word in text
        with pytest.raises(PlanError, match="does not hold here"):
            require(PLAN, process=dataclasses.replace(THERE, **change))


def test_versions_are_compared_as_numbers():
    assert told(dataclasses.replace(THERE, nccl="2.100.0")) == []


def test_a_fraction_that_nothing_runs_without_is_an_error():
    fraction = ProcessVariable("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.60", "room", None)
    plan = dataclasses.replace(PLAN, variables=(fraction,))
    (finding,) = check(plan, process=THERE)
    assert finding.severity == "error"
    assert "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.60" in finding.remedy
