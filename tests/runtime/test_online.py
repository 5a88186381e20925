"""A job that is tuned while it trains, in one process; steps take what a stand-in says."""

import contextlib
import gc
import threading
import time
import types
import warnings
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagom_jax
from lagom_jax.compile import Compiler
from lagom_jax.cost.model import CostModel
from lagom_jax.errors import InDoubtError, LagomError, PlanError
from lagom_jax.measurements import read_profile
from lagom_jax.measurements.overlay import match
from lagom_jax.online.search import Search, SearchLimits
from lagom_jax.plan import MeasuredSteps, to_json
from lagom_jax.planner import Planner
from lagom_jax.program.build import build_program
from lagom_jax.runtime import (
    nccl,
    online,
    planned_beside,
    programs,
    say,
    step_profile,
    steps,
    variant,
)
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import ProcessGroup, Talk
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.planning_process import MODULE
from lagom_jax.runtime.step_clock import StepClock
from lagom_jax.scheduled import read_scheduled
from tests.runtime.planned import OPTION, made
from tests.runtime.stand_in import OTHER, Beside, SettingsBeside, hidden, plan_beside

LONG = 60.0


def function(weights, batch):
    new = jnp.tanh(weights @ batch) + 0.5 * weights
    return new, (new * new).mean()


def train(step, steps=600, until=None):
    """The losses of a training; stops early where nothing more is to come."""
    weights, losses = jnp.ones((16, 16)) / 16, []
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(16, 16)), jnp.float32)
    for number in range(steps):
        weights, loss = step(weights, batch)
        losses.append(float(loss).hex())
        if number == 2 * online.FIRST_MEETING:
            # The thread that plans gets its turn.
            time.sleep(1.0)
        if until is not None and until():
            break
    return losses


def tuned(**asked):
    jitted = jax.jit(function, donate_argnums=0)
    asked = {"cluster": "h100:1x1", "verify": "online", "cache": False, **asked}
    return lagom_jax.tune(jitted, **asked)


@pytest.fixture(autouse=True)
def quick_meetings(monkeypatch):
    """Steps of a toy take no time: meetings are by number."""
    monkeypatch.setattr(online, "_BETWEEN_STEPS", (4, 8))


@pytest.fixture
def beside(monkeypatch):
    return Beside(monkeypatch)


def options(step):
    return [lever.name for plan in step.plans for lever in plan.levers]


def test_the_faster_plan_runs_in_the_end_and_losses_are_the_same(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.091, 0.080])
    step = tuned()
    losses = train(step, 3000, until=lambda: options(step) == [OTHER])
    assert options(step) == [OTHER]
    assert beside.made == 1
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


def test_a_plan_that_is_slower_does_not_stay(beside, monkeypatch):
    machine = hidden(monkeypatch, [0.100, 0.104, 0.110])
    step = tuned()
    losses = train(step, 2500)
    assert step.plans == ()
    assert machine.steps < 2500, "nobody takes times when the search has ended"
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


def test_the_first_steps_wait_for_nothing(monkeypatch):
    waits = threading.Event()

    def plan(planner, request=None):
        waits.wait(LONG)
        return made(planner)

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    began = time.monotonic()
    step = tuned()
    assert len(train(step, 40)) == 40
    assert time.monotonic() - began < LONG / 2
    assert step.plans == ()
    waits.set()


def test_nothing_of_it_begins_before_the_first_steps_have_run(monkeypatch):
    seen = []

    def plan(planner, request=None):
        seen.append(len(ran))
        return made(planner)

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    ran = []
    run = steps.Steps._run

    def counted(*given):
        result = run(*given)
        ran.append(given)
        return result

    monkeypatch.setattr(steps.Steps, "_run", counted)
    train(tuned(), 100)
    assert len(seen) == 1
    assert seen[0] >= 2


def test_a_restart_runs_with_what_was_measured(beside, monkeypatch, tmp_path):
    # More steps may be spent, so that fewer of them prove something.
    limits = SearchLimits(share=0.2)
    quick = types.SimpleNamespace(
        among=lambda timed, steps: Search.among(timed, limits, steps)
    )
    monkeypatch.setattr(online, "Search", quick)
    hidden(monkeypatch, [0.100, 0.091, 0.080])
    step = tuned(cache=tmp_path)
    train(step, 3000, until=lambda: options(step) == [OTHER])
    # Until it is proved and kept.
    train(step, 1500)
    again = tuned(cache=tmp_path)
    train(again, 1)
    (plan,) = again.plans
    assert [lever.name for lever in plan.levers] == [OTHER]
    assert plan.evidence.measured.kept
    measured = plan.evidence.measured
    ratio = measured.tuned_seconds / measured.baseline_seconds
    assert ratio == pytest.approx(0.8, abs=0.03)
    assert beside.made == 1


def test_what_was_slower_is_not_tried_by_the_next_job(beside, monkeypatch, tmp_path):
    hidden(monkeypatch, [0.100, 0.104, 0.110])
    train(tuned(cache=tmp_path), 2500)
    again = tuned(cache=tmp_path)
    train(again, 200)
    assert again.plans == ()
    assert beside.made == 1


class TestGivenPlan:
    """A plan that a user gives, where other plans were measured before."""

    @pytest.fixture
    def asked(self, tmp_path):
        square = jnp.ones((16, 16))
        traced = jax.jit(function, donate_argnums=0).trace(square, square)
        planner = Planner(traced, cluster="h100:1x1")
        faster = MeasuredSteps(1.0, 0.5, 0.01, 12, kept=True)
        other = made(planner, options=(OTHER,), measured=faster)
        Cache(tmp_path).keep({"program": "another"}, other)
        return {"plan": made(planner), "cache": tmp_path}

    def test_steps_decide_about_it_and_about_no_other(
        self, asked, beside, monkeypatch, capsys
    ):
        hidden(monkeypatch, [0.100, 0.104])
        step = tuned(**asked)
        train(step, 1)
        assert step.plans == (), "nothing has measured it yet"
        train(step, 1500)
        assert step.plans == ()
        capsys.readouterr()
        again = tuned(**asked)
        train(again, 200)
        assert again.plans == ()
        assert "was measured before, and was not faster" in capsys.readouterr().err
        assert not beside.made
        # What was found of it says nothing of plans that are made here.
        train(tuned(cache=asked["cache"]), 100)
        assert beside.made == 1

    def test_the_next_job_begins_with_what_was_faster(self, asked, beside, monkeypatch):
        limits = SearchLimits(share=0.2)
        quick = types.SimpleNamespace(
            among=lambda timed, steps: Search.among(timed, limits, steps)
        )
        monkeypatch.setattr(online, "Search", quick)
        hidden(monkeypatch, [0.100, 0.080])
        train(tuned(**asked), 2000)
        again = tuned(**asked)
        train(again, 1)
        assert options(again) == [OPTION]
        assert again.plans[0].evidence.measured.kept
        assert not beside.made


@pytest.mark.parametrize(
    "broken", [PlanError("nothing can be planned"), RuntimeError("no room")]
)
def test_planning_that_fails_costs_nothing_but_the_plan(monkeypatch, broken):
    def plan(planner, request=None):
        raise broken

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    step = tuned()
    with pytest.warns(say.LagomWarning, match=str(broken)):
        losses = train(step, 100)
    assert step.plans == ()
    assert losses == train(jax.jit(function, donate_argnums=0), 100)


def test_a_plan_that_cannot_be_built_leaves_the_others(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.085, 0.080])
    build = programs.build

    def built(stages, plan, **asked):
        if plan.levers and plan.levers[0].name == OTHER:
            raise PlanError("RESOURCE_EXHAUSTED: no room")
        return build(stages, plan, **asked)

    monkeypatch.setattr(programs, "build", built)
    step = tuned()
    train(step, 1500, until=lambda: options(step) == [OPTION])
    assert options(step) == [OPTION]


def test_a_program_that_fails_in_its_first_step(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.085, 0.080])
    build = programs.build

    def failing(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")

    def built(*arguments, **asked):
        found = build(*arguments, **asked)
        return programs.Built(failing, found.collectives)

    monkeypatch.setattr(programs, "build", built)
    step = tuned()
    with pytest.warns(say.LagomWarning, match="RESOURCE_EXHAUSTED"):
        losses = train(step, 300)
    assert step.plans == ()
    assert losses == train(jax.jit(function, donate_argnums=0), 300)


def test_an_error_of_the_step_is_the_users(beside):
    @jax.jit
    def fails(x):
        def raises(x):
            raise ValueError("the user's")

        return jax.pure_callback(raises, jax.ShapeDtypeStruct((), "float32"), x)

    step = lagom_jax.tune(fails, cluster="h100:1x1", verify="online", cache=False)
    with pytest.raises(Exception, match="the user's"):
        jax.block_until_ready(step(jnp.float32(1)))


def test_somebody_who_is_called_away_while_processes_meet(beside, monkeypatch):
    """What a handler of the user raises comes through, and the meeting still counts."""

    class AwayError(Exception):
        pass

    step, result = tuned(), Future.exception
    calls = []

    def away(self, *given):
        calls.append(1)
        if len(calls) == 2:
            raise AwayError
        return result(self, *given)

    monkeypatch.setattr(Future, "exception", away)
    hidden(monkeypatch, [0.100, 0.085, 0.090])
    with pytest.raises(AwayError):
        train(step, 300)
    train(step, 1500, until=lambda: options(step) == [OPTION])
    assert options(step) == [OPTION]


def test_somebody_who_is_called_away_as_processes_have_met(beside, monkeypatch):
    """They have met, and do not meet again for the same step."""

    class AwayError(Exception):
        pass

    result, agree = Future.exception, Talk.agree
    away, met = [], []

    def late(self, *given):
        found = result(self, *given)
        if met and len(away) < len(met) < 4:
            away.append(1)
            raise AwayError
        return found

    def agreed(talk, word, decide, **asked):
        if word.same.startswith("step"):
            met.append(word.same)
        return agree(talk, word, decide, **asked)

    monkeypatch.setattr(Future, "exception", late)
    monkeypatch.setattr(Talk, "agree", agreed)
    hidden(monkeypatch, [0.100, 0.085, 0.090])
    step, x = tuned(), jnp.ones((16, 16))
    for _ in range(40):
        with contextlib.suppress(AwayError):
            x, _ = step(x, jnp.eye(16))
    assert len(away) == 3
    assert len(met) == len(set(met)) >= 3
    train(step, 1500, until=lambda: options(step) == [OPTION])
    assert options(step) == [OPTION], "it goes on as if nobody had been called"


def test_settings_around_what_is_fastest_are_tried_in_rounds(beside, monkeypatch):
    limits = SearchLimits(share=0.2)
    quick = types.SimpleNamespace(
        among=lambda timed, steps: Search.among(timed, limits, steps)
    )
    monkeypatch.setattr(online, "Search", quick)
    asked = SettingsBeside(monkeypatch).asked
    built = []
    build = programs.build
    monkeypatch.setattr(
        programs, "build", lambda *a, **k: built.append(1) or build(*a, **k)
    )
    hidden(monkeypatch, [0.100, 0.085, 0.095, 0.080, 0.076])
    step = tuned()

    def ended():
        return len(asked) == 3

    losses = train(step, 6000, until=ended)
    assert len(asked) == 3, "each that is proved is where the next round begins"
    assert [one is None for one in asked] == [False] * 3
    assert [len(one.settings) for one in asked] == [0, 1, 1]
    (plan,) = step.plans
    assert plan.settings[0].setting.channels == 4
    assert len(built) == 2, "settings are switched, not compiled"
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


def test_settings_that_cannot_be_asked_for_end_the_search(beside, monkeypatch):
    def around(planner, plan):
        raise PlanError("the process is gone")

    monkeypatch.setattr(PlannerBeside, "around", around)
    hidden(monkeypatch, [0.100, 0.085, 0.095])
    step = tuned()
    losses = train(step, 2000)
    assert options(step) == [OPTION]
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


@pytest.fixture
def profiled(monkeypatch):
    """Steps are profiled, as on GPUs; what planning is given is kept."""
    found, profile = [], step_profile.StepProfile
    monkeypatch.setattr(variant, "profile_for", lambda on_gpus: profile())

    def plan(planner, request=None):
        folder, known = planner.profile, None
        if folder is not None:
            module = read_scheduled(folder / MODULE, planner.cluster).module
            step = read_profile(folder)
            assert step.steps == step_profile.STEPS
            model = CostModel.of(planner.cluster)
            known = match(build_program(module), step, model)
        found.append(known)
        return plan_beside(planner)

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    return found


def test_two_steps_are_profiled_and_planning_knows_every_instruction(profiled):
    """The real profiler of this machine, and the real reader."""
    losses = train(tuned(), 20_000, until=lambda: profiled)
    (found,) = profiled
    assert found.share > 0.9
    assert len(found.measured) > 0
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


def test_where_somebody_else_profiles_nothing_is_profiled(profiled, tmp_path):
    with jax.profiler.trace(tmp_path):
        losses = train(tuned(), 20_000, until=lambda: profiled)
    assert profiled == [None]
    assert any(tmp_path.rglob("*.xplane.pb")), "theirs is complete"
    assert losses == train(jax.jit(function, donate_argnums=0), len(losses))


def test_a_step_that_fails_while_it_is_profiled_leaves_the_profiler_free(
    profiled, tmp_path
):
    calls = []

    def fails(x):
        calls.append(1)
        if len(calls) > step_profile.FIRST:
            raise ValueError("the user's")
        return x

    @jax.jit
    def step(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), "float32"), x)

    run = lagom_jax.tune(step, cluster="h100:1x1", verify="online", cache=False)
    x = jnp.float32(1)
    for _ in range(step_profile.FIRST):
        x = jax.block_until_ready(run(x))
    with pytest.raises(Exception, match="the user's"):
        jax.block_until_ready(run(x))
    with jax.profiler.trace(tmp_path):
        pass


def test_who_cannot_know_what_others_run_stops_and_stays_stopped(beside, monkeypatch):
    agree, calls = Talk.agree, []

    def unknown(talk, word, decide, **asked):
        if word.same == f"step {online.FIRST_MEETING}":
            calls.append(1)
            raise InDoubtError("nobody knows")
        return agree(talk, word, decide, **asked)

    monkeypatch.setattr(Talk, "agree", unknown)
    step, x = tuned(), jnp.ones((16, 16))
    for _ in range(online.FIRST_MEETING):
        x, _ = step(x, jnp.eye(16))
    for _ in range(3):
        with pytest.raises(InDoubtError, match="nobody knows"):
            step(x, jnp.eye(16))
    assert len(calls) == 1


def test_rules_that_not_all_could_tell_end_the_search(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.085, 0.090])

    def refused(*given):
        if step.plans:
            raise LagomError("not all processes could tell NCCL what the plan says")

    monkeypatch.setattr(nccl.Nccl, "told", lambda here, who: "something else")
    monkeypatch.setattr(nccl.Nccl, "tell", refused)
    step = tuned()
    with pytest.warns(say.LagomWarning, match="could tell NCCL"):
        losses = train(step, 300)
    assert step.plans == ()
    assert losses == train(jax.jit(function, donate_argnums=0), 300)


def test_other_arguments_have_the_same_plan(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.085, 0.090])
    step = tuned()
    train(step, 1500, until=lambda: options(step) == [OPTION])
    ones = np.ones((16, 16), np.float32) / 16
    plain = jax.jit(function)
    for one, other in zip(step(ones, ones), plain(ones, ones), strict=True):
        assert np.array_equal(one, other)
    assert options(step) == [OPTION]


def test_caches_that_are_cleared_meanwhile(beside, monkeypatch):
    hidden(monkeypatch, [0.100, 0.085, 0.090])
    step = tuned()
    train(step, 1500, until=lambda: options(step) == [OPTION])
    step.clear_cache()
    jax.clear_caches()
    losses = train(step, 30)
    assert losses == train(jax.jit(function, donate_argnums=0), 30)
    assert options(step) == [OPTION]


def test_a_program_that_cannot_be_built_again_costs_nothing_but_the_plan(
    beside, monkeypatch
):
    hidden(monkeypatch, [0.100, 0.085, 0.090])
    step = tuned()
    train(step, 1500, until=lambda: options(step) == [OPTION])

    def build(*_, **__):
        raise PlanError("no room any more")

    monkeypatch.setattr(programs, "build", build)
    step.clear_cache()
    with pytest.warns(say.LagomWarning, match="no room any more"):
        losses = train(step, 30)
    assert losses == train(jax.jit(function, donate_argnums=0), 30)
    assert step.plans == ()


def test_who_comes_back_into_a_job_stops_before_it_runs_anything(beside, monkeypatch):
    begin = ProcessGroup.begin

    def again(group, label, patience):
        talk = begin(group, label, patience)
        # An earlier life of this process has said its word before the first step.
        talk.returned = label.endswith(" before")
        return talk

    monkeypatch.setattr(ProcessGroup, "begin", again)
    ran = []

    def counted(x):
        jax.debug.callback(lambda: ran.append(1))
        return x

    step = lagom_jax.tune(
        jax.jit(counted), cluster="h100:1x1", verify="online", cache=False
    )
    for _ in range(2):
        with pytest.raises(InDoubtError, match="start the job again"):
            step(jnp.ones(3))
    jax.effects_barrier()
    assert not ran
    assert not beside.made


def test_strict_raises_nothing_into_a_training_that_runs(monkeypatch):
    def plan(planner, request=None):
        raise PlanError("nothing can be planned")

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    step = tuned(strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", say.LagomWarning)
        assert len(train(step, 60)) == 60


def test_a_job_that_ends_first_leaves_nothing(monkeypatch):
    waits = threading.Event()

    def plan(planner, request=None):
        waits.wait(LONG)
        raise PlanError("too late")

    monkeypatch.setattr(PlannerBeside, "plan", plan)
    step = tuned()
    train(step, 30)
    del step
    gc.collect()
    waits.set()


class TestStepClock:
    def test_it_takes_the_time_from_end_to_end(self):
        clock = StepClock()
        for candidate in (0, 1, 0):
            result = jax.jit(lambda x: x + 1)(jnp.ones(4))
            clock.started(candidate, time.perf_counter(), result, counts=True)
        found = clock.taken()
        assert [one.candidate for one in found] == [0, 1, 0]
        assert all(one.seconds >= 0 for one in found)
        assert clock.taken() == ()

    def test_what_was_donated_has_no_time(self):
        clock, x = StepClock(), jnp.ones(4)
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        clock.started(0, time.perf_counter(), x, counts=True)
        clock.started(0, time.perf_counter(), (), counts=True)
        assert clock.taken() == ()
        clock.stop()


def test_planning_in_another_process_finds_what_planning_here_finds(tmp_path):
    """The real compiler, in a child process, beside a planner in this one."""
    x = jax.ShapeDtypeStruct((256, 256), "float32")
    traced = jax.jit(lambda a, b: (a @ b).sum()).trace(x, x)
    compiler = Compiler(store=tmp_path)
    there = PlannerBeside(traced, cluster="h100:1x1", compiler=compiler)
    here = Planner(traced, cluster="h100:1x1")
    assert there.plan().levers == here.plan().levers
    assert there.timed[0].timed.seconds > 0
    assert len(there.timed[0].timed.by_model) == 20
    assert any(tmp_path.iterdir()), "steps are kept where the planner keeps them"
    # It knows its plans by what they say, and has no settings where nothing travels.
    assert all(to_json(one.plan) == one.document for one in there.timed)
    assert there.around(None) == there.around(there.timed[-1].plan) == ()
    there.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_job_that_keeps_nothing_keeps_no_compiles_of_another_process(
    kept, tmp_path, monkeypatch
):
    asked = []

    class NoChild:
        def __init__(self, cores):
            pass

        def ask(self, header, payload, progress):
            asked.append(header)
            raise PlanError("it is only asked")

        def end(self):
            pass

    monkeypatch.setattr(planned_beside, "PlanningChild", NoChild)
    traced = jax.jit(lambda x: x).trace(jax.ShapeDtypeStruct((8,), "float32"))
    compiler = Compiler(store=tmp_path if kept else False)
    with pytest.raises(PlanError, match="only asked"):
        PlannerBeside(traced, cluster="h100:1x1", compiler=compiler).plan()
    assert asked[0]["store"] == (str(tmp_path) if kept else False)


def test_planning_that_takes_too_much_memory_is_ended(monkeypatch):
    monkeypatch.setattr(planned_beside, "MEMORY", 1e-9)
    monkeypatch.setattr(planned_beside, "_LOOKS_SECONDS", 0.05)
    x = jax.ShapeDtypeStruct((8,), "float32")
    planner = PlannerBeside(jax.jit(lambda x: x).trace(x), cluster="h100:1x1")
    with pytest.raises(LagomError, match="of memory and may take"):
        planner.plan()
