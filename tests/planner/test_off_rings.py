"""Transports as a lever: ideas, policies, refusals, and who decides."""

import dataclasses
from types import MappingProxyType, SimpleNamespace

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.hlo import read_module
from lagom_jax.options.off_rings import ON, SYMMETRIC, off_rings
from lagom_jax.plan.transport import CTA_POLICY
from lagom_jax.planner.judge import Judge
from lagom_jax.planner.orders_found import digest_of
from lagom_jax.planner.process_share import needs_of, reasons, variables_of
from lagom_jax.planner.trial import Asked, Trial, captured_module
from lagom_jax.program.build import build_program
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.controls import named

from ..texts import parse
from .fakes import (
    MODULES,
    Compiler,
    Remembering,
    an_order,
    idea,
    searched,
    statuses,
    sweep,
)

H100 = Cluster.parse("h100:1x8")
GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}"
ROWS = 66 * 128
"""A matmul of so many takes 33 rounds of tiles on 132 SMs, and 34 on 130."""


def module(*, windows, matmuls=4, rows=ROWS):
    """An all-gather beside matmuls that do not need it."""
    space = ":S(1)" if windows else ""
    part = f"bf16[{rows // 8},{ROWS}]{{1,0{space}}}"
    whole = f"bf16[{rows},{ROWS}]{{1,0{space}}}"
    lines = [
        f"p = {part} parameter(0)",
        f"x.0 = bf16[{ROWS},{ROWS}] parameter(1)",
        f"start = ({part}, {whole}) all-gather-start(p), channel_id=1, {GROUPS}, "
        "dimensions={0}, use_global_device_ids=true",
        *(
            f"x.{n + 1} = bf16[{ROWS},{ROWS}] dot(x.{n}, x.{n}), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            for n in range(matmuls)
        ),
        f"done = {whole} all-gather-done(start)",
        f"ROOT out = (bf16[{ROWS},{ROWS}], {whole}) tuple(x.{matmuls}, done)",
    ]
    body = "\n".join(f"  {line}" for line in lines)
    return parse(f"ENTRY main {{\n{body}\n}}", header=", num_partitions=8")


def judged(*, windows, symmetric_bytes=0, **more):
    judge = Judge(H100, named("tuner"), policies=("default", "zero"))
    made = module(windows=windows, **more)
    scheduled = Scheduled(made, H100, symmetric_bytes=symmetric_bytes)
    return judge, judge.look(scheduled)


def ideas(name="h100:1x8", nccl="", **more):
    cluster = Cluster.parse(name)
    model = CostModel.of(cluster, nccl)
    program = build_program(module(windows=False))
    timeline = replay(program, model, model.contention())
    return off_rings(timeline, model, **{"jaxlib": "0.10.2", **more})


def test_what_lies_in_windows_has_no_setting_and_says_why():
    _, view = judged(windows=True)
    assert view.tuning.groups == ()
    ((_, why),) = view.tuning.fixed
    assert why == "runs by copy engines: no tuner is asked"


def test_a_policy_is_taken_where_it_gains_and_its_second_best_is_known():
    """Matmuls of many rounds lose some to two SMs, and none to copy engines."""
    judge, view = judged(windows=True)
    assert view.policy == "zero"
    assert view.without_policy is not None
    plain = Judge(H100, named("tuner")).look(view.scheduled)
    assert view.tuned_seconds < plain.tuned_seconds
    assert view.without_policy == pytest.approx(plain.tuned_seconds)
    (variable,) = variables_of(view, H100.gpu.memory_bytes, 0.75)
    assert (variable.name, variable.value) == (CTA_POLICY, "2")
    assert variable.step_without == view.without_policy
    needs = needs_of(view, judge.model.with_policy("zero"))
    assert (needs.nccl, needs.cuda_driver) == ("2.28.0", "12.5")


def test_a_policy_that_changes_nothing_is_not_asked_for():
    _, view = judged(windows=False)
    assert view.policy == "default"
    assert view.without_policy is None
    assert variables_of(view, H100.gpu.memory_bytes, 0.75) == []
    assert not needs_of(view, CostModel.of(H100))


def test_windows_that_do_not_fit_beside_the_pool_ask_for_a_smaller_one():
    memory = H100.gpu.memory_bytes
    _, view = judged(windows=True, symmetric_bytes=int(0.3 * memory))
    _, fraction = variables_of(view, memory, 0.75)
    assert fraction.name == "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert 0.3 + float(fraction.value) < 1.0
    assert fraction.step_without is None
    _, small = judged(windows=True, symmetric_bytes=int(0.2 * memory))
    assert len(variables_of(small, memory, 0.75)) == 1


def test_reasons_give_time_and_contention():
    judge, view = judged(windows=True)
    _, first = judged(windows=False)
    told = [*reasons(first, view, judge.model.with_policy("zero"))]
    assert told[0].startswith("all-gathers: 1 by copy engines: ")
    assert "than on rings" in told[0]
    assert "with all on rings" in told[1]
    assert [*reasons(first, first, judge.model)] == []


def test_ideas_and_their_bounds():
    found = ideas()
    names = [idea.name for idea in found.ideas]
    assert names == ["all-gathers by copy engines", "symmetric memory"]
    mode, symmetric = found.ideas
    assert mode.options == {"xla_gpu_all_gather_mode": ON}
    assert symmetric.options == {SYMMETRIC: True}
    assert symmetric.rules_out(mode)
    assert found.refusals == ()
    # An all-gather adds nothing up.
    assert symmetric.keeps_order
    model = CostModel.of(H100)
    program = build_program(module(windows=False))
    before = replay(program, model, model.contention())
    after = replay(build_program(module(windows=True)), model, model.contention())
    saved = before.step_seconds - after.step_seconds
    assert 0 < saved <= symmetric.most_seconds


@pytest.mark.parametrize(
    ("name", "nccl", "conditions"),
    [
        ("h100:1x8", "2.28.9", {"nccl version"}),
        ("h100:1x8", "2.27.7", {"nccl version", "known hazard"}),
        ("a40-pcie:1x8", "2.30.7", {"links"}),
    ],
)
def test_no_idea_where_a_condition_is_not_met(name, nccl, conditions):
    found = ideas(name, nccl)
    assert {refusal.condition for refusal in found.refusals} == conditions
    left = [idea.name for idea in found.ideas]
    assert left == (["symmetric memory"] if nccl == "2.28.9" else [])


def test_what_the_user_has_set_stays():
    left = [idea.name for idea in ideas(pinned={SYMMETRIC}).ideas]
    assert left == ["all-gathers by copy engines"]


def test_a_view_without_gain_keeps_the_default_policy():
    """Nothing beside it, and little to gather: copy engines only start later."""
    _, view = judged(windows=True, matmuls=0, rows=64)
    assert view.policy == "default"


def test_windows_are_another_program():
    _, one = judged(windows=False)
    _, other = judged(windows=True)
    assert one.structure.digest != other.structure.digest
    assert one.structure.in_symmetric_memory == {}
    assert other.structure.in_symmetric_memory == {"all-gather": 1}


@pytest.mark.parametrize("compiles", [1, 2, 4, 8])
def test_compiles_off_the_rings_are_beside_all_others(compiles):
    answers = {"a": "fast", "ab": "fast", "aw": "faster", "w": "faster"}
    without, with_ = Compiler(answers), Compiler(answers)
    searched(without, "ab", compiles=compiles)
    made, _ = searched(with_, "ab", compiles=compiles)
    made.off_rings(lambda view: [idea("w")])
    assert with_.asked[: len(without.asked)] == without.asked
    more = with_.asked[len(without.asked) :]
    assert len(more) == (compiles > 1)
    # On top of the best of the others, and the best of all in the end.
    assert all(letters == ("a" * ("a" in with_.asked) + "w") for letters in more)
    taken = made.decided().trial
    assert ("faster" in (answers.get(letters) for letters in more)) == (
        taken.asked.options.get(SYMMETRIC, False)
    )


def as_scheduled():
    """A trial off the rings, whose module XLA's scheduler left without its memory."""
    judge, view = judged(windows=True)
    scheduled = module(windows=False).proto.SerializeToString()
    return judge, Trial(Asked(), "ok", "", 1.0, view, captured=scheduled)


def test_an_order_is_looked_for_among_collectives_as_they_will_run():
    judge, trial = as_scheduled()
    plain = read_module(trial.captured)
    placed = captured_module(trial)
    ran = [
        [judge.model.carried(site) for site, _, _ in build_program(one).collectives()]
        for one in (plain, placed, trial.view.program.module)
    ]
    assert ran[0] == [None]
    assert ran[1] == ran[2] != ran[0]
    # What the same schedule takes on rings is the answer to another question.
    assert digest_of(placed) != digest_of(plain)
    found = [
        judge.order(one, spare_bytes=None, evaluations=50).before_seconds
        for one in (plain, placed)
    ]
    usual = judge.untouched(trial.view).tuned_seconds
    assert found[1] == pytest.approx(usual)
    assert found[0] > found[1]


class OfTwoMinds(Remembering):
    """By one of twenty models a program off the rings takes so long."""

    steady = MappingProxyType({0: (1, 0)})
    """The order that is found under several models."""

    def __init__(self, seconds, in_order=1.0, orders=None):
        super().__init__(orders=orders)
        self.times = {
            MODULES["faster"]: (*(0.5,) * 19, seconds),
            MODULES["huge"]: (*(0.6,) * 19, in_order),
        }
        self.members = []

    def robust_order(self, module, begin, *, beside, members, evaluations, **more):
        assert len(beside.by_model) == 20
        self.members += members
        other = an_order(module, evaluations)
        return dataclasses.replace(other, sequences=self.steady)

    def doubt(self, stage, policy):
        times = next(
            (t for m, t in self.times.items() if m is stage.program.module),
            (1.0,) * 20,
        )
        return SimpleNamespace(
            step_seconds=lambda choice: times, decided=lambda found, **_: found
        )


@pytest.mark.parametrize(("seconds", "taken"), [(0.99, True), (1.01, False)])
def test_nothing_off_the_rings_that_a_model_finds_behind_what_stays_on_them(
    seconds, taken
):
    """One model in twenty may see a loss elsewhere: here none may."""
    compiler = Compiler({"w": "faster"})
    made, _ = searched(compiler, "", judge=OfTwoMinds(seconds))
    made.off_rings(lambda view: [idea("w")])
    assert statuses(made)["w"] == "ok"
    assert (made.decided().trial.number == 1) == taken


@pytest.mark.parametrize(
    ("in_xlas", "in_order", "taken", "members"),
    [
        # All find it ahead, and nobody is asked for more.
        (0.99, 0.99, "faster", []),
        # The last finds it behind; in the order that it asks for it no longer does.
        (1.01, 0.99, "huge", [19]),
        (1.01, 1.01, "usual", [19]),
    ],
)
def test_the_model_that_refuses_a_step_is_asked_for_an_order(
    in_xlas, in_order, taken, members
):
    judge = OfTwoMinds(in_xlas, in_order, an_order)
    compiler = Compiler({"w": "faster"}, peaks={"huge": 1}, in_order="huge")
    made, _ = sweep(compiler, judge, orders=True)
    made.first()
    made.off_rings(lambda view: [idea("w")])
    # What the likeliest asks for is as it was.
    made.trials = [trial for trial in made.trials if not trial.ordered]
    made.answer()
    assert judge.members == members
    assert made.decided().trial.view.program.module is MODULES[taken]


def test_the_order_that_a_step_is_refused_in_is_not_compiled_again():
    judge = OfTwoMinds(1.01, 1.01, an_order)
    judge.times[MODULES["huge"]] = (*(0.4,) * 19, 1.01)
    compiler = Compiler({"w": "faster"}, peaks={"huge": 1}, in_order="huge")
    made, _ = sweep(compiler, judge, orders=True)
    made.first()
    made.off_rings(lambda view: [idea("w")])
    known = made.trials[-1]
    assert known.ordered
    before = list(compiler.asked)
    judge.steady = known.ordering.sequences
    made.answer()
    assert judge.members == [19]
    assert compiler.asked == before
    judge.steady = {0: (1, 0)}
    made.answer()
    assert compiler.asked == [*before, "w!"]
