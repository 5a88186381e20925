"""Nothing stays broken, nothing is in the way, and what happens is heard."""

import dataclasses
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagom_jax
from lagom_jax.cluster import Cluster
from lagom_jax.compile.child import environment
from lagom_jax.plan import MeasuredSteps
from lagom_jax.plan.pinned import Pinned
from lagom_jax.planner import Budget, Planner
from lagom_jax.runtime import cache, case, guard, nccl, place, programs, say
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.case import Case
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.waiting import in_background
from lagom_jax.runtime.wrapper import LoweredWithPlan
from tests.runtime.planned import made

ONE = functools.partial(lagom_jax.tune, cluster="h100:1x1", strict=True)
X = jnp.ones(3)


def plus_one(x):
    return x + 1


def jitted():
    return jax.jit(plus_one)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "plans"


class TestFirstStep:
    """A plan that ends a job is not tried again."""

    @pytest.fixture
    def fails(self, plans, monkeypatch):
        build = programs.build

        def built(*arguments, **options):
            def failing(x):
                x.delete()
                raise failing.error

            failing.error = monkeypatch.error
            return dataclasses.replace(build(*arguments, **options), run=failing)

        monkeypatch.error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        monkeypatch.setattr(programs, "build", built)
        return monkeypatch

    def test_of_another_job(self, fails, plans, folder, monkeypatch):
        with pytest.raises(jax.errors.JaxRuntimeError, match="no room"):
            lagom_jax.tune(jitted(), cluster="h100:1x1", cache=folder)(jnp.ones(3))
        (mark,) = folder.glob("*.tried")
        # The process that has written it is gone.
        monkeypatch.setattr(cache, "_runs", lambda process: False)
        again = lagom_jax.tune(jitted(), cluster="h100:1x1", cache=folder)
        with pytest.warns(
            say.LagomWarning, match=f"not tried again. Remove .*{mark.name}"
        ):
            assert again(X).tolist() == [2, 2, 2]
        assert not again.plans
        mark.unlink()
        fails.undo()

    def test_called_away_in_it(self, fails, folder):
        fails.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            lagom_jax.tune(jitted(), cluster="h100:1x1", cache=folder)(jnp.ones(3))
        assert not list(folder.glob("*.tried"))

    def test_that_goes_well(self, plans, folder):
        step = ONE(jitted(), cache=folder)
        step(X)
        assert len(step.plans) == 1
        assert not list(folder.glob("*.tried"))


class TestVerdicts:
    @pytest.mark.parametrize(
        ("seconds", "days", "plans_later"), [(1.1, 0, 1), (2.0, 0, 0), (2.0, 8, 1)]
    )
    def test_what_was_slower(
        self, plans, folder, monkeypatch, seconds, days, plans_later
    ):
        verdict = MeasuredSteps(1.0, seconds, 0.2, 12, kept=False)
        monkeypatch.setattr(guard, "judge", lambda *times: verdict)
        step = ONE(jitted(), cache=folder, verify="measure")
        for _ in guard.schedule():
            step(X)
        # The step before which what came of it is decided.
        step(X)
        assert not step.plans
        then = time.time() - days * 86_400
        for file in folder.iterdir():
            os.utime(file, (then, then))
        later = ONE(jitted(), cache=folder)
        later(X)
        assert len(later.plans) == plans_later


class TestKey:
    def case(self, cluster="h100:1x1", pinned=(), **options):
        planner = Planner(jitted().trace(X), cluster=cluster)
        found = Case(planner, Options(**options), Budget(), Cache(None), None)
        if pinned:
            stated = tuple(pinned)
            kind = type(planner)
            changed = type("P", (kind,), {"pinned": property(lambda self: stated)})
            planner.__class__ = changed
        return found

    def test_the_content_of_a_cluster(self):
        one = Cluster.parse("h100:2x8")
        system = dataclasses.replace(one.system, gpus_per_host=16)
        other = dataclasses.replace(one, system=system)
        assert (
            self.case(one).compared["cluster"] != self.case(other).compared["cluster"]
        )

    def test_lagom_itself(self, monkeypatch):
        before = self.case().compared
        monkeypatch.setattr(case, "digest_of_code", lambda folder: "another")
        assert self.case().compared["lagom_jax"] != before["lagom_jax"]

    def test_what_belongs_to_one_host_or_to_virtual_cpus(self):
        own = [
            Pinned("NCCL_IB_HCA", "mlx5_1", "the environment"),
            Pinned("xla_dump_to", "/tmp/1", "XLA_FLAGS"),
            Pinned("xla_force_host_platform_device_count", "8", "XLA_FLAGS"),
        ]
        assert self.case(pinned=own).word() == self.case().word()
        real = Pinned("xla_gpu_autotune_level", "0", "XLA_FLAGS")
        assert self.case(pinned=[real]).word() != self.case().word()

    def test_our_own_plugin_is_nobody_s_setting(self, plans, folder):
        plain = ONE(jitted(), cache=folder)
        plain(X)
        environ = {}
        nccl.Nccl(environ)._control()
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environ.items():
                patched.setenv(name, value)
            again = ONE(jitted(), cache=folder)
            again(X)
        assert plans.made == 1
        assert len(again.plans) == 1

    def test_a_plan_of_virtual_cpus_is_found_by_a_job_on_gpus(
        self, plans, folder, monkeypatch
    ):
        monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
        ONE(jitted(), cache=folder)(X)
        monkeypatch.setenv("XLA_FLAGS", "")
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        monkeypatch.setattr(nccl.Nccl, "objection", lambda here: "")
        step = ONE(jitted(), cache=folder)
        step(X)
        assert plans.made == 1
        assert len(step.plans) == 1


class TestFiles:
    @pytest.mark.parametrize("mode", [0o666, 0o620])
    def test_a_plan_that_others_may_have_written(self, plans, folder, mode):
        ONE(jitted(), cache=folder)(X)
        (file,) = folder.iterdir()
        file.chmod(mode)
        ONE(jitted(), cache=folder)(X)
        assert plans.made == 2

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_plan_of_another_user(self, plans, folder):
        ONE(jitted(), cache=folder)(X)
        (file,) = folder.iterdir()
        os.chown(file, 65534, 65534)
        ONE(jitted(), cache=folder)(X)
        assert plans.made == 2

    def test_an_option_that_no_plan_may_set(self, plans, folder):
        ONE(jitted(), cache=folder)(X)
        (file,) = folder.iterdir()
        document = json.loads(file.read_text())
        document["levers"][0] |= {"name": "xla_dump_to", "value": str(folder)}
        file.write_text(json.dumps(document))
        ONE(jitted(), cache=folder)(X)
        assert plans.made == 2

    def test_no_home(self, plans, monkeypatch):
        def nobody(uid):
            raise KeyError(uid)

        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr("pwd.getpwuid", nobody)
        step = ONE(jitted())
        step(X)
        assert len(step.plans) == 1

    def test_dumps_of_the_job_are_its_own(self, monkeypatch):
        flags = "--xla_dump_to=/x --xla_gpu_autotune_level=0 --xla_dump_hlo_as_text"
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert environment()["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"


class TestMemory:
    def test_what_jax_may_take(self):
        here = functools.partial(place.budget_here, Budget(), environ={})

        class Device:
            def memory_stats(self):
                return {"bytes_limit": 70 << 30}

        class Elsewhere:
            def memory_stats(self):
                raise RuntimeError("not a device of this process")

        assert here([Device(), Elsewhere()]).memory(80 << 30) == 70 << 30
        assert here([Elsewhere()]) == Budget()
        own = Budget(memory_fraction=0.5)
        assert place.budget_here(own, [Device()], {}) == own


class TestBudget:
    def test_one_for_all_shapes_of_a_job(self, plans, monkeypatch):
        slow = plans.make

        def make(planner):
            time.sleep(0.2)
            return slow(planner)

        plans.make = make
        step = lagom_jax.tune(
            jitted(), cluster="h100:1x1", cache=False, budget=Budget(seconds=0.3)
        )
        step(jnp.ones(1))
        step(jnp.ones(2))
        with pytest.warns(say.LagomWarning, match="all that it may"):
            step(jnp.ones(3))
        step(jnp.ones(4))
        assert plans.made == 2

    def test_one_planning_at_a_time(self, plans):
        inside, most = [0], [0]

        def make(planner):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.2)
            inside[0] -= 1
            return made(planner)

        plans.make = make
        steps = [ONE(jitted(), cache=False) for _ in range(3)]
        threads = [threading.Thread(target=step, args=(X,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert plans.made == 3
        assert most == [1]


class PreemptedError(Exception):
    """An error of the user's, raised by a handler."""


class TestSignals:
    @pytest.fixture
    def handled(self):
        def handler(*_):
            raise PreemptedError("save a checkpoint, now")

        before = signal.signal(signal.SIGTERM, handler)
        yield
        signal.signal(signal.SIGTERM, before)

    def test_a_handler_s_error_is_the_user_s(self, plans, handled):
        def make(planner):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            return made(planner)

        plans.make = make
        step = lagom_jax.tune(jitted(), cluster="h100:1x1", cache=False)
        with pytest.raises(PreemptedError):
            step(X)
        plans.make = made
        assert step(X).tolist() == [2, 2, 2]
        assert len(step.plans) == 1

    def test_who_ends_planning_from_inside_is_heard(self, plans):
        error = in_background(sys.exit).exception(60)
        assert isinstance(error, SystemExit)
        usual = plans.make

        def interrupted(planner):
            plans.make = usual
            raise KeyboardInterrupt

        plans.make = interrupted
        step = ONE(jitted())
        with pytest.raises(KeyboardInterrupt):
            step(X)
        assert step(X).tolist() == [2, 2, 2]
        assert len(step.plans) == 1

    def test_compilers_end_with_it(self, handled, monkeypatch):
        children = []
        ask = lagom_jax.compile.child.Child.ask

        def asked(child, *arguments, **options):
            children.append(child)
            os.kill(os.getpid(), signal.SIGTERM)
            return ask(child, *arguments, **options)

        monkeypatch.setattr(lagom_jax.compile.child.Child, "ask", asked)
        step = lagom_jax.tune(
            jax.jit(lambda x: jnp.tanh(x @ x)), cluster="h100:1x1", cache=False
        )
        began = time.monotonic()
        with pytest.raises(PreemptedError):
            step(jnp.ones((64, 64)))
        # The compile itself takes longer.
        assert time.monotonic() - began < 60
        for child in children:
            deadline = time.monotonic() + 30
            while child.alive and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not child.alive


def run_python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


HEAD = """
import jax, jax.numpy as jnp, lagom_jax
from lagom_jax.planner import Planner
from tests.runtime.planned import made
def plan(planner, request):
    request.progress('compiling something')
    return made(planner)
Planner.plan = plan
"""


class TestHeard:
    def test_without_any_set_up_of_logging(self):
        code = HEAD + "lagom_jax.tune(jax.jit(lambda x: x), cluster='h100:1x1', "
        said = run_python(code + "cache=False, progress=True)(jnp.ones(3))").stderr
        assert "lagom_jax: planning for h100:1x1: up to 8 compiles" in said
        assert "lagom_jax: compiling something" in said
        assert "predicted 100 ms -> 90.0 ms a step" in said

    def test_silent_where_the_user_wants_it(self):
        quiet = "import logging; logging.getLogger('lagom_jax').setLevel('WARNING')\n"
        code = quiet + HEAD + "lagom_jax.tune(jax.jit(lambda x: x), "
        said = run_python(code + "cluster='h100:1x1', cache=False)(jnp.ones(3))").stderr
        assert "lagom_jax:" not in said

    def test_flags_that_are_parsed_after_the_decoration(self):
        code = (
            HEAD + "import sys, lagom_jax.flags\nfrom absl import app\n"
            "step = lagom_jax.tune(jax.jit(lambda x: x))\n"
            "def main(_):\n    step(jnp.ones(3))\n    print(len(step.plans))\n"
            "app.run(main, ['binary', *sys.argv[1:]])"
        )
        flags = ["--lagom_cluster=h100:1x1", "--lagom_cache=false"]
        assert run_python(code, "--lagom=tune", *flags).stdout == "1\n"
        assert run_python(code, *flags).stdout == "0\n"

    def test_ahead_of_time(self, plans):
        step = ONE(jitted())
        shape = jax.ShapeDtypeStruct((3,), "float32")
        lowered = step.lower(shape)
        assert isinstance(lowered, LoweredWithPlan)
        assert not plans.made
        assert lowered.compile()(X).tolist() == [2, 2, 2]
        assert len(step.plans) == plans.made == 1
        # The same program, called.
        step(X)
        assert plans.made == 1
        assert lowered.compile(compiler_options={})(X).tolist() == [2, 2, 2]

    def test_only_inside_another(self, plans, capsys):
        step = ONE(jitted())
        outer = jax.jit(lambda x: step(x) * 2)
        outer(X)
        outer(jnp.ones(4))
        assert capsys.readouterr().err.count("no plan is made for it") == 1
        assert not plans.made

    def test_warnings_that_are_errors(self, plans, caplog):
        plans.make = lambda planner: 1 // 0
        step = lagom_jax.tune(jitted(), cluster="h100:1x1", cache=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert step(X).tolist() == [2, 2, 2]
        assert "ZeroDivisionError" in caplog.text

    def test_names_that_would_move_the_cursor(self, plans, capsys, monkeypatch):
        def evil(planner):
            plan = made(planner)
            holds_for = dataclasses.replace(plan.holds_for, program="\x1b]0;owned\x07")
            return dataclasses.replace(plan, holds_for=holds_for)

        plans.make = evil
        ONE(jitted(), cache=False)(X)
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert "\\x1b]0;owned" in said


class TestSharding:
    def test_another_sharding_is_another_decision(self, plans):
        mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        step = lagom_jax.tune(
            jax.jit(lambda x: x @ x.T), cluster="h100:1x8", strict=True
        )
        spec = jax.sharding.PartitionSpec
        for spread in (spec("x"), spec(None, "x")) * 3:
            x = jax.device_put(
                jnp.ones((16, 16)), jax.sharding.NamedSharding(mesh, spread)
            )
            assert step(x).shape == (16, 16)
        assert len(step.plans) == plans.made == 2

    def test_a_mesh_that_only_the_function_knows(self, plans, monkeypatch):
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        monkeypatch.setattr(nccl.Nccl, "objection", lambda here: "no NCCL here")
        seen = []
        cluster = Cluster.parse("h100:1x8")
        monkeypatch.setattr(
            place, "cluster_of", lambda d: seen.append(len(d)) or cluster
        )
        mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec
        total = jax.shard_map(
            lambda x: jax.lax.psum(x, "x"),
            mesh=mesh,
            in_specs=spec("x"),
            out_specs=spec(),
        )
        step = lagom_jax.tune(jax.jit(total), strict=True)
        step(np.ones((16, 16), np.float32))
        assert seen == [8]
        assert len(step.plans) == 1


class TestFreshParameters:
    """What lies nowhere yet comes back cut as the compiler has chosen."""

    @pytest.fixture
    def cut(self):
        mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    @pytest.fixture
    def compiles(self):
        seen = []

        def listen(event, seconds, **_):
            if "backend_compile" in event:
                seen.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        yield seen
        jax.monitoring.unregister_event_duration_listener(listen)

    @staticmethod
    def step(state, batch):
        slope = batch.T @ (batch @ state["w"])
        key = jax.random.split(state["key"])[0]
        new = {"w": state["w"] - 1e-3 * slope, "key": key, "n": state["n"] + 1}
        return new | {"nothing": None}

    def fresh(self):
        key = jax.random.key(0)
        return {"w": jnp.ones((16, 16)), "key": key, "n": 0, "nothing": None}

    def trained(self, step, batch, steps=5, clear=lambda: None):
        state = self.fresh()
        for number in range(steps):
            if number == 3:
                clear()
            # Programs of virtual CPUs that are many ahead wait for each other for long.
            state = jax.block_until_ready(step(state, batch))
        return np.asarray(state["w"]), int(state["n"])

    @pytest.mark.parametrize("verify", ["model", "measure"])
    @pytest.mark.parametrize("clears", [False, True])
    def test_one_plan(self, plans, cut, verify, clears):
        batch = jax.device_put(jnp.ones((16, 16)), cut)
        usual, count = self.trained(jax.jit(self.step), batch, 30)
        step = ONE(jax.jit(self.step), cluster="h100:1x8", verify=verify)
        clear = jax.clear_caches if clears else lambda: None
        found, again = self.trained(step, batch, 30, clear)
        assert found.tobytes() == usual.tobytes()
        assert count == again == 30
        assert plans.made == 1

    def test_one_program(self, plans, cut, compiles):
        batch = jax.device_put(jnp.ones((16, 16)), cut)
        step = ONE(
            jax.jit(self.step, donate_argnums=0), cluster="h100:1x8", cache=False
        )
        state = step(self.fresh(), batch)
        compiles.clear()
        for _ in range(3):
            state = step(state, batch)
        assert not compiles
        assert len(step.plans) == 1

    def test_what_is_cut_otherwise_is_another_program(self, plans, cut):
        step = ONE(jax.jit(lambda w, x: w - x), cluster="h100:1x8")
        batch, whole = jax.device_put(jnp.ones((16, 16)), cut), jnp.ones((16, 16))
        step(whole, batch)
        other = jax.sharding.PartitionSpec(None, "x")
        elsewhere = jax.sharding.NamedSharding(cut.mesh, other)
        for sharding, made_now in ((cut, 1), (elsewhere, 2), (cut, 2)):
            expected = jax.jit(lambda w, x: w - x)(whole, batch)
            found = step(jax.device_put(whole, sharding), batch)
            assert found.tolist() == expected.tolist()
            assert plans.made == made_now

    def test_the_same_step_of_other_values_is_another_program(self, plans, cut):
        step = ONE(
            jax.jit(lambda w, x, n: (w - x) ** n, static_argnums=2), cluster="h100:1x8"
        )
        batch = jax.device_put(jnp.ones((16, 16)), cut)
        state = step(jnp.ones((16, 16)) * 3, batch, 1)
        assert step(state, batch, 2).tolist() == [[1.0] * 16] * 16
        assert plans.made == 2


def modules():
    """The number of steps that are kept lowered."""
    gc.collect()
    return sum(isinstance(one, programs.Stages) for one in gc.get_objects())


def test_programs_go_with_jax_s_own_caches(plans):
    step = ONE(jax.jit(lambda x: x * 3))
    client, arrays = jax.devices()[0].client, [jnp.ones(size) for size in range(1, 9)]
    jax.clear_caches()
    modules_before = modules()
    before = len(client.live_executables())
    for array in arrays * 2:
        step(array)
    assert len(client.live_executables()) >= before + 8
    assert modules() >= modules_before + 8
    jax.clear_caches()
    # Nor are modules kept, which are larger.
    assert modules() <= modules_before
    assert len(client.live_executables()) <= before
    assert step(X).tolist() == [3, 3, 3]
    assert plans.made == 8


def test_a_word_is_no_function():
    with pytest.raises(TypeError, match="takes a function"):
        lagom_jax.tune("abc")
