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
from lagom_jax.compile import Toolchain, child, files
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.plan import ScheduleEdit, load, save
from lagom_jax.plan.evidence import COSTS, ORDER
from lagom_jax.planner import Planner
from lagom_jax.runtime import arguments, dispatch, nccl, place, programs, say
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
        usual = programs.Stages.compile

        # The CPU's compiler takes any.
        def build(stages, options=None):
            if options and COSTS in options:
                raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no profile")
            return usual(stages, options)

        monkeypatch.setattr(programs.Stages, "compile", build)
        falls_back("cannot be compiled: INVALID_ARGUMENT: no profile")

    def test_an_order_that_is_not_met_leaves_the_rest(self, plans, monkeypatch):
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        order = ScheduleEdit("a1" * 32, {0: (1, 0)})
        usual = plans.make
        plans.make = lambda planner: with_lever(planner, ORDER, order=order)
        # jax 0.12 says so where it has not loaded the compiler for GPUs.
        falls_back("order of instructions was not taken: |PJRT_Api is not initialized")
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
        monkeypatch.setattr(nccl.Nccl, "objection", lambda nccl: "no NCCL here")
        budget = lagom_jax.Budget(memory_bytes=1)
        made_so = functools.partial(made, peak=None)
        plans.make = made_so
        falls_back("needs .* on a device, and may take 1 ", budget=budget)
        # What the step as it is takes does no harm.
        plans.make = functools.partial(made, peak=1 << 30)
        uses_a_plan(budget=budget, cache=False)


class TestPlanner:
    def test_an_unknown_gpu(self, monkeypatch):
        devices = [type("D", (), {"device_kind": "NVIDIA X", "process_index": 0})] * 2
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        monkeypatch.setattr(programs, "lowered_devices", lambda *_: tuple(devices))
        falls_back("NVIDIA X", cluster=None)

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
            child.Child,
            "ask",
            lambda *a, timeout_s, **more: ask(*a, timeout_s=0.5, **more),
        )
        falls_back("took longer|seconds|time")


class TestJax:
    @pytest.mark.parametrize(
        ("module", "part"),
        [
            (arguments, "static_argnums"),
            (arguments, "static_argnames"),
            (dispatch, "__getstate__"),
            (dispatch, "fun"),
            (dispatch, "cache_miss"),
        ],
    )
    def test_a_jitted_function_without_a_part(self, monkeypatch, module, part):
        usual = module.internal

        def internal(owner, path):
            if part in path:
                raise ToolchainError(f"jax has changed inside: no {path}")
            return usual(owner, path)

        monkeypatch.setattr(module, "internal", internal)
        warned(lambda: lagom_jax.tune(jitted_step(), cluster=CLUSTER), part)
        with pytest.raises(ToolchainError, match=part):
            lagom_jax.tune(jitted_step(), cluster=CLUSTER, strict=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses(lagom_jax.tune(jitted_step(), mode="off")) == USUAL
        assert losses(lagom_jax.tune(one_step, mode="off")) == USUAL

    @pytest.mark.parametrize(
        "name",
        [
            "jax._src.core.trace_state_clean",
            "jax._src.config.trace_context",
            "jax._src.distributed.global_state",
            "jax._src.interpreters.mlir.make_ir_context",
        ],
    )
    def test_a_name_that_is_gone(self, name):
        """As a new version of jax would be: nobody says so before it is imported."""
        module, _, attribute = name.rpartition(".")
        code = (
            f"import jax, sys, warnings, {module}\n"
            "import jax._src.pjit, jax._src.distributed\n"
            "jax.jit(lambda x: x)(1.0)\n"
            "class Without:\n"
            f"    def __init__(self): self.real = sys.modules[{module!r}]\n"
            "    def __getattr__(self, name):\n"
            f"        if name == {attribute!r}: raise AttributeError(name)\n"
            "        return getattr(self.real, name)\n"
            f"sys.modules[{module!r}] = Without()\n"
            "warnings.simplefilter('always')\n"
            "import lagom_jax\n"
            "step = lagom_jax.tune(jax.jit(lambda x: x + 1), cluster='h100:1x1')\n"
            "print([float(step(1.0)) for _ in range(3)])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[2.0, 2.0, 2.0]\n"
        if "distributed" not in name:
            # One process has nobody to talk to.
            assert re.search(f"LagomWarning: .*{attribute}", done.stderr), done.stderr

    @pytest.mark.parametrize("part", ["_params", "_executable.create_cpp_call"])
    def test_programs_that_jax_s_dispatcher_cannot_call(self, plans, monkeypatch, part):
        usual = dispatch.internal

        def internal(owner, path):
            if path == part:
                raise ToolchainError(f"jax has changed inside: no {path}")
            return usual(owner, path)

        monkeypatch.setattr(dispatch, "internal", internal)
        step = lagom_jax.tune(jax.jit(lambda x: x * 2), cluster=CLUSTER, strict=True)
        for value in (1.0, jnp.float32(1), jnp.bfloat16(1), jnp.ones(3)) * 2:
            found, expected = step(value), jax.jit(lambda x: x * 2)(value)
            assert (found.dtype, found.weak_type) == (
                expected.dtype,
                expected.weak_type,
            )
        assert len(step.plans) == plans.made

    def test_devices_of_a_lowered_step_that_cannot_be_seen(self, plans, monkeypatch):
        def gone(lowered):
            raise ToolchainError("jax has changed inside: no _device_list")

        monkeypatch.setattr(programs, "lowered_devices", gone)
        uses_a_plan()


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

        monkeypatch.setattr(files, "write", refuse)
        uses_a_plan(cache=tmp_path / "cache")
        lines = told()
        assert lines
        assert all(os.strerror(code) in line for line in lines)

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
        build = programs.build

        def built(*arguments, **options):
            def failing(*args, **kwargs):
                failures.append(args)
                args[0].delete() if failing.takes else None
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")

            failing.takes = fails.takes
            return dataclasses.replace(build(*arguments, **options), run=failing)

        def fails():
            return len(failures)

        fails.takes = False
        monkeypatch.setattr(programs, "build", built)
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

        def build(*_, **__):
            raise jax.errors.JaxRuntimeError("INTERNAL: compiler")

        monkeypatch.setattr(programs, "build", build)
        step.clear_cache()
        warned(lambda: step, "INTERNAL: compiler")
        assert step.plans == ()


def test_a_report_that_fails_says_so(monkeypatch):
    def analyze(*_, **__):
        raise LagomError("nothing to see")

    monkeypatch.setattr("lagom_jax.runtime.variant.analyze", analyze)
    falls_back("nothing to see", mode="report")
