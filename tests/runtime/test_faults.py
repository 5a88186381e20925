"""Whatever fails, training goes on as it was: the same losses, and one warning."""

import dataclasses
import errno
import functools
import json
import logging
import os
import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest

import lagom_jax
from lagom_jax.compile import Toolchain, child
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.plan import ScheduleEdit, load, save
from lagom_jax.plan.plan import COSTS, ORDER
from lagom_jax.planning import Planner
from lagom_jax.runtime import agreement, jitted, place, programs, say
from tests.runtime.planned import made

CLUSTER = "h100:1x1"


def loss(weights, x):
    return ((jnp.tanh(x @ weights) - 0.5) ** 2).mean()


def one_step(weights, x):
    value, slope = jax.value_and_grad(loss)(weights, x)
    return weights - 0.3 * slope, value


def losses(step, steps=3):
    state, x = jnp.eye(8), jnp.ones((4, 8))
    found = []
    for _ in range(steps):
        state, value = step(state, x)
        found.append(float(value).hex())
    return found


USUAL = losses(jax.jit(one_step))


def jitted_step():
    return jax.jit(one_step, donate_argnums=0)


def warned(make, match):
    """Trains; there is exactly one warning, which says why there is no plan."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        step = make()
        assert losses(step) == USUAL
    (only,) = found
    assert only.category is say.LagomWarning
    assert re.search(match, str(only.message)), only.message
    return step


def falls_back(match, make=jitted_step, error=LagomError, **asked):
    """With a warning; with an error where the user is strict."""
    asked = {"cluster": CLUSTER, "cache": False, **asked}
    step = warned(lambda: lagom_jax.tune(make(), **asked), match)
    assert step.plans == ()
    with pytest.raises(error, match=match):
        losses(lagom_jax.tune(make(), strict=True, **asked))


def uses_a_plan(**asked):
    asked = {"cluster": CLUSTER, "strict": True, **asked}
    step = lagom_jax.tune(jitted_step(), **asked)
    assert losses(step) == USUAL
    assert len(step.plans) == 1


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING, "lagom_jax")
    return lambda: [record.getMessage() for record in caplog.records]


def with_lever(planner, name, **parts):
    """A plan with a profile or an order, which options cannot say."""
    plan = made(planner)
    schedule = parts["order"].fingerprint if "order" in parts else ""
    lever = dataclasses.replace(plan.levers[0], name=name, value=None)
    return dataclasses.replace(
        plan,
        levers=(*plan.levers, lever),
        holds_for=dataclasses.replace(plan.holds_for, schedule=schedule),
        **parts,
    )


class TestLevers:
    def test_an_option_that_no_search_comes_up_with(self, plans):
        plans.make = functools.partial(made, options=("xla_dump_to",))
        falls_back("xla_dump_to is not an option that a plan may set")

    def test_a_profile_that_the_compiler_refuses(self, plans, monkeypatch):
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        plans.make = lambda planner: with_lever(planner, COSTS, costs="no profile")
        usual = programs.JittedSource.build

        # The CPU's compiler takes any.
        def build(source, options, *arguments):
            if COSTS in options:
                raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no profile")
            return usual(source, options, *arguments)

        monkeypatch.setattr(programs.JittedSource, "build", build)
        falls_back("cannot be compiled: INVALID_ARGUMENT: no profile")

    def test_an_order_that_is_not_met_leaves_the_rest(self, plans, monkeypatch):
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        order = ScheduleEdit("a1" * 32, {0: (1, 0)})
        usual = plans.make
        plans.make = lambda planner: with_lever(planner, ORDER, order=order)
        falls_back("order of instructions was not taken: ")
        # The same without an order.
        plans.make = lambda planner: (
            usual(planner) if plans.made % 2 == 0 else ordered(planner)
        )
        ordered = functools.partial(with_lever, name=ORDER, order=order)
        plans.made = 0
        uses_a_plan(cache=False)
        assert plans.made == 2

    def test_too_much_memory(self, plans, monkeypatch):
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        budget = lagom_jax.Budget(memory_bytes=1)
        falls_back("needs .* on a device, and may take 1 ", budget=budget)


class TestPlanner:
    def test_an_unknown_gpu(self, monkeypatch):
        devices = [type("D", (), {"device_kind": "NVIDIA X", "process_index": 0})] * 2
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        monkeypatch.setattr("lagom_jax.runtime.variant.devices_of", lambda *_: devices)
        falls_back("NVIDIA X", cluster=None)

    def test_a_step_that_calls_the_host(self):
        def with_callback(weights, x):
            shape = jax.ShapeDtypeStruct((), "float32")
            one = jax.pure_callback(lambda: jnp.float32(1.0), shape)
            return one_step(weights, x * one)

        falls_back("callback", lambda: jax.jit(with_callback))

    def test_no_toolchain(self, monkeypatch):
        bare = Toolchain(
            versions={"jax": "0.10.2", "jaxlib": "0.10.2"},
            ptxas=None,
            nvlink=None,
            libdevice=None,
        )
        monkeypatch.setattr(Toolchain, "probe", lambda *_: bare)
        falls_back("plugin", error=ToolchainError)

    def test_another_planner_error(self, plans):
        plans.make = lambda planner: 1 // 0
        falls_back("ZeroDivisionError: integer division")

    @pytest.mark.parametrize(
        ("code", "match"),
        [
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
            ("import sys; sys.exit('no such module')", "."),
            ("print('not an answer')", "."),
        ],
    )
    def test_a_compiler_that_dies(self, monkeypatch, code, match):
        command = [sys.executable, "-c", code]
        monkeypatch.setattr(child, "command", lambda: command)
        falls_back(match)

    def test_a_compiler_that_does_not_answer(self, monkeypatch):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        ask = child.Child.ask
        monkeypatch.setattr(child, "command", lambda: command)
        monkeypatch.setattr(
            child.Child, "ask", lambda *a, timeout_s: ask(*a, timeout_s=0.5)
        )
        falls_back("took longer|seconds|time")


class TestJax:
    @pytest.mark.parametrize("part", ["_jit_info", "_fun", "_cpp_pjit", "_cache_size"])
    def test_another_jax(self, monkeypatch, part):
        usual = jitted.internal

        def internal(owner, path):
            if part in path:
                raise ToolchainError(f"jax has changed inside: no {path}")
            return usual(owner, path)

        monkeypatch.setattr(jitted, "internal", internal)
        warned(lambda: lagom_jax.tune(jitted_step(), cluster=CLUSTER), part)
        with pytest.raises(ToolchainError, match=part):
            lagom_jax.tune(jitted_step(), cluster=CLUSTER, strict=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses(lagom_jax.tune(jitted_step(), mode="off")) == USUAL
        assert losses(lagom_jax.tune(one_step, mode="off")) == USUAL

    def test_no_coordination_service(self, plans, monkeypatch):
        def state():
            raise ToolchainError("jax has changed inside: no global_state")

        monkeypatch.setattr(agreement, "_jax_state", state)
        falls_back("no global_state")


class TestCache:
    @pytest.fixture
    def kept(self, plans, tmp_path):
        """The only file of a folder in which a decision was kept."""
        uses_a_plan(cache=tmp_path / "cache")
        (file,) = (tmp_path / "cache").iterdir()
        return file

    @pytest.mark.parametrize(
        "content",
        [b"", b"\xff\x00", b"{", b"[]", b'{"a": 1}', b"NaN"],
    )
    def test_what_is_no_plan_is_made_anew(self, plans, kept, told, content):
        whole = kept.read_bytes()
        kept.write_bytes(content)
        uses_a_plan(cache=kept.parent)
        assert plans.made == 2
        assert kept.read_bytes() == whole
        (line,) = told()
        assert "a decision that was kept is not used" in line

    @pytest.mark.parametrize("version", [-1, 10**6])
    def test_other_formats(self, plans, kept, told, version):
        document = json.loads(kept.read_text())
        (name,) = [
            name for name in document if "version" in name and name != "versions"
        ]
        kept.write_text(json.dumps({**document, name: version}))
        uses_a_plan(cache=kept.parent)
        assert plans.made == 2
        assert len(told()) == 1

    def test_a_plan_for_another_program_is_made_anew(self, plans, kept, told):
        plan = load(kept)
        held = dataclasses.replace(plan.holds_for, fingerprint="0" * 64)
        save(dataclasses.replace(plan, holds_for=held), kept)
        uses_a_plan(cache=kept.parent)
        assert plans.made == 2

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
    def test_a_folder_that_takes_nothing(
        self, plans, told, tmp_path, monkeypatch, code
    ):
        def refuse(*_, **__):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("lagom_jax.plan.plan_file.write_whole", refuse)
        uses_a_plan(cache=tmp_path / "cache")
        (line,) = told()
        assert os.strerror(code) in line

    def test_a_folder_that_cannot_be(self, plans, told, tmp_path):
        (tmp_path / "file").write_text("")
        uses_a_plan(cache=tmp_path / "file" / "folder")
        assert any("is not kept" in line for line in told())
        uses_a_plan(cache=tmp_path / ("x" * 300))
        assert plans.made == 2

    @pytest.mark.slow
    def test_two_writers_at_once(self, plans, kept):
        text = (
            "import sys; from lagom_jax.plan import ScheduleEdit, load, save\n"
            "plan = load(sys.argv[1])\n"
            "for _ in range(300): save(plan, sys.argv[2])\n"
        )
        whole, path = kept.read_bytes(), kept.with_name("shared.json")
        path.write_bytes(whole)
        writers = [
            subprocess.Popen([sys.executable, "-c", text, kept, path]) for _ in range(2)
        ]
        while any(writer.poll() is None for writer in writers):
            assert path.read_bytes() == whole
        assert [writer.returncode for writer in writers] == [0, 0]
        assert sorted(file.name for file in kept.parent.iterdir()) == sorted(
            [kept.name, path.name]
        )


class TestGivenPlan:
    def test_nothing_to_load(self, plans):
        falls_back("there is no plan to load", mode="load")
        assert plans.made == 0

    def test_a_file_that_is_missing_or_no_plan(self, tmp_path):
        falls_back("cannot read the plan .*missing", plan=tmp_path / "missing")
        (tmp_path / "broken").write_text("{")
        falls_back("broken", plan=tmp_path / "broken", mode="load")

    def test_a_plan_for_another_program(self, tmp_path):
        def other(weights, x):
            return weights, (x * weights.sum()).sum()

        planner = Planner(other, jnp.eye(8), jnp.ones((4, 8)), cluster=CLUSTER)
        save(made(planner), tmp_path / "plan.json")
        falls_back("the plan does not hold here", plan=tmp_path / "plan.json")


class TestFirstRun:
    """A program that could be compiled and cannot be run."""

    @pytest.fixture
    def fails(self, plans, monkeypatch):
        failures = []
        build = programs.JittedSource.build

        def built(source, options, *arguments):
            run, compiled = build(source, options, *arguments)
            if not options:
                return run, compiled

            def failing(*args, **kwargs):
                failures.append(args)
                args[0].delete() if failing.takes else None
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")

            failing.takes = fails.takes
            return failing, compiled

        def fails():
            return len(failures)

        fails.takes = False
        monkeypatch.setattr(programs.JittedSource, "build", built)
        return fails

    @pytest.mark.parametrize("verify", ["model", "measure"])
    def test_the_program_as_it_was_runs(self, fails, verify):
        falls_back(
            "RESOURCE_EXHAUSTED: no room",
            verify=verify,
            error=jax.errors.JaxRuntimeError,
        )
        assert fails() == 2

    def test_not_where_arguments_are_gone(self, fails):
        fails.takes = True
        step = lagom_jax.tune(jitted_step(), cluster=CLUSTER, cache=False)
        with pytest.raises(jax.errors.JaxRuntimeError, match="no room"):
            losses(step)

    def test_not_later(self, plans, monkeypatch):
        step = lagom_jax.tune(jitted_step(), cluster=CLUSTER, cache=False)
        assert losses(step) == USUAL
        assert len(step.plans) == 1
        gone = jnp.eye(8)
        gone.delete()
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            step(gone, jnp.ones((4, 8)))
        assert len(step.plans) == 1

    def test_forgotten_programs_that_cannot_be_built_again(self, plans, monkeypatch):
        step = lagom_jax.tune(jitted_step(), cluster=CLUSTER, cache=False)
        assert losses(step) == USUAL

        def build(*_):
            raise jax.errors.JaxRuntimeError("INTERNAL: compiler")

        monkeypatch.setattr(programs.JittedSource, "build", build)
        jax.clear_caches()
        warned(lambda: step, "INTERNAL: compiler")
        assert step.plans == ()


def test_a_report_that_fails_says_so(monkeypatch):
    def analyze(*_, **__):
        raise LagomError("nothing to see")

    monkeypatch.setattr("lagom_jax.runtime.variant.analyze", analyze)
    falls_back("nothing to see", mode="report")
