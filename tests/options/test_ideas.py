"""Ideas: only what the program gives reason for, and what the compiler knows."""

import dataclasses
import importlib.metadata

import pytest

from lagom_jax.compile.known_options import known_options
from lagom_jax.cost.replay import replay
from lagom_jax.options import Idea, ideas
from lagom_jax.options.combining import families, groupings
from lagom_jax.options.memory import SLOP, MemoryRoom
from lagom_jax.program.program import Loop, Program, Run
from xla_flags import known

from ..cost.programs import (
    ByName,
    collective,
    kernel,
    launch,
    program,
    run,
    wait,
)
from .compiled import compiled, replayed, seconds_of

STEPS = ("chain", "fsdp", "tp-sliced")
HERE = importlib.metadata.version("jaxlib")
NEWER = "0.12.0.1"
REDUCTIONS = ("all-reduce", "reduce-scatter")


def derived(step, **more):
    asked = {"jaxlib": HERE, **more}
    return ideas(compiled(step), replayed(step), seconds_of(step), **asked)


def by_hand(*nodes, seconds=1.0, **more):
    """Ideas for a program of which every task takes a second."""

    class Second(dict):
        def __missing__(self, name):
            return seconds

    step = program(*nodes)
    asked = {"jaxlib": "0.10.2", **more}
    timeline = replay(step, ByName(Second()))
    return ideas(step, timeline, lambda site: seconds, **asked)


def names(found):
    return [idea.name for idea in found]


def options(found):
    return {name for idea in found for name in idea.options}


LOOP = Loop("l", (launch("gather", 1), wait(1), run("k")), 4, True)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_the_compiler_knows_all_of_them(step):
    for idea in derived(step):
        for answer in known_options(idea.options).values():
            assert answer.usable, answer


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_none_promises_more_than_there_is(step):
    """And those that promise the most come first."""
    found = derived(step)
    assert found
    most = [idea.most_seconds for idea in found]
    assert most == sorted(most, reverse=True)
    totals = replayed(step).totals
    assert min(most) > 0
    # Double buffering takes copies away, too.
    assert max(most) <= totals.communication_seconds + totals.compute_seconds
    assert len(set(names(found))) == len(found)
    assert len({idea.key for idea in found}) == len(found)
    assert all(idea.why for idea in found)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_what_the_user_has_set_is_left_out(step):
    for name in options(derived(step)):
        found = derived(step, pinned=[name])
        assert options(found) == options(derived(step)) - {name}
    assert derived(step, pinned=options(derived(step))) == ()


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_deterministic_leaves_out_what_may_change_sums(step):
    kept = derived(step, deterministic=True)
    assert kept == tuple(idea for idea in derived(step) if idea.keeps_order)
    for idea in kept:
        for name in idea.options:
            assert name != "xla_gpu_dot_merger_threshold_mb"
            combines = name.endswith("combine_threshold_bytes")
            assert not (combines and set(known()[name].kinds) & set(REDUCTIONS)), name
    assert len(kept) < len(derived(step))


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_newer_version_gets_its_own_spelling(step):
    here, newer = derived(step, jaxlib="0.10.2"), derived(step, jaxlib=NEWER)
    for name in options(newer):
        assert NEWER not in known()[name].absent
    assert set(names(newer)) <= set(names(here))


def test_pipelining_on_a_newer_version_is_a_mode():
    (idea,) = (i for i in by_hand(LOOP, jaxlib=NEWER) if "pipelining" in i.name)
    assert idea.options == {
        "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON"
    }
    (idea,) = (i for i in by_hand(LOOP) if "pipelining" in i.name)
    assert idea.options == {"xla_gpu_enable_pipelined_all_gather": True}


def test_what_the_user_has_set_in_a_newer_spelling_is_left_out():
    pinned = ["xla_gpu_pipeline_all_gather"]
    found = by_hand(LOOP, jaxlib=NEWER, pinned=pinned)
    assert "pipelining all-gathers" not in names(found)


def test_without_collectives_there_are_none():
    assert by_hand(run("k"), Loop("l", (run("k 2"),), 9, True)) == ()


def test_collectives_that_xla_runs_itself_cannot_be_pipelined():
    own = collective("r", kind="all-reduce", one_shot_kernel=True)
    found = by_hand(Loop("l", (Run(own), run("k")), 4, True))
    assert not options(found) & {
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_while_loop_unrolling",
        "xla_gpu_all_reduce_combine_threshold_bytes",
    }


def test_only_loops_that_repeat_can_be_pipelined():
    once = Loop("l", LOOP.body, 1, True)
    assert not [name for name in names(by_hand(once)) if "pipelining" in name]
    assert "pipelining all-gathers" in names(by_hand(LOOP))


def test_reductions_are_pipelined_together():
    (idea,) = (
        idea
        for idea in by_hand(
            Loop("l", (Run(collective("r", kind="reduce-scatter")),), 4, True)
        )
        if "pipelining" in idea.name
    )
    assert set(idea.options) == {
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_pipelined_reduce_scatter",
    }
    assert idea.why.startswith("loops carry reduce-scatters: ")


def test_a_program_that_gets_another_order_needs_no_limits():
    """The order of a loop can be searched well; that of a long program cannot."""
    rivals = (launch("a", 1), launch("b", 2), run("k"), wait(1, 2))

    def limited(*nodes, **more):
        return any("under way" in name for name in names(by_hand(*nodes, **more)))

    loop = Loop("l", rivals, 4, True)
    assert limited(loop)
    assert not limited(loop, reorders=True)
    assert limited(*rivals, reorders=True)
    assert "unrolling" not in names(by_hand(loop, reorders=True))


def test_long_programs_are_not_unrolled():
    long = Loop("l", LOOP.body, 10_000, True)
    assert "unrolling" in names(by_hand(LOOP))
    assert "unrolling" not in names(by_hand(long))


def test_unrolling_and_double_buffering_rule_each_other_out():
    found = {idea.name: idea for idea in by_hand(LOOP)}
    one, other = found["unrolling"], found["double buffering"]
    assert one.rules_out(other)
    assert other.rules_out(one)
    assert not other.first or not one.first


def test_what_gives_next_to_nothing_is_no_idea():
    site = collective("gather")
    times = {"gather": 1e-9, **{f"k {n}": 1.0 for n in range(3)}}
    step = Program(
        "p",
        (Loop("l", (Run(site),), 4, True), *(Run(kernel(f"k {n}")) for n in range(3))),
        2,
    )
    timeline = replay(step, ByName(times))
    assert ideas(step, timeline, lambda site: 1e-9, jaxlib="0.10.2") == ()


def combining(sizes, computing=0.0):
    """The ideas of combining all-gathers of these sizes, and what was to choose.

    Each takes a second, and a kernel before them as long as is said.
    """
    sites = [
        collective(f"g {n}", nbytes=nbytes, is_sync=True)
        for n, nbytes in enumerate(sizes)
    ]
    step = program(run("k"), *map(Run, sites))
    times = {"k": computing} | {site.name: 1.0 for site in sites}
    timeline = replay(step, ByName(times))
    found = ideas(step, timeline, lambda site: 1.0, jaxlib="0.10.2")
    made = groupings(families(step.body, "all-gather"), lambda site: 1.0)
    return [i for i in found if i.name.startswith("combining")], made


THRESHOLD = "xla_gpu_all_gather_combine_threshold_bytes"


@pytest.mark.parametrize("size", [1000, 300_000, 1 << 20, 5_000_000])
def test_a_threshold_makes_the_grouping_that_it_stands_for(size):
    """However it is rounded: small sums lie closer together than a MiB."""
    found, made = combining([size] * 9)
    assert found
    for idea in found:
        threshold = idea.options[THRESHOLD]
        made_by_it = [g for g in made if g.threshold <= threshold][-1]
        assert f"an estimated {made_by_it.launches} a step" in idea.why
        assert idea.most_seconds == pytest.approx(made_by_it.saved_seconds)


def test_a_larger_threshold_must_save_more_than_nothing():
    """Six launches of nine or eight: the two are much of this step, or little of it."""
    assert len(combining([8] * 9)[0]) == 2
    (only,), made = combining([8] * 9, computing=5000.0)
    saved = [grouping.saved_seconds for grouping in made]
    assert only.most_seconds == pytest.approx(6.0)
    assert only.first
    assert max(saved) == pytest.approx(8.0)


def test_a_threshold_is_said_in_whole_mib_where_that_is_the_same():
    found, _ = combining([5_000_000] * 2)
    assert names(found) == ["combining all-gathers to 10 MiB"]
    assert found[0].options == {THRESHOLD: 10 << 20}


def test_an_idea_with_one_value_rules_out_another_value():
    one, other = (Idea("i", {"x": value}, "why", 1.0) for value in (1, 2))
    assert one.rules_out(other)
    assert one.key != other.key
    assert not one.rules_out(Idea("j", {"y": 1}, "why", 1.0))


TIGHT = MemoryRoom(peak_bytes=90, kept_bytes=20, limit_bytes=90, device_bytes=100)


def test_more_memory_is_an_idea_where_xla_has_less_than_the_step_may_take():
    (found,) = (i for i in by_hand(LOOP, memory=TIGHT) if SLOP in i.options)
    assert found.options == {SLOP: 116}
    assert found.keeps_order
    assert "90 B" in found.why
    assert "77 B" in found.why
    roomy = dataclasses.replace(TIGHT, peak_bytes=50)
    less = dataclasses.replace(TIGHT, limit_bytes=79, peak_bytes=79)
    for memory in (None, roomy, less):
        assert SLOP not in options(by_hand(LOOP, memory=memory))
    assert SLOP not in options(by_hand(LOOP, memory=TIGHT, pinned=[SLOP]))


def test_what_is_computed_again_counts_for_more_memory():
    """Without communication to hide nothing else would speak for it."""
    again = by_hand(run("k"), run("k.remat"), memory=TIGHT)
    (found,) = (i for i in again if SLOP in i.options)
    assert found.most_seconds == 1.0
    assert found.carries_less
    assert by_hand(run("k"), run("k2"), memory=TIGHT) == ()
