"""What speaks against a plan where it is to be used."""

import dataclasses

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from lagom_jax.plan.check import check
from lagom_jax.plan.pinned import Pinned, stated
from xla_flags import pinned_by_environment, pinned_by_options

from .plans import ALL_GATHER, THRESHOLD, VERSIONS, made_by_hand

PLAN = made_by_hand()
HERE = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
LEVERS_ONLY = dataclasses.replace(
    PLAN,
    levers=tuple(one for one in PLAN.levers if one.value is not None),
    costs=None,
    order=None,
)


def pinned(environ=HERE, options=None):
    return stated(pinned_by_environment(environ) + pinned_by_options(options or {}))


def severities(findings):
    return [finding.severity for finding in findings]


def test_where_it_was_made_nothing_speaks_against_it():
    assert not check(PLAN)
    assert not check(
        PLAN,
        fingerprint=PLAN.holds_for.fingerprint,
        cluster=Cluster.parse("h100:1x8"),
        versions=dict(VERSIONS),
        pinned=pinned(),
    )


def test_another_program():
    (finding,) = check(PLAN, fingerprint="ff" * 32)
    assert finding.severity == "error"
    assert "0f0f0f0f0f0f" in finding.text
    assert "ffffffffffff" in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("cluster", "told"), [("h100:2x8", "has 16"), ("h200:1x8", "this is h200:1x8")]
)
def test_another_cluster(cluster, told):
    (finding,) = check(PLAN, cluster=cluster)
    assert finding.severity == "error"
    assert told in finding.text


def test_no_such_cluster():
    with pytest.raises(ClusterError):
        check(PLAN, cluster="h1")


def test_another_compiler_is_an_error_where_its_instructions_are_named():
    newer = dict(VERSIONS) | {"jaxlib": "0.12.0.1"}
    (finding,) = check(PLAN, versions=newer)
    assert finding.severity == "error"
    assert "costs and order fit that compiler only" in finding.text
    assert "pip install jaxlib==0.10.2" in finding.remedy
    assert severities(check(LEVERS_ONLY, versions=newer)) == ["warning"]


def test_another_assembler_only_makes_other_kernels():
    other = dict(VERSIONS) | {"nvidia-cuda-nvcc-cu12": "13.0"}
    assert severities(check(PLAN, versions=other)) == ["warning"]


def test_errors_come_first():
    without = dict(VERSIONS[:-1])
    found = check(PLAN, versions=without, pinned=())
    assert severities(found) == ["error", "warning"]
    assert "not installed" in found[1].text


@pytest.mark.parametrize(
    ("environ", "severity", "told"),
    [
        ({}, "error", "was 0 in XLA_FLAGS and is not set"),
        ({"XLA_FLAGS": "--xla_gpu_autotune_level=4"}, "error", "is 4 in XLA_FLAGS"),
        (
            HERE | {"NCCL_MAX_CTAS": "8"},
            "warning",
            "NCCL_MAX_CTAS was not set and is 8 in the environment",
        ),
        (
            {"XLA_FLAGS": HERE["XLA_FLAGS"] + f" --{ALL_GATHER}=false"},
            "warning",
            f"XLA_FLAGS sets {ALL_GATHER}=false, the plan {ALL_GATHER}=true",
        ),
    ],
)
def test_what_was_set_must_be_set(environ, severity, told):
    (finding,) = check(PLAN, pinned=pinned(environ))
    assert finding.severity == severity
    assert told in finding.text
    assert finding.remedy


def test_another_spelling_is_no_other_value():
    flags = "--xla_gpu_enable_pipelined_p2p="
    made = stated(pinned_by_environment({"XLA_FLAGS": flags + "true"}))
    holds_for = dataclasses.replace(PLAN.holds_for, pinned=made)
    plan = dataclasses.replace(PLAN, holds_for=holds_for)
    assert not check(plan, pinned=pinned({"XLA_FLAGS": flags + "1"}))
    assert check(plan, pinned=pinned({"XLA_FLAGS": flags + "0"}))


def test_the_plan_itself_may_be_in_effect():
    flags = f"{HERE['XLA_FLAGS']} {PLAN.environment()['XLA_FLAGS']}"
    assert not check(PLAN, pinned=pinned({"XLA_FLAGS": flags}))
    options = PLAN.compiler_options()
    assert not check(PLAN, pinned=pinned(options=options), with_options=True)


def test_an_option_of_the_step_that_contradicts_the_plan_wins_over_it():
    against = pinned(options={THRESHOLD: 1})
    (finding,) = check(PLAN, pinned=against, with_options=True)
    assert finding.severity == "error"
    assert f"take {THRESHOLD} out of compiler_options" in finding.remedy


def test_options_of_the_step_are_asked_for_only_where_they_are_known():
    made = pinned(options={"xla_gpu_enable_triton_gemm": False})
    holds_for = dataclasses.replace(PLAN.holds_for, pinned=made)
    plan = dataclasses.replace(PLAN, holds_for=holds_for)
    assert not check(plan, pinned=pinned())
    assert severities(check(plan, pinned=pinned(), with_options=True)) == ["error"]
    assert not check(plan, pinned=made, with_options=True)


def test_where_xla_dumps_changes_nothing():
    """Neither a folder here, nor one in a plan of an earlier version."""
    dump = Pinned("xla_dump_to", "there", "XLA_FLAGS")
    plan = made_by_hand()
    held = dataclasses.replace(plan.holds_for, pinned=(*plan.holds_for.pinned, dump))
    older = dataclasses.replace(plan, holds_for=held)
    here = stated(pinned_by_environment({"XLA_FLAGS": "--xla_dump_to=here"}))
    assert check(older, pinned=(*plan.holds_for.pinned, *here)) == ()
