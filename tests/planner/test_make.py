"""Plans for real steps: what they say is what the compiler makes again."""

import dataclasses
import functools
import gc

import jax
import jax.numpy as jnp
import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import _internal, compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.errors import CompileError, LagomError
from lagom_jax.options import Idea
from lagom_jax.plan import load, save, to_json
from lagom_jax.plan.order import APPLIED
from lagom_jax.plan.pinned import Pinned
from lagom_jax.plan.setting import Setting
from lagom_jax.planner import Budget, LeverError, Planner, Request, make_plan
from lagom_jax.planner.judge import Judge
from lagom_jax.scheduled import scheduled_of
from lagom_jax.settings.controls import named

from ..compile.conftest import mesh
from ..compile.overlapping import overlapping_step

CLUSTER = "h100:2x8"
H100 = Cluster.parse(CLUSTER)
SUMS = ("all-reduce", "reduce-scatter")
# Enough for every lever to be tried; a better search would find no other faults.
BUDGET = Budget(compiles=4, evaluations=100)


@functools.cache
def tiny(parallelism):
    return lagom_models.build(
        "llama-3-8b", devices=16, tiny=True, parallelism=parallelism
    )


@functools.cache
def planner_of(step):
    """Keeps what it has compiled, for all tests."""
    if step == "chain":
        function, arguments = overlapping_step(mesh(16))
    else:
        function, arguments = tiny(step).function, tiny(step).arguments
    return Planner(function, *arguments, cluster=CLUSTER)


@functools.cache
def plan_of(step, budget=BUDGET, **more):
    return planner_of(step).plan(Request(budget=budget, **more))


@functools.cache
def lowered_of(step):
    if step == "chain":
        function, arguments = overlapping_step(mesh(16))
        return lower(function, *arguments)
    return lower(tiny(step).function, *tiny(step).arguments)


def compiled_again(step, plan):
    options = plan.compiler_options()
    return compile_step(lowered_of(step), H100, options, order=plan.order)


def without_clocks(plan):
    evidence = plan.evidence
    candidates = tuple(
        dataclasses.replace(c, compile_seconds=0.0) for c in evidence.candidates
    )
    timeless = dataclasses.replace(evidence, seconds=0.0, candidates=candidates)
    return to_json(dataclasses.replace(plan, evidence=timeless))


STEPS = pytest.mark.parametrize(
    "step",
    [
        "chain",
        pytest.param("fsdp", marks=pytest.mark.slow),
        # Another parallelism goes the same way.
        pytest.param("tp-sliced", marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)


def test_garbage_is_not_searched_for_while_a_plan_is_made():
    seen = []
    request = Request(
        budget=BUDGET,
        levers=("settings",),
        progress=lambda _: seen.append(gc.isenabled()),
    )
    planner_of("chain").plan(request)
    assert not seen[-1]
    assert gc.isenabled()


@STEPS
def test_a_plan_compiles_again_to_what_it_says(step):
    plan = plan_of(step)
    compiled = compiled_again(step, plan)
    assert compiled.order_outcome == (None if plan.order is None else APPLIED)
    assert compiled.memory.peak_bytes == plan.evidence.tuned_peak
    view = Judge(H100, named("tuner")).look(scheduled_of(compiled, H100))
    # All models together may take other settings than the likeliest one alone.
    alone = view.tuning.after.step_seconds
    assert alone <= plan.evidence.tuned.step_seconds <= 1.01 * alone
    # And with the plan's own settings, from the first kernel to the last.
    told = {name: one.setting for one in plan.settings for name in one.sites}
    chosen = {
        site: told[site.name]
        for site, _, _ in view.program.collectives()
        if site.name in told
    }
    assert len(chosen) == len(told)
    assert all(isinstance(setting, Setting) for setting in chosen.values())
    model = CostModel.of(H100).under(chosen)
    timeline = replay(view.program, model, model.contention())
    replayed = dataclasses.astuple(timeline.totals.parts())
    assert replayed == pytest.approx(dataclasses.astuple(plan.evidence.tuned))


@STEPS
def test_the_default_of_a_plan_is_the_step_as_it_is(step):
    plan = plan_of(step)
    compiled = compile_step(lowered_of(step), H100)
    view = Judge(H100, named("tuner")).look(scheduled_of(compiled, H100))
    assert view.default_seconds == plan.evidence.default.step_seconds
    assert plan.evidence.tuned.step_seconds <= view.tuned_seconds
    assert plan.holds_for.fingerprint == lowered_of(step).fingerprint


@STEPS
def test_what_a_plan_says_of_itself_is_so(step):
    plan = plan_of(step)
    evidence = plan.evidence
    assert evidence.compiles <= BUDGET.compiles
    assert evidence.tuned_peak <= evidence.memory_limit
    tried = [c for c in evidence.candidates if c.status != "not tried"]
    assert len(tried) == evidence.compiles
    levers = {lever.name for lever in plan.levers}
    chosen = [
        candidate
        for candidate in tried
        if {name for name, _ in candidate.levers} == levers
        and candidate.tuned_seconds == evidence.tuned.step_seconds
    ]
    assert [c.status for c in evidence.candidates].count("chosen") == 1
    assert "chosen" in {candidate.status for candidate in chosen}
    assert plan.holds_for.pinned == ()
    assert all(lever.why for lever in plan.levers)


@STEPS
@pytest.mark.parametrize("lever", ["options", "costs", "order", "settings"])
def test_one_lever_alone(step, lever):
    few = dataclasses.replace(BUDGET, compiles=2)
    plan = plan_of(step, few, levers=(lever,))
    special = {"costs": "fdo_profile", "order": "order"}
    for one in plan.levers:
        assert one.name == special.get(lever, one.name)
        assert lever == "options" or one.name in special.values()
    assert (plan.costs is not None) <= (lever == "costs")
    assert (plan.order is not None) <= (lever == "order")
    assert bool(plan.settings) <= (lever == "settings")
    evidence = plan.evidence
    assert evidence.tuned.step_seconds <= evidence.default.step_seconds
    if lever == "settings":
        assert evidence.compiles == 1
        assert plan.settings or step == "chain"


@STEPS
def test_deterministic_keeps_sums(step):
    plan = plan_of(step, deterministic=True)
    assert plan.deterministic
    assert all(setting.kind not in SUMS for setting in plan.settings)
    assert all(setting.keeps_order for setting in plan.settings)
    for candidate in plan.evidence.candidates:
        for name, _ in candidate.levers:
            assert name != "xla_gpu_dot_merger_threshold_mb"
            assert "all_reduce_combine" not in name
            assert "reduce_scatter_combine" not in name


@STEPS
def test_a_limit_of_memory_is_kept(step):
    """The least there is: what the step takes as it is."""
    least = plan_of(step).evidence.default_peak
    plan = plan_of(step, dataclasses.replace(BUDGET, memory_bytes=1))
    assert plan.evidence.memory_limit == least
    assert plan.evidence.tuned_peak <= least
    for candidate in plan.evidence.candidates:
        over = candidate.peak_bytes is not None and candidate.peak_bytes > least
        assert over == (candidate.status == "over memory")


@STEPS
def test_a_file_keeps_all_of_it(step, tmp_path):
    plan = plan_of(step)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan


@pytest.mark.slow
@pytest.mark.parametrize("step", ["chain", "fsdp"])
def test_the_same_plan_twice(step):
    built = overlapping_step(mesh(16)) if step == "chain" else None
    function, arguments = built or (tiny(step).function, tiny(step).arguments)
    again = make_plan(
        function,
        *arguments,
        cluster=CLUSTER,
        budget=dataclasses.replace(BUDGET, at_once=3),
    )
    assert without_clocks(again) == without_clocks(plan_of(step))


PINNED = "xla_gpu_all_gather_combine_threshold_bytes"


def chain_plan(**more):
    function, arguments = overlapping_step(mesh(16))
    given = {"cluster": CLUSTER, "budget": BUDGET, **more}
    return make_plan(function, *arguments, **given)


def never_touched(plan, name):
    asked = {n for c in plan.evidence.candidates for n, _ in c.levers}
    return name not in {*asked, *plan.compiler_options()}


@pytest.mark.slow
def test_what_the_user_gives_stays():
    apart = chain_plan(compiler_options={PINNED: 0}, levers=("options", "settings"))
    assert never_touched(apart, PINNED)
    (pin,) = apart.holds_for.pinned
    assert (pin.name, pin.value) == (PINNED, "0")


@pytest.mark.slow
def test_what_a_step_begins_with_every_candidate_has():
    """But for what the user has decided; and the plan says so."""
    function, arguments = overlapping_step(mesh(16))
    apart = Idea("apart", {PINNED: 0}, "why", 0.0)
    budget = dataclasses.replace(BUDGET, compiles=2)
    request = Request(("options", "settings"), budget=budget, begin_with=(apart,))
    made = Planner(function, *arguments, cluster=CLUSTER).plan(request)
    asked = [dict(c.levers) for c in made.evidence.candidates if c.step_seconds]
    assert len(asked) > 1
    assert asked[0] == {PINNED: 0}
    free = chain_plan(levers=("settings",))
    assert made.evidence.default != free.evidence.default
    pinned = {PINNED: 1 << 30}
    again = Planner(
        function, *arguments, cluster=CLUSTER, compiler_options=pinned
    ).plan(dataclasses.replace(request, levers=("settings",)))
    assert never_touched(again, PINNED)


@pytest.mark.slow
def test_what_xla_flags_say_stays(monkeypatch):
    """And is in effect: the all-gathers are six, not one."""
    free = chain_plan(levers=("settings",))
    monkeypatch.setenv("XLA_FLAGS", f"--{PINNED}=0")
    apart = chain_plan(levers=("options", "settings"))
    assert never_touched(apart, PINNED)
    assert apart.holds_for.pinned == (Pinned(PINNED, "0", "XLA_FLAGS"),)
    assert apart.evidence.default != free.evidence.default


def test_what_nccl_has_been_told_is_said(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "^nvls")
    plan = chain_plan(levers=("settings",))
    named = Pinned("NCCL_ALGO", "^nvls", "the environment")
    assert named in plan.holds_for.pinned
    (note,) = (note for note in plan.notes if note.startswith("NCCL_ALGO"))
    assert "NCCL will heed it, predictions do not" in note


def test_a_jax_that_takes_no_order_costs_the_order_alone(monkeypatch):
    """Its plugin would refuse to compile what is to be captured."""
    monkeypatch.setattr(_internal, "jax_version", lambda: "0.11.2")
    function, arguments = overlapping_step(mesh(16))
    planner = Planner(function, *arguments, cluster=CLUSTER)
    plan = planner.plan(Request(("settings", "order"), budget=BUDGET))
    assert plan.settings
    assert plan.order is None
    assert any("jax 0.11.2 takes none" in note for note in plan.notes)
    assert all(made.scheduled_bytes is None for made in planner._compiled.values())


def test_costs_of_the_users_own_stay():
    profile = b'costs { name: "all-gather-start" cost_us: 1000.0 }'
    plan = chain_plan(compiler_options={"fdo_profile": profile}, levers=("costs",))
    assert never_touched(plan, "fdo_profile")
    assert plan.evidence.compiles == 1
    assert [pin.name for pin in plan.holds_for.pinned] == ["fdo_profile"]


def test_a_cap_of_the_users_own_stays():
    """With a cap on all collectives there is one less to choose."""
    cap = "xla_gpu_nccl_collective_max_nchannels"
    plan = chain_plan(compiler_options={cap: 2}, controls="caps", levers=("settings",))
    assert plan.settings == ()
    assert cap not in plan.compiler_options()


@pytest.mark.slow
def test_recipes_stand_beside_the_candidates():
    plan = plan_of("chain", Budget(compiles=1), compare_recipes=True)
    recipes = [c for c in plan.evidence.candidates if " recipe " in c.name]
    assert recipes
    assert plan.evidence.compiles == 1 + len(recipes)
    assert plan.levers == ()


def test_one_compile_is_enough_for_settings():
    plan = plan_of("chain", Budget(compiles=1, evaluations=400))
    assert (plan.levers, plan.evidence.compiles) == ((), 1)
    assert plan.evidence.tuned.step_seconds <= plan.evidence.default.step_seconds


def test_a_step_without_collectives_is_compiled_once():
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    plan = make_plan(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
    assert plan.evidence.compiles == 1
    assert plan.evidence.recovered is None or plan.evidence.recovered == 0
    assert plan.speedup == 1.0


@pytest.mark.parametrize("levers", ["orders", ("order", "magic")])
def test_an_unknown_lever_is_named(levers):
    x = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    with pytest.raises(LeverError, match=r"no lever '(orders|magic)'; known are opt"):
        make_plan(lambda x: x, x, cluster="h100:1x1", levers=levers)


def test_what_is_wrong_with_the_step_is_said():
    function, arguments = overlapping_step(mesh(8))
    with pytest.raises(CompileError, match="8 devices"):
        make_plan(function, *arguments, cluster=CLUSTER)
    with pytest.raises(LagomError, match="no_such_option"):
        chain_plan(compiler_options={"xla_gpu_no_such_option": 1})


def test_a_calibration_that_is_not_there_is_said_before_anything_is_traced():
    def step():
        pytest.fail("was traced")

    with pytest.raises(LagomError, match=r"none\.json"):
        make_plan(step, cluster=CLUSTER, calibration="none.json")


def test_an_unknown_cluster_is_said_before_anything_is_traced():
    def step():
        pytest.fail("was traced")

    with pytest.raises(LagomError, match="h101"):
        make_plan(step, cluster="h101:1x8")
