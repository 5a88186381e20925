"""Candidates are compiled, looked at, compared: with a compiler made by hand."""

import dataclasses
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.errors import (
    CompileError,
    CompileTimeoutError,
    HloError,
    StepError,
)
from lagom_jax.hlo import read_module
from lagom_jax.options import Idea
from lagom_jax.options.memory import SLOP, MemoryRoom
from lagom_jax.order import Ordering
from lagom_jax.plan import Interval
from lagom_jax.plan.order import NOT_MET
from lagom_jax.planner.decide import NOTHING_HELPS, NOTHING_KNOWN_TO_HELP
from lagom_jax.planner.stages import reserved
from lagom_jax.planner.sweep import Sweep
from lagom_jax.planner.trial import Asked, memory_of
from lagom_jax.scheduled import Scheduled

from ..depth import examples
from .fakes import (
    H100,
    JUDGE,
    KINDS,
    LIMIT,
    MODULES,
    OPTIONS,
    Compiler,
    Remembering,
    an_order,
    idea,
    module_bytes,
    searched,
    statuses,
    sweep,
)


def tuned(kind):
    scheduled = Scheduled(MODULES[kind], H100, "step", peak_memory_bytes=LIMIT // 2)
    return JUDGE.look(scheduled).tuned_seconds


def test_the_modules_are_what_they_are_called():
    seconds = [
        tuned(kind) for kind in ("huge", "faster", "fast", "busy", "usual", "slow")
    ]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(seconds)


def test_every_fate_of_a_candidate():
    answers = {
        "a": "slow",
        "b": "usual",
        "c": CompileError("no such thing\nand more of it"),
    }
    made, best = searched(Compiler(answers))
    assert statuses(made) == {"": "ok", "a": "slower", "b": "no effect", "c": "failed"}
    assert best.number == 0
    reasons = [trial.reason for trial in made.trials]
    assert reasons[0] == ""
    assert reasons[1].startswith("+")
    assert reasons[1].endswith("% beside #0")
    assert reasons[2] == "the same program as #0"
    assert reasons[3] == "no such thing"
    answers = {"a": "huge", "b": CompileTimeoutError("took longer than 9 s")}
    made, best = searched(Compiler(answers), "ab")
    assert statuses(made) == {"": "ok", "a": "over memory", "b": "timed out"}
    assert made.trials[1].reason == "takes 1.00 kB, and may 1.00 kB"
    assert made.trials[2].reason == "took longer than 9 s"
    assert best.number == 0


def test_where_nothing_is_known_to_help_nothing_is_changed_and_that_is_said():
    made, best = searched(Compiler({"a": "slow", "b": "usual"}), "ab")
    decided = made.decided()
    assert decided.notes == (NOTHING_KNOWN_TO_HELP,)
    assert best.number == 0
    assert not any(best.view.found.choice)
    assert decided.uncertainty.speedup == Interval(1.0, 1.0, 1.0)
    same, _ = searched(Compiler({"a": "usual", "b": "usual"}), "ab")
    assert same.decided().notes in ((NOTHING_HELPS,), (NOTHING_KNOWN_TO_HELP,))
    helped, _ = searched(Compiler({"a": "huge", "b": "fast"}), "ab")
    assert helped.decided().notes == ()


def test_the_best_is_found_and_built_upon():
    answers = {"a": "slow", "b": "fast", "bc": "faster"}
    made, best = searched(Compiler(answers))
    assert set(best.asked.options) == {OPTIONS["b"], OPTIONS["c"]}
    assert best.status == "ok"
    assert best.asked.name == f"#{statuses_number(made, 'b')} + c"


def statuses_number(made, letter):
    (trial,) = (t for t in made.trials if set(t.asked.options) == {OPTIONS[letter]})
    return trial.number


def test_what_brings_nothing_is_taken_away_again():
    """All together bring work; without one of them it is the same program."""
    answers = {"ab": "busy", "a": "slow", "b": "busy"}
    made, best = searched(Compiler(answers), "ab", first=True)
    assert best.asked.options == {OPTIONS["b"]: True}
    assert statuses(made)["b"] == "ok"
    assert best.reason == "the same program as #1, with fewer options"


def test_what_changed_nothing_is_left_out_in_the_end():
    """Together with another it was part of the best; by itself it does nothing."""
    answers = {"ab": "fast", "a": "usual", "b": "fast"}
    made, best = searched(Compiler(answers), "ab", first=True)
    assert statuses(made)["a"] == "no effect"
    assert best.asked.options == {OPTIONS["b"]: True}


def test_what_changes_nothing_is_not_taken_for_the_simpler_form_of_what_helps():
    """Both are tried at once: one helps, the other is as good as nothing."""
    answers = {"abc": "fast", "a": "usual"}
    _, best = searched(Compiler(answers), first=True, compiles=3)
    assert len(best.asked.options) == 3


def test_candidates_are_numbered_in_the_order_in_which_they_are_listed():
    made, _ = searched(Compiler({"b": "fast", "ab": CompileError("no")}))
    assert [trial.number for trial in made.trials] == list(range(len(made.trials)))
    names = [trial.candidate().name for trial in made.trials]
    assert names[0] == "#0 as it is"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("compiles", range(1, 7))
def test_compiles_are_kept(compiles):
    compiler = Compiler({"a": "fast", "ab": "faster"})
    made, _ = searched(compiler, compiles=compiles)
    assert len(compiler.asked) == made.compiles <= compiles
    left = [trial for trial in made.trials if trial.status == "not tried"]
    assert bool(left) == (compiles < 6)
    assert {trial.reason for trial in left} <= {"out of compiles"}
    assert all(trial.view is None for trial in left)


def test_compiles_are_kept_for_what_comes_after():
    compiler = Compiler({"a": "fast"})
    made, best = searched(compiler, compiles=4, reserve=2)
    assert made.compiles == 2
    made.with_costs(best)
    assert made.compiles == 3
    assert compiler.asked[-1].count("$") == 1


def test_costs_leave_a_compile_for_the_order():
    compiler = Compiler({"a": "fast"})
    made, best = searched(compiler, compiles=2, reserve=1)
    assert made.with_costs(best, reserve=1) is best
    assert compiler.asked == [""]
    assert made.with_costs(best) is not None
    assert compiler.asked == ["", "$"]


@pytest.mark.parametrize("compiles", range(1, 9))
@pytest.mark.parametrize("costs", [True, False])
@pytest.mark.parametrize("orders", [True, False])
def test_a_small_budget_goes_to_order_and_options_before_costs(compiles, costs, orders):
    kept = reserved(compiles, costs=costs, orders=orders)
    for_options = compiles - 1 - kept
    assert kept <= costs + orders
    # No costs without options, no options without an order.
    assert kept == costs + orders or for_options <= 1
    assert for_options >= 1 or compiles <= 1 + orders


def test_time_is_kept(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    compiler = Compiler({"a": "fast"})
    made, _ = sweep(compiler, seconds=10)
    first = made.first()
    now[0] = 10.5
    best = made.improve(first, lambda view: [idea("a"), idea("b")], 0)
    assert best is first
    assert compiler.asked == [""]
    assert made.with_costs(best) is best
    made.in_order(best)
    assert made.decided().trial.number == best.number
    assert {t.reason for t in made.trials[1:]} == {"out of time"}
    assert statuses(made) == {"": "ok", "a": "not tried", "b": "not tried"}


def test_a_program_over_the_limit_does_no_harm():
    """What it takes may be taken, and no more."""
    compiler = Compiler({"a": "fast", "b": "faster"}, peaks={"usual": 3 * LIMIT})
    made, best = searched(compiler, "ab", limit=LIMIT)
    assert made.memory_limit == 3 * LIMIT
    assert made.trials[0].status == "ok"
    assert best.asked.options
    over = Compiler({"a": "huge"}, peaks={"usual": 3 * LIMIT, "huge": 3 * LIMIT + 1})
    made, best = searched(over, "a", limit=LIMIT)
    assert statuses(made)["a"] == "over memory"
    assert best.number == 0


@pytest.mark.parametrize(
    "wrong", [CompileError("refused"), CompileTimeoutError("late"), StepError("mesh")]
)
def test_what_is_wrong_with_the_program_as_it_is_is_raised(wrong):
    made, _ = sweep(Compiler({"": wrong}))
    with pytest.raises(type(wrong), match=str(wrong)):
        made.first()


class Blind(Remembering):
    """Cannot look at one of the modules."""

    def look(self, scheduled):
        if scheduled.module is MODULES["faster"]:
            raise HloError("an instruction of a kind that nobody knows")
        return super().look(scheduled)


def test_a_candidate_that_cannot_be_read_does_not_stop_the_rest():
    made, best = searched(Compiler({"a": "faster", "b": "fast"}), "ab", judge=Blind())
    assert statuses(made)["a"] == "failed"
    assert "nobody knows" in made.trials[1].reason
    assert best.asked.options == {OPTIONS["b"]: True}


def test_a_program_that_cannot_be_read_is_raised():
    made, _ = sweep(Compiler({"": "faster"}), judge=Blind())
    with pytest.raises(HloError, match="nobody knows"):
        made.first()


ANSWERS = st.one_of(
    st.sampled_from(["usual", "fast", "faster", "busy", "slow", "huge"]),
    st.builds(CompileError, st.just("no")),
    st.builds(CompileTimeoutError, st.just("late")),
)
LETTERS = ["a", "b", "c", "ab", "ac", "bc", "abc"]


@examples(by_day=25, by_night=500)
@given(
    st.dictionaries(st.sampled_from(LETTERS), ANSWERS),
    st.integers(1, 9),
    st.integers(0, 2),
    st.booleans(),
)
def test_never_worse_and_alike_on_every_machine(answers, compiles, reserve, first):
    found = []
    for workers in (1, 4):
        compiler = Compiler(answers)
        made, best = searched(
            compiler, compiles=compiles, reserve=reserve, first=first, at_once=workers
        )
        assert made.compiles == len(compiler.asked) <= compiles
        assert compiler.busiest <= workers
        assert best.usable
        assert best.view.tuned_seconds <= made.trials[0].view.default_seconds
        assert made.decided().uncertainty.slower <= 1
        assert best.peak_bytes <= LIMIT
        for trial in made.trials:
            assert (trial.view is None) == (
                trial.status in ("failed", "timed out", "not tried")
            )
            assert trial.reason or trial.status == "ok"
        assert len({frozenset(asked) for asked in compiler.asked}) == len(
            compiler.asked
        )
        found.append(
            [dataclasses.replace(t.candidate(), compile_seconds=0) for t in made.trials]
            + [best.number]
        )
    assert found[0] == found[1]


def promise(**seconds):
    """An order for each kind of module that promises so many seconds."""

    def order(module, evaluations):
        (kind,) = (
            k
            for k, m in MODULES.items()
            if len(m.entry.instructions) == size(module)
            and [i.name for i in m.entry.sequence]
            == [i.name for i in module.entry.sequence]
        )
        before = tuned(kind)
        after = seconds.get(kind, before)
        sequences = {0: tuple(range(size(module)))} if after < before else {}
        return Ordering(
            sequences=sequences,
            on_second_stream={},
            before_seconds=before,
            after_seconds=after,
            live_bytes_change=0,
            evaluations=evaluations,
            displacements=(),
        )

    return Remembering(orders=order)


def size(module):
    return len(module.entry.instructions)


class Partial(Remembering):
    """Sees all programs alike as soon as it can tell all collectives apart."""

    def __init__(self):
        super().__init__(controls="sequence")
        self.looks = []

    def look(self, scheduled):
        self.looks.append(self._controls.tells_apart)
        view = super().look(scheduled)
        if self._controls.tells_apart == "sizes":
            return view
        return dataclasses.replace(view, tuning=JUDGE.look(FASTER).tuning)


FASTER = Scheduled(MODULES["faster"], H100, "step", peak_memory_bytes=LIMIT // 2)


def test_what_is_compiled_is_decided_as_with_the_coarsest_controls():
    """Then all of it is looked at again, with all that can be told apart."""
    answers = {"a": "fast", "b": "slow", "ab": "busy"}
    coarse, fine, judge = Compiler(answers), Compiler(answers), Partial()
    (_, usual), (made, best) = searched(coarse), searched(fine, judge=judge)
    assert fine.asked == coarse.asked
    assert best.asked == usual.asked
    count = len(made.trials)
    assert judge.looks == ["sizes"] * count + ["places"] * count
    least = JUDGE.look(FASTER).tuned_seconds
    assert {trial.view.tuned_seconds for trial in made.trials} == {least}


def test_no_order_is_looked_for_where_none_may_be_used():
    """Not even where the compiler still has what one could be made for."""

    class Captures(Compiler):
        def __call__(self, options, order, *, capture):
            return super().__call__(options, order, capture=True)

    judge = promise(slow=tuned("faster"))
    compiler = Captures({"a": "slow"}, in_order="faster")
    made, best = searched(compiler, "a", judge=judge, orders=False, reserve=1)
    assert compiler.asked == ["", "a"]
    assert statuses(made)["a"] == "slower"
    assert best.number == 0
    made, _ = sweep(compiler, judge, orders=True)
    made.compare([Asked(given=((OPTIONS["a"], True),))], made.first())
    assert made.trials[1].ordering is None


def test_a_candidate_is_worth_what_its_order_will_be():
    """Slow as compiled, fast in the order that it makes room for."""
    judge = promise(slow=tuned("faster"))
    compiler = Compiler({"a": "slow"}, in_order="faster")
    _, best = searched(compiler, "a", judge=judge, orders=True, reserve=1)
    assert compiler.asked == ["", "a", "a!"]
    assert best.ordered
    assert best.status == "ok"
    assert best.asked.options == {OPTIONS["a"]: True}
    assert best.schedule == "faster"
    assert best.view.scheduled.module is MODULES["faster"]


@pytest.mark.parametrize(
    ("off_rings", "compiled"),
    [("faster", [True, False]), ("fast", [False]), ("slow", [False])],
)
def test_off_the_rings_an_order_is_compiled_for_what_gains_there(off_rings, compiled):
    """What gives nothing in the order found at a glance gives nothing in another."""
    judge = promise(**{off_rings: 0.99 * tuned(off_rings)})
    compiler = Compiler({"a": "fast", "aw": off_rings}, in_order="faster")
    made, _ = searched(compiler, "a", judge=judge, orders=True, reserve=1)
    before = len(made.trials)
    made.off_rings(lambda view: [idea("w")])
    ordered = [trial.ordered for trial in made.trials[before:]]
    assert sorted(ordered) == sorted(compiled)


@pytest.mark.parametrize(
    ("in_order", "status"),
    [
        (CompileError("no"), "failed"),
        (("faster", NOT_MET), "failed"),
        ("huge", "over memory"),
        ("slow", "no effect"),
    ],
)
def test_an_order_that_cannot_be_had_leaves_nothing_worse(in_order, status):
    judge = promise(slow=tuned("faster"))
    compiler = Compiler({"a": "slow"}, in_order=in_order)
    made, best = searched(compiler, "a", judge=judge, orders=True, reserve=1)
    assert statuses(made)["a!"] == status
    assert best.asked.options == {}
    assert not best.ordered
    assert best.status == "ok"
    assert best.reason == "the least regret among what was compiled"
    assert made.trials[best.number].reason == best.reason


def test_an_order_that_is_not_met_is_asked_for_again():
    """XLA breaks ties by chance, so that its next schedule may be the known one."""
    judge = promise(slow=tuned("faster"))
    compiler = Compiler({"a": "slow"}, in_order=[("fast", NOT_MET), "faster"])
    made, best = searched(compiler, "a", judge=judge, orders=True, reserve=1)
    assert compiler.asked.count("a!") == 2
    assert made.compiles == len(made.trials) + 1
    assert best.ordered
    assert best.view.scheduled.module is MODULES["faster"]

    never = Compiler({"a": "slow"}, in_order=("faster", NOT_MET))
    made, best = searched(never, "a", judge=judge, orders=True, reserve=1)
    assert never.asked.count("a!") == 4
    assert not best.ordered


def test_without_a_compile_left_for_it_an_order_is_worth_nothing():
    judge = promise(slow=tuned("faster"))
    compiler = Compiler({"a": "slow", "b": "fast"})
    made, best = searched(compiler, "ab", judge=judge, orders=True, compiles=3)
    assert made.compiles == 3
    assert best.asked.options == {OPTIONS["b"]: True}


def test_what_is_chosen_in_another_order_is_not_said_to_be_slower():
    """Its order held less than it had promised, and is a gain all the same."""
    judge = promise(slow=tuned("faster"))
    compiler = Compiler({"a": "slow"}, in_order="fast")
    made, best = searched(compiler, "a", judge=judge, orders=True, reserve=1)
    assert best.ordered
    assert best.view.scheduled.module is MODULES["fast"]
    assert statuses(made)["a!"] == "ok"


def test_recipes_are_compared_as_their_authors_would():
    made, _ = sweep(Compiler({"a": "fast", "b": "slow", "c": "usual", "ab": "huge"}))
    first = made.first()
    given = [
        tuple((OPTIONS[x], True) for x in letters) for letters in ("a", "b", "c", "ab")
    ]
    made.compare(
        [Asked(title=f"recipe {n}", given=g) for n, g in enumerate(given)], first
    )
    assert [t.status for t in made.trials] == [
        *("ok", "ok", "slower", "no effect", "over memory")
    ]
    assert "both with NCCL's own choices" in made.trials[1].reason
    assert made.trials[3].reason == "the program stays as it is"


def test_what_is_being_done_is_said():
    made, said = sweep(Compiler({"a": "fast"}))
    made.improve(made.first(), lambda view: [idea("a")], 0)
    assert said[0] == "compiling as it is"
    assert said[1].startswith("compiling #0 + a (1 of at most ")
    assert said[1].endswith(" left)")


@pytest.mark.parametrize(
    ("limit", "lost", "spare"), [(100, 0, 40), (100, 30, 10), (100, 50, -10)]
)
def test_an_order_may_use_what_is_left_of_the_memory_and_no_more(limit, lost, spare):
    made = SimpleNamespace(memory_limit=limit)
    made._spare = lambda trial: Sweep._spare(made, trial)
    trial = SimpleNamespace(peak_bytes=60, order_bytes=lost)
    assert Sweep._spare(made, trial) == spare
    assert Sweep._may_be_ordered(made, trial) == (spare >= 0)


@pytest.mark.parametrize(
    ("jaxlib", "alias", "orders"),
    [("0.10.2", LIMIT, 0), ("0.10.2", 0, 1), ("0.12.0", LIMIT, 1)],
)
def test_no_order_is_looked_for_where_lost_donation_leaves_no_room(
    jaxlib, alias, orders
):
    """Such an order would be compiled only to end over memory."""
    judge = promise(usual=tuned("faster"))
    compiler = Donating({}, in_order="faster", jaxlib=jaxlib, alias=alias)
    made, said = sweep(compiler, judge, orders=True)
    made.in_order(made.first())
    assert compiler.asked == ["", *["!"] * orders]
    assert any("lose donation" in line for line in said) == (not orders)


class Donating(Compiler):
    def __init__(self, answers, *, jaxlib, alias, **more):
        super().__init__(answers, **more)
        self._jaxlib, self._alias = jaxlib, alias

    def __call__(self, options, order, *, capture):
        scheduled, found = super().__call__(options, order, capture=capture)
        memory = dataclasses.replace(found.memory, alias_bytes=self._alias)
        versions = {"jaxlib": self._jaxlib}
        return scheduled, dataclasses.replace(found, memory=memory, versions=versions)


class Settling(Remembering):
    """Knows two programs whose settings all models take back.

    With settings of their own, one takes a tenth longer by two models, and the other a
    twentieth by all; without them the first is the best by all.
    """

    def doubt(self, stage, policy):
        risky = stage.program.module is MODULES["risky"]

        def step_seconds(choice):
            if stage.program.module not in (MODULES["risky"], MODULES["fast"]):
                return (2.0,) * 20
            if not any(choice):
                return (1.2,) * 20
            if choice != SETTLED:
                return (1.0,) * 18 + (1.25,) * 2 if risky else (1.05,) * 20
            return (1.0,) * 20 if risky else (1.05,) * 20

        return SimpleNamespace(
            step_seconds=step_seconds,
            decided=lambda found, **_: dataclasses.replace(found, choice=SETTLED),
        )


SETTLED = (414,)
NEAR = (("fast", 36, True), ("risky", 37, True))
"""So near that one is a finalist beside the other."""


def test_programs_are_compared_with_the_settings_of_all_models(monkeypatch):
    """What one model finds for a program says little about what the program is worth."""
    for kind, work, hidden in (("usual", 40, False), *NEAR):
        monkeypatch.setitem(KINDS, kind, module_bytes(work, hidden=hidden))
        monkeypatch.setitem(MODULES, kind, read_module(KINDS[kind]))
    compiler = Compiler({"a": "fast", "b": "risky", "ab": "usual"})
    made, best = searched(compiler, "ab", judge=Settling())
    assert statuses(made)["a"] == "ok"
    assert best.asked.options == {OPTIONS["b"]: True}
    assert best.view.found.choice == SETTLED


class Unsure(Remembering):
    """By two of twenty models options lose, an order of the program as it is gains."""

    def doubt(self, stage, policy):
        usual, other = MODULES["usual"], MODULES["faster"]
        times = {usual: (1.0,) * 20, other: (0.9,) * 20}
        found = times.get(stage.program.module, (*(0.5,) * 18, 1.1, 1.1))
        return SimpleNamespace(
            step_seconds=lambda choice: found, decided=lambda found, **_: found
        )


@pytest.mark.parametrize(("compiles", "taken"), [(8, "faster"), (3, "usual")])
def test_where_options_may_lose_the_program_as_it_is_gets_an_order(compiles, taken):
    """One compile more, where a budget has room for one."""
    judge = Unsure(orders=an_order)
    compiler = Compiler({"a": "fast"}, in_order=["huge", "faster"])
    made, _ = searched(compiler, "a", judge=judge, orders=True, compiles=compiles)
    made.order_alone()
    made.order_alone()
    assert made.decided().trial.view.program.module is MODULES[taken]
    assert compiler.asked == ["", "a", "a!", *["!"] * (compiles == 8)]


def test_memory_of_a_candidate_is_beside_what_it_may_take():
    """That is what the program as it is takes, where it takes more than the limit."""
    swept, _ = sweep(Compiler({}, usual="huge"))
    first = swept.first()
    scheduled = dataclasses.replace(
        FASTER, peak_memory_bytes=900, symmetric_bytes=100, kept_bytes=300
    )
    trial = dataclasses.replace(first, view=JUDGE.look(scheduled))
    usual = MemoryRoom(800, 300, LIMIT + 1, H100.gpu.memory_bytes)
    assert memory_of(trial, swept.memory_limit) == usual
    more = Asked((Idea("more", {SLOP: 120}, "why", 1.0),))
    asking = dataclasses.replace(trial, asked=more)
    given = memory_of(asking, swept.memory_limit)
    assert given == dataclasses.replace(usual, present=120)
    dumped = dataclasses.replace(first, view=JUDGE.look(FASTER))
    assert memory_of(dumped, swept.memory_limit) is None
