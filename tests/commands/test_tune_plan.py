"""`lagom tune` as it makes a plan."""

import json
import os
import sys

import pytest

from lagom_jax.commands import tune as verb
from lagom_jax.errors import PlanError
from lagom_jax.plan import load, to_json

from ..command_line import lagom, lagom_alone, without_progress, write_dump

STEP = """\
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P


def make_step(devices):
    mesh = AbstractMesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    cut, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def step(weights, x):
        for each in weights:
            x = jnp.tanh(x @ jax.lax.with_sharding_constraint(each, whole))
        return x

    weights = [jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=cut)] * 2
    x = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16, sharding=cut)
    return jax.jit(step), (weights, x)


def broken(devices):
    step, (weights, x) = make_step(devices)
    return (lambda weights, x: step(weights, x) + undefined), (weights, x)


def alone(devices):
    return (lambda x: x), (jax.ShapeDtypeStruct((8,), jnp.float32),)
"""
HERE = ["--cluster", "h100:1x8"]
# Everything is tried once; how well is not for these tests.
FEW = ["--compiles", "3"]


@pytest.fixture
def own(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    return lambda factory="make_step": f"{tmp_path / 'train.py'}:{factory}"


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def tune(capsys, *words):
    code, out, complaint = lagom(capsys, "tune", *words)
    assert "Traceback" not in out
    return code, out, complaint


@pytest.mark.slow
def test_a_plan_of_ones_own_step_is_shown_and_written(capsys, own, tmp_path):
    file = tmp_path / "plan.json"
    words = [own(), *HERE, *FEW, "--output", file]
    code, out, complaint = tune(capsys, *words)
    assert code == 0
    assert not without_progress(complaint)
    assert out.startswith("make_step on h100:1x8 (8 devices)")
    assert "Candidates (steps are predicted, compiles measured)" in out
    assert f"written to {file}" in " ".join(out.split())
    plan = load(file)
    assert plan.evidence.compiles <= 3
    assert plan.holds_for.devices == 8
    assert lagom(capsys, "plan", "show", file)[0] == 0
    # Where something else is set the compiler would make another program.
    other = ["--option", "xla_gpu_dot_merger_threshold_mb=7"]
    code, _, complaint = lagom(capsys, "report", own(), *HERE, "--plan", file, *other)
    assert code != 0
    assert "the plan does not hold here" in complaint
    assert "xla_gpu_dot_merger_threshold_mb" in complaint


@pytest.mark.slow
def test_json_is_the_plan_and_nothing_else(own, tmp_path):
    """In a process of its own: neither XLA nor jax may say a word."""
    file = tmp_path / "plan.json"
    words = ["tune", own(), *HERE, *FEW, "--json", "--output", str(file)]
    path = ":".join(filter(None, sys.path))
    done = lagom_alone(*words, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert done.stdout == file.read_text() == to_json(load(file))
    assert json.loads(done.stdout)["lagom_plan"] is True


@pytest.mark.slow
def test_recipes_are_listed_beside_the_candidates(capsys, own):
    words = [own(), *HERE, "--compiles", "1", "--compare", "recipes", "--json"]
    code, out, _ = tune(capsys, *words)
    assert code == 0
    candidates = json.loads(out)["evidence"]["candidates"]
    assert any(" recipe " in candidate["name"] for candidate in candidates)


def test_one_compile_is_the_step_as_it_is(capsys, own):
    code, out, _ = tune(capsys, own(), *HERE, "--compiles", "1")
    assert code == 0
    assert "the compiler is told nothing" in out
    assert "1 compile, " in out


def test_settings_alone_are_shown_as_before(capsys, own):
    code, out, _ = tune(capsys, own(), *HERE, "--levers", "settings")
    assert code == 0
    assert "Choices, those that give the most first" in out
    assert "Candidates" not in out


@pytest.mark.slow
def test_next_to_no_memory_is_what_the_step_takes_anyway(capsys, own):
    """The step as it is does no harm; the report says that it is over the limit."""
    words = [own(), *HERE, *FEW, "--memory-fraction", "0.00000001"]
    code, out, _ = tune(capsys, *words, "--json")
    assert code == 0
    plan = json.loads(out)
    (told,) = (note for note in plan["notes"] if "--memory-fraction" in note)
    assert "to take more than the step as it is" in told
    evidence = plan["evidence"]
    assert evidence["tuned_peak"] <= evidence["default_peak"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--levers", "options,magic"], "no lever 'magic'; known are options, transp"),
        (["--levers", ""], "no lever"),
        (["--compiles", "0"], "'0' is not a whole number above 0"),
        (["--seconds", "soon"], "'soon' is not a whole number above 0"),
        (["--memory-fraction", "2"], "memory_fraction=2.0: must be above 0 and at"),
        (["--memory-fraction", "half"], "'half'"),
        (["--compare", "others"], "invalid choice: 'others'"),
        (["--policy", "lagom", "--levers", "options"], "--levers names more than"),
        (["--policy", "lagom", "--output", "plan.json"], "--output goes with a plan"),
        (["--grid", "coarse", "--compare", "recipes"], "--compare goes with a plan"),
        (["--levers", "settings", "--output", "p.json"], "--output goes with a plan"),
        (["--option", "xla_gpu_autotune_level"], "write NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_traced(capsys, own, words, told):
    """A factory that is broken says nothing if it is not asked."""
    code, out, complaint = tune(capsys, own("broken"), *HERE, *words)
    assert (code, out) == (2, "")
    assert told in complaint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--output", "plan.json"], "name a step, not a dump"),
        (["--compare", "recipes"], "name a step, not a dump"),
        (["--levers", "order"], "a dump is compiled already"),
        (["--option", "xla_gpu_autotune_level=0"], "a dump is already compiled"),
        (["--tiny"], "only models of the zoo have these"),
    ],
)
def test_a_dump_has_no_plan(capsys, tmp_path, words, told):
    code, out, complaint = tune(capsys, write_dump(tmp_path, 8), *HERE, *words)
    assert (code, out) == (2, "")
    assert told in complaint


@pytest.mark.parametrize("place", ["no/such/folder/plan.json", "."])
def test_a_plan_that_cannot_be_written_is_said_before_the_work(
    capsys, own, tmp_path, place
):
    words = [own("broken"), *HERE, "--output", tmp_path / place]
    code, out, complaint = tune(capsys, *words)
    assert (code, out) == (2, "")
    assert "cannot write" in complaint


def test_a_plan_that_could_not_be_kept_is_shown(capsys, own, tmp_path, monkeypatch):
    """A full disk: the work is not lost with it."""

    def full(plan, path):
        raise PlanError(f"cannot write the plan {path}: no space left")

    monkeypatch.setattr(verb, "save", full)
    words = [own(), *HERE, "--compiles", "1", "--output", tmp_path / "plan.json"]
    code, out, complaint = tune(capsys, *words)
    assert code == 2
    assert "predicted step" in out
    assert "written to" not in out
    assert "no space left" in complaint


def test_a_broken_step_is_the_users_own_and_said_so(capsys, own):
    code, out, complaint = tune(capsys, own("broken"), *HERE)
    assert (code, out) == (1, "")
    assert "NameError" in complaint
    assert "undefined" in complaint
    assert "your own code raised this" in complaint


def test_a_step_for_other_devices_is_told_what_to_do(capsys, own):
    code, out, complaint = tune(capsys, own("alone"), *HERE)
    assert (code, out) == (2, "")
    assert "give its arguments shardings over a mesh" in complaint
    code, out, complaint = tune(capsys, own("nothing"), *HERE)
    assert (code, out) == (2, "")
    assert "has nothing called 'nothing'" in complaint


def test_an_option_that_the_compiler_does_not_know_is_named(capsys, own):
    words = [own(), *HERE, "--option", "xla_gpu_no_such_option=1"]
    code, out, complaint = tune(capsys, *words)
    assert code in (2, 4)
    assert out == ""
    assert "xla_gpu_no_such_option" in complaint


def test_deterministic_caps_leave_sums_alone(capsys, tmp_path):
    words = ["--controls", "caps", "--deterministic", "--json"]
    code, out, _ = tune(capsys, write_dump(tmp_path, 8), *HERE, *words)
    assert code == 0
    assert json.loads(out)["groups"] == []
