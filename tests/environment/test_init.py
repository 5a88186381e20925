"""What a plan sets in a process, and when it is too late for that."""

import dataclasses
import subprocess
import sys

import pytest

import lagom_jax
from lagom_jax.compile import Toolchain
from lagom_jax.environment import init
from lagom_jax.errors import PlanError, TunerError
from lagom_jax.nccl_plugin import Answer, Rule, Rules, Scope, built
from lagom_jax.nccl_plugin import save as save_rules
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import Needs, ProcessVariable, load, save
from xla_flags import pinned_by_xla_flags

from ..plan.plans import made_by_hand

PLAN = made_by_hand()
OPTION = "xla_gpu_all_gather_combine_threshold_bytes"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in ("XLA_FLAGS", "NCCL_TUNER_PLUGIN", "LAGOM_TUNER_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    # What the tests themselves compile with has started a backend of this process.
    monkeypatch.setattr("lagom_jax.environment._backends_run", lambda: False)


@pytest.fixture
def plan(tmp_path):
    versions = tuple(Toolchain.probe().versions.items())
    here = dataclasses.replace(PLAN.holds_for, versions=versions, pinned=())
    levers = tuple(
        x for x in PLAN.levers if x.name != "xla_gpu_enable_while_loop_double_buffering"
    )
    made = dataclasses.replace(PLAN, holds_for=here, levers=levers)
    save(made, tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def rules(tmp_path):
    answer = Answer("ring", "ll", 4, 32768)
    scope = Scope(8, rules=(Rule("all-gather", 1, 1 << 20, answer),))
    save_rules(Rules((scope,)), tmp_path / "rules")
    return tmp_path / "rules"


def test_the_users_words_count(plan):
    environ = {"XLA_FLAGS": f"--{OPTION}=7 --xla_dump_to=/x"}
    made = init(plan, environ=environ)
    assert dict(made.variables) == environ
    pins = [(pin.name, pin.given) for pin in pinned_by_xla_flags(environ["XLA_FLAGS"])]
    assert (OPTION, "67108864") in pins
    assert pins[-2:] == [(OPTION, "7"), ("xla_dump_to", "/x")]
    assert any(note.startswith("order: ") for note in made.notes)
    assert any(note.startswith("fdo_profile: ") for note in made.notes)


def test_a_plan_that_does_not_hold_sets_nothing(plan, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    environ = {}
    with pytest.raises(PlanError, match="xla_gpu_autotune_level"):
        init(plan, environ=environ)
    assert environ == {}


def test_the_tuner_is_loaded_where_there_are_rules(plan, rules):
    environ = {}
    made = init(plan, rules=rules, environ=environ)
    assert environ["NCCL_TUNER_PLUGIN"] == str(built())
    assert environ["LAGOM_TUNER_RULES"] == str(rules)
    assert "LAGOM_TUNER_CHAIN" not in environ
    # Once more changes nothing: what is set is ours.
    again = init(plan, rules=rules, environ=dict(environ))
    assert {*dict(again.variables)} == {*dict(made.variables)}


def test_another_tuner_is_asked_or_refused_but_never_replaced(plan, rules, monkeypatch):
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "/opt/site/tuner.so")
    environ = {"NCCL_TUNER_PLUGIN": "/opt/site/tuner.so"}
    with pytest.raises(TunerError, match=r"/opt/site/tuner\.so is set"):
        init(plan, rules=rules, other_tuner="refuse", environ=environ)
    assert environ == {"NCCL_TUNER_PLUGIN": "/opt/site/tuner.so"}
    made = init(plan, rules=rules, environ=environ)
    assert environ["LAGOM_TUNER_CHAIN"] == "/opt/site/tuner.so"
    assert any("/opt/site/tuner.so is asked" in note for note in made.notes)


def test_a_tuner_in_nccls_own_file_counts_too(plan, rules, tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_TUNER_PLUGIN=/opt/site/tuner.so\n")
    environ = {}
    init(plan, rules=rules, environ=environ)
    assert environ["LAGOM_TUNER_CHAIN"] == "/opt/site/tuner.so"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NCCL_TUNER_PLUGIN", "none", "NCCL loads no tuner"),
        ("LAGOM_TUNER_CONTROL", "/proc/self/fd/9", "a control page goes before"),
    ],
)
def test_what_stands_against_rules(plan, rules, monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    environ = {name: value}
    with pytest.raises(TunerError, match=told):
        init(plan, rules=rules, environ=environ)
    assert environ == {name: value}


@pytest.mark.parametrize("name", ["lagom", "libnccl-tuner-lagom.so"])
def test_ours_by_name_is_no_other(plan, rules, monkeypatch, name):
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", name)
    environ = {}
    init(plan, rules=rules, environ=environ)
    assert "LAGOM_TUNER_CHAIN" not in environ


def test_damaged_rules_set_nothing(plan, rules):
    rules.write_bytes(rules.read_bytes()[:-1])
    environ = {}
    with pytest.raises(TunerError):
        init(plan, rules=rules, environ=environ)
    assert environ == {}


@pytest.mark.parametrize("started", [False, True])
def test_too_late_is_said(plan, started):
    program = f"import jax, lagom_jax\n{'jax.devices()' if started else ''}\n"
    program += f"lagom_jax.init({str(plan)!r})\nprint(len(jax.devices()))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (not started), done.stderr
    assert ("jax has started a backend" in done.stderr) == started
    assert lagom_jax.init is init


def needing(plan, **more):
    variable = ProcessVariable("NCCL_CTA_POLICY", "2", "copy engines", 0.5)
    made = dataclasses.replace(load(plan), variables=(variable,), **more)
    save(made, plan)
    return plan


def test_variables_of_the_process_are_set(plan):
    environ = {}
    made = init(needing(plan), environ=environ)
    assert environ["NCCL_CTA_POLICY"] == "2"
    assert ("NCCL_CTA_POLICY", "2") in made.variables


def test_a_policy_of_the_user_s_own_stays_and_is_told(plan):
    environ = {"NCCL_CTA_POLICY": "1"}
    made = init(needing(plan), environ=environ)
    assert environ["NCCL_CTA_POLICY"] == "1"
    assert "NCCL_CTA_POLICY" not in dict(made.variables)
    assert any("NCCL_CTA_POLICY=1 is set and stays" in note for note in made.notes)


@pytest.mark.parametrize(
    ("nccl", "driver", "told"),
    [("2.28.9", "13.0", "NCCL 2.29.0"), ("2.29.7", "12.4", "CUDA 12.5")],
)
def test_what_is_too_old_for_a_plan_sets_nothing(plan, monkeypatch, nccl, driver, told):
    here = ProcessHere({}, nccl, driver)
    monkeypatch.setattr(ProcessHere, "probe", classmethod(lambda cls, environ: here))
    environ = {}
    with pytest.raises(PlanError, match=told):
        init(needing(plan, needs=Needs("2.29.0", "12.5")), environ=environ)
    assert environ == {}
