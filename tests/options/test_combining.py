"""What a combine threshold does: laws, and what the compiler then makes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.options.combining import COMBINED, families, groupings
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Branch, Loop, Run

from ..cost.programs import collective, launch, program, wait
from ..texts import parse
from .compiled import compile_again, compiled, seconds_of

LATENCY = 10.0


def seconds(site):
    """Latency, and a second for a byte."""
    return LATENCY + site.result_bytes


def gathers(*sizes, **more):
    return [
        collective(f"gather {n}", nbytes=size, **more) for n, size in enumerate(sizes)
    ]


def in_order(sites):
    return tuple(map(Run, sites))


def found(*nodes, kind="all-gather"):
    return families(program(*nodes).body, kind)


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 5))
def test_more_bytes_never_make_more_launches(sizes, trips):
    loop = Loop("l", in_order(gathers(*sizes)), trips, True)
    made = groupings(found(loop), seconds)
    launches = [grouping.launches for grouping in made]
    assert launches == sorted(launches, reverse=True)
    assert len(set(launches)) == len(launches)
    thresholds = [grouping.threshold for grouping in made]
    assert thresholds == sorted(set(thresholds))
    assert launches[0] <= trips * len(sizes)
    if len(sizes) < 9:
        assert launches[-1] == trips


@given(SIZES)
def test_a_launch_that_is_saved_saves_its_latency(sizes):
    for grouping in groupings(found(*in_order(gathers(*sizes))), seconds):
        saved = LATENCY * (len(sizes) - grouping.launches)
        assert grouping.saved_seconds == pytest.approx(saved)


@given(SIZES)
def test_no_group_is_larger_than_the_threshold(sizes):
    """Unless it is a collective that is larger by itself; then it could not be fewer."""
    for grouping in groupings(found(*in_order(gathers(*sizes))), seconds):
        assert grouping.launches == fewest(sizes, grouping.threshold)


def fewest(sizes, threshold):
    """The fewest stretches of at most so many bytes, single ones of any size."""
    least = [0] + [len(sizes)] * len(sizes)
    for end in range(1, len(sizes) + 1):
        for begin in range(end):
            if end - begin == 1 or sum(sizes[begin:end]) <= threshold:
                least[end] = min(least[end], least[begin] + 1)
    return least[-1]


def chained(needs):
    """All-gathers of 64 bytes; each is made from an earlier one, or from the input."""
    lines = ["x = f32[8] parameter(0)"]
    for number, source in enumerate(needs):
        if source is None:
            lines.append(f"part.{number} = f32[8] tanh(x)")
        else:
            lines.append(
                f"part.{number} = f32[8] slice(gather.{source}), slice={{[0:8]}}"
            )
        lines.append(
            f"gather.{number} = f32[16] all-gather(part.{number}), dimensions={{0}}, "
            "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"
        )
    ends = ", ".join(f"gather.{n}" for n in range(len(needs)))
    types = ", ".join("f32[16]" for _ in needs)
    lines.append(f"ROOT out = ({types}) tuple({ends})")
    text = "ENTRY main {\n  " + "\n  ".join(lines) + "\n}"
    return build_program(parse(text, header=", num_partitions=2"))


@st.composite
def dependent(draw):
    count = draw(st.integers(1, 7))
    return [
        draw(st.one_of(st.none(), st.integers(0, n - 1))) if n else None
        for n in range(count)
    ]


@given(dependent())
def test_a_collective_never_goes_with_what_it_is_made_from(needs):
    family = families(chained(needs).body, "all-gather")
    ((sites, times),) = family
    assert times == 1
    assert len(sites) == len(needs)
    least = groupings(family, seconds)[-1].launches
    # With room for all, a part ends only where the next is made from something in it.
    begin, parts = 0, 1
    for number in range(len(needs)):
        if depends(needs, number, begin):
            begin, parts = number, parts + 1
    assert least == parts


def depends(needs, number, begin):
    while needs[number] is not None:
        number = needs[number]
        if number >= begin:
            return True
    return False


def test_only_equal_groups_go_together():
    sites = [*gathers(8, 8), *gathers(8, ranks=(0, 1, 2, 3))]
    assert [len(family) for family, _ in found(*in_order(sites))] == [2, 1]


def test_kernels_of_xlas_own_are_left_out():
    sites = gathers(8, 8, kind="all-reduce", one_shot_kernel=True)
    assert found(*in_order(sites), kind="all-reduce") == []


def test_computations_are_apart():
    inner = Loop("i", in_order(gathers(8)), 3, True)
    outer = Loop("o", (inner, *in_order(gathers(8, 8))), 5, True)
    arms = Branch("b", (in_order(gathers(8)), in_order(gathers(8))))
    times = {(len(f), n) for f, n in found(outer, arms, launch("a", 1), wait(1))}
    assert times == {(1, 15), (2, 5), (1, 1)}


def test_iterations_of_a_doubled_body_are_apart():
    """XLA combines before it doubles, so the sums are those of one iteration."""
    weights = [("up", 8), ("down", 5), ("up", 8), ("down", 5)]
    sites = [
        collective(f"gather {n}", nbytes=size, op_name=name)
        for n, (name, size) in enumerate(weights)
    ]
    doubled = found(Loop("l", in_order(sites), 3, True, copies=2))
    assert [([s.name for s in f], n) for f, n in doubled] == [
        (["gather 0", "gather 1"], 3),
        (["gather 2", "gather 3"], 3),
    ]
    assert [g.launches for g in groupings(doubled, seconds)] == [12, 6]
    written_once = found(Loop("l", in_order(sites), 3, True))
    assert groupings(written_once, seconds)[-1].launches == 3


def test_a_doubled_body_whose_iterations_differ_is_one_family():
    """What is not in every iteration cannot be told to be of one of them."""
    names = ("up", "up", "scale")
    sites = [
        collective(f"gather {n}", nbytes=8, op_name=name)
        for n, name in enumerate(names)
    ]
    ((family, times),) = found(Loop("l", in_order(sites), 3, True, copies=2))
    assert (len(family), times) == (3, 3)


def test_a_program_without_collectives_has_no_groupings():
    for kind in COMBINED:
        assert groupings(found(kind=kind), seconds) == []


def test_many_sums_are_thinned_out_but_the_largest_stays():
    sizes = [1 << n for n in range(20)]
    made = groupings(found(*in_order(gathers(*sizes))), seconds)
    assert len(made) <= 64
    assert made[-1].launches == 1


def launches_of(step, kind, **options):
    again = compile_again(step, **options)
    return sum(times for site, times, _ in again.collectives() if site.kind == kind)


def predicted(step, kind):
    found = families(compiled(step).body, kind)
    return groupings(found, seconds_of(step))


@pytest.mark.slow
def test_the_compiler_makes_as_many_launches():
    """At each threshold, and up to the next."""
    kind, made = "all-gather", predicted("chain", "all-gather")
    assert [grouping.launches for grouping in made] == [6, 3, 2, 1]
    for grouping, after in itertools.pairwise(made):
        for threshold in (grouping.threshold, after.threshold - 1):
            told = {COMBINED[kind]: threshold}
            assert launches_of("chain", kind, **told) == grouping.launches


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
def test_what_xla_had_inside_a_loop_stays_apart(kind):
    """However large the threshold: an iteration was taken out only afterwards."""
    least = predicted("fsdp", kind)[-1].launches
    told = {COMBINED[kind]: 1 << 30}
    assert launches_of("fsdp", kind, **told) == least > 1


def test_what_is_together_is_not_taken_apart():
    together = collective("both", nbytes=100, operands=(("bf16", 25),) * 2)
    family = found(*in_order([together, *gathers(8, 8, 8)]))
    made = groupings(family, seconds)
    assert made[0].threshold == 100
    assert [grouping.launches for grouping in made] == [2, 1]
