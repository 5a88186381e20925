"""What a plan says of itself."""

import dataclasses
import os
import subprocess
import sys

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.errors import PlanError
from lagom_jax.plan import Lever, SiteSetting
from lagom_jax.plan.setting import Cap, Setting
from lagom_jax.program.program import Program, Run
from lagom_jax.settings.controls import PRESETS, named
from lagom_jax.settings.space import space_of
from lagom_jax.typed_json import plain, typed
from xla_flags import in_effect, pinned_by_environment

from ..settings.programs import site
from .plans import ALL_GATHER, THRESHOLD, made_by_hand

PLAN = made_by_hand()


def lever(name, value=True, **changes):
    plain = Lever(name, value, "why", True, "", None, None, True)
    return dataclasses.replace(plain, **changes)


def test_options_are_what_jax_takes():
    assert PLAN.compiler_options() == {
        ALL_GATHER: True,
        THRESHOLD: 1 << 26,
        "fdo_profile": PLAN.costs.encode(),
        "xla_gpu_nccl_p2p_max_nchannels": 8,
    }


def test_xla_reads_the_same_values_from_the_environment():
    pins = in_effect(pinned_by_environment(PLAN.environment()))
    options = PLAN.compiler_options()
    del options["fdo_profile"]
    assert {name: pin.value for name, pin in pins.items()} == options


def test_what_the_environment_cannot_say_is_named():
    newer = lever("xla_gpu_pipeline_all_reduce", "COLLECTIVE_PIPELINING_MODE_ON")
    plan = dataclasses.replace(PLAN, levers=(*PLAN.levers, newer))
    beyond = {part.what: part.why for part in plan.beyond_environment()}
    assert set(beyond) == {
        "xla_gpu_pipeline_all_reduce",
        "fdo_profile",
        "order",
        "reduce-scatter of 33554432 bytes over 8 ranks",
    }
    assert "tuner plugin" in beyond["reduce-scatter of 33554432 bytes over 8 ranks"]
    assert plan.environment() == PLAN.environment()


def test_a_flag_that_this_version_would_end_at_is_not_written():
    newer = lever("xla_gpu_pipeline_all_gather", "COLLECTIVE_PIPELINING_MODE_ON")
    levers = tuple(one for one in PLAN.levers if one.value is None)
    plan = dataclasses.replace(PLAN, levers=(newer, *levers), settings=())
    assert plan.holds_for.version("jaxlib") == "0.10.2"
    assert plan.environment() == {}
    versions = (("jaxlib", "0.12.0.1"),)
    holds_for = dataclasses.replace(PLAN.holds_for, versions=versions)
    there = dataclasses.replace(plan, holds_for=holds_for)
    assert there.environment() == {"XLA_FLAGS": "--xla_gpu_pipeline_all_gather=ON"}


def test_jaxlib_takes_the_environment():
    """XLA ends the process at a word that it does not know."""
    versions = tuple(Toolchain.probe().versions.items())
    holds_for = dataclasses.replace(PLAN.holds_for, versions=versions)
    environment = dataclasses.replace(PLAN, holds_for=holds_for).environment()
    assert THRESHOLD in environment["XLA_FLAGS"]
    done = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.devices()[0].platform)"],
        env={**os.environ, **environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "cpu\n", done.stderr


def test_caps_and_settings_are_told_apart():
    told = [one.setting for one in PLAN.settings]
    assert told == [Setting.parse("ring/simple/8/544/1048576"), Cap(8)]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("all-to-all", "xla_gpu_nccl_p2p_max_nchannels"),
        ("collective-permute", "xla_gpu_nccl_p2p_max_nchannels"),
        ("all-gather", "xla_gpu_nccl_collective_max_nchannels"),
        ("all-reduce", "xla_gpu_nccl_collective_max_nchannels"),
    ],
)
def test_a_cap_is_an_option_of_xla(kind, option):
    cap = dataclasses.replace(PLAN.settings[1], kind=kind, setting=Cap(1))
    plan = dataclasses.replace(PLAN, settings=(cap,))
    assert plan.compiler_options()[option] == 1


def test_recovered_and_speedup():
    assert PLAN.speedup == pytest.approx(100 / 90)
    assert PLAN.evidence.recovered == pytest.approx(10 / 24)
    nothing = dataclasses.replace(PLAN.evidence, bound_seconds=0.1)
    assert nothing.recovered is None
    # One that also takes work away.
    tuned = dataclasses.replace(PLAN.evidence.tuned, step_seconds=0.001)
    assert dataclasses.replace(PLAN.evidence, tuned=tuned).recovered == 1.0


def test_only_what_the_compiler_took_may_round_differently():
    assert not PLAN.deterministic
    kept = tuple(
        dataclasses.replace(one, keeps_order=True) if one.name == "order" else one
        for one in PLAN.levers
    )
    assert dataclasses.replace(PLAN, levers=kept).deterministic
    refused = lever(
        "xla_gpu_dot_merger_threshold_mb", 0, accepted=False, keeps_order=False
    )
    assert dataclasses.replace(PLAN, levers=(*kept, refused)).deterministic


def test_sums_under_another_setting_may_round_differently():
    scatter, exchange = PLAN.settings
    assert (scatter.keeps_order, exchange.keeps_order) == (False, True)
    assert dataclasses.replace(scatter, kind="all-gather").keeps_order
    assert dataclasses.replace(scatter, setting=scatter.usual).keeps_order


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"costs": None}, "costs: missing"),
        ({"order": None}, "order: missing"),
        ({"levers": ()}, "no accepted lever fdo_profile"),
        ({"levers": (*PLAN.levers, PLAN.levers[0])}, f"{ALL_GATHER} is there twice"),
        (
            {"holds_for": dataclasses.replace(PLAN.holds_for, schedule="")},
            "holds_for.schedule",
        ),
        (
            {
                "settings": (
                    PLAN.settings[1],
                    dataclasses.replace(PLAN.settings[1], setting=Cap(4)),
                )
            },
            r"settings\[1\].setting: at most 4 channels, but .* is 8 elsewhere",
        ),
        (
            {"levers": (*PLAN.levers, lever("xla_gpu_nccl_p2p_max_nchannels", 2))},
            r"settings\[1\].* is 2 elsewhere",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes, told):
    with pytest.raises(PlanError, match=told):
        dataclasses.replace(PLAN, **changes)


@pytest.mark.parametrize("controls", PRESETS)
def test_whatever_a_search_can_choose_can_be_in_a_plan(controls):
    cluster = Cluster.parse("h100:2x8")
    kinds = ("all-reduce", "all-to-all", "all-gather")
    nodes = tuple(Run(site(cluster, kind, 1 << 26)) for kind in kinds)
    groups = space_of(Program("p", nodes, 16), cluster, named(controls)).groups
    assert {group.sites[0].kind for group in groups} >= {"all-reduce", "all-to-all"}
    for group in groups:
        for candidate in group.candidates[1:]:
            told = dataclasses.replace(
                PLAN.settings[0], usual=group.usual[0], setting=candidate
            )
            assert typed(SiteSetting, plain(told)) == told


def test_a_lever_without_a_value_is_none():
    with pytest.raises(PlanError, match="has no value"):
        lever(ALL_GATHER, None)
