"""A second stream: who gets it, and that nobody is beside whom he must not be."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import price_of, replay
from lagom_jax.hlo.groups import Groups
from lagom_jax.order import find_order
from lagom_jax.order.descent import Descent
from lagom_jax.order.eager import eager
from lagom_jax.order.parameters import SearchParameters
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.streams import (
    clashes,
    inside_domains,
    is_crowded,
    meet_and_clash,
    most_sms_held,
    sharing,
)
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import Builder, build_program
from lagom_jax.program.program import Launch, Loop, Program, Stream, Wait
from lagom_jax.settings.controls import COARSE, named
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from ..depth import slow_examples
from ..texts import parse
from .modules import SUM, WHOLE, add, matmul, program_in

CLUSTER = Cluster.parse("h100:2x8")
MODEL = CostModel.of(CLUSTER)
FEW = slow_examples(8, 100)

ROWS = "{{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}"
COLUMNS = "{" + ",".join(f"{{{n},{n + 8}}}" for n in range(8)) + "}"
ALL = "{{" + ",".join(map(str, range(16))) + "}}"
# The same devices in the same order as in the columns, in groups of four.
FOURS = "{" + ",".join(f"{{{n},{n + 8},{n + 1},{n + 9}}}" for n in range(0, 8, 2)) + "}"
NAMED = ', frontend_attributes={_xla_stream_annotation="1"}'


def start(name, operand, groups, more=""):
    return (
        f"{name} = {WHOLE} all-reduce-start({operand}), channel_id=1, "
        f"replica_groups={groups}, use_global_device_ids=true, to_apply=sum{more}"
    )


def done(name, begun):
    return f"{name} = {WHOLE} all-reduce-done({begun})"


def text_of(*lines):
    body = "\n".join(
        f"  {line}"
        for line in (
            f"p0 = {WHOLE} parameter(0)",
            f"p1 = {WHOLE} parameter(1)",
            *lines,
        )
    )
    return f"{SUM}\nENTRY main {{\n{body}\n}}"


def module_of(*lines):
    return parse(text_of(*lines), header=", num_partitions=16")


ONE_AFTER_ANOTHER = (
    matmul("work", "p0", "p1"),
    start("far", "p0", COLUMNS),
    done("far1", "far"),
    start("near", "p1", ROWS),
    done("near1", "near"),
    matmul("more", "work", "p1"),
    f"ROOT out = {WHOLE} add(far1, near1)",
)


def ordered(module, *, evaluations=300, streams=True, **parameters):
    return find_order(
        module,
        CLUSTER,
        MODEL,
        controls=named("tuner"),
        grid=COARSE,
        evaluations=evaluations,
        streams=streams,
        parameters=SearchParameters(**parameters),
    )


def names_of(module, tokens):
    by_id = {i.id: i.name for i in module.entry.sequence}
    return {by_id[token] for token in tokens}


def aside_in(module):
    return names_of(module, inside_domains(build_program(module), CLUSTER))


def test_what_stays_inside_a_domain_may_run_beside_what_does_not():
    assert aside_in(module_of(*ONE_AFTER_ANOTHER)) == {"near"}


@pytest.mark.parametrize("groups", [ROWS, COLUMNS, ALL])
def test_where_all_use_the_same_links_there_is_nothing_to_gain(groups):
    lines = [
        line.replace(ROWS, groups).replace(COLUMNS, groups)
        for line in ONE_AFTER_ANOTHER
    ]
    assert aside_in(module_of(*lines)) == set()


def test_a_program_that_names_streams_keeps_them():
    lines = [
        line + NAMED if line.startswith("near = ") else line
        for line in ONE_AFTER_ANOTHER
    ]
    program = build_program(module_of(*lines))
    streams = {
        node.task.name: node.stream for node in program.body if isinstance(node, Launch)
    }
    assert streams == {"far": Stream.COLLECTIVE, "near": Stream.ASIDE}
    assert inside_domains(program, CLUSTER) == frozenset()


@pytest.mark.parametrize("named_stream", ["collective", "0", ""])
def test_a_stream_that_is_not_the_second_is_the_first(named_stream):
    more = NAMED.replace("1", named_stream)
    lines = [
        line + more if line.startswith("near = ") else line
        for line in ONE_AFTER_ANOTHER
    ]
    assert aside_in(module_of(*lines)) == {"near"}


def beside(outer):
    """One inside a domain while another is under way."""
    return module_of(
        start("far", "p0", outer),
        start("near", "p1", ROWS),
        done("far1", "far"),
        done("near1", "near"),
        f"ROOT out = {WHOLE} add(far1, near1)",
    )


def test_those_that_share_one_device_may_meet():
    assert aside_in(beside(COLUMNS)) == {"near"}


def test_where_two_that_clash_meet_already_all_stay_on_one_stream():
    assert aside_in(beside(ALL)) == set()


def looped(trips, *, known=True, late):
    """A loop that leaves one collective under way, which its end or beginning awaits."""
    module = module_of(
        start("far", "p0", ALL),
        done("far1", "far"),
        start("near", "p1", ROWS),
        done("near1", "near"),
        f"ROOT out = {WHOLE} add(far1, near1)",
    )
    program = build_program(module)
    far, far1, near, near1 = (n for n in program.body if isinstance(n, Launch | Wait))
    body = (near, near1, far1, far) if late else (far1, near, near1, far)
    nodes = (Loop("loop", body, trips, known), far1)
    return inside_domains(Program("p", nodes, 16, module), CLUSTER)


def test_what_a_loop_leaves_under_way_counts_in_its_next_iteration():
    assert looped(4, late=False)
    assert not looped(4, late=True)
    assert looped(1, late=True)
    assert not looped(1, known=False, late=True)


@given(st.data())
def test_shared_devices_are_counted_as_sets_count_them(data):
    def groups():
        width = data.draw(st.sampled_from([1, 2, 3, 6]))
        devices = data.draw(st.permutations(range(12)))
        return np.array(devices, np.int64).reshape(-1, width)

    one, other = groups(), groups()
    expected = max(len({*a} & {*b}) for a in one.tolist() for b in other.tolist())
    assert Groups(one).most_shared(Groups(other)) == expected
    assert Groups(one).most_shared(Groups(np.zeros((0, 2), np.int64))) == 0


def share_devices(one, other):
    """From the groups alone, as sets."""
    rows, others = (
        [{*row} for row in launch.task.groups.members.tolist()]
        for launch in (one, other)
    )
    return any(len(row & beside) > 1 for row in rows for beside in others)


def meets(block):
    """Pairs on different streams that must not be under way at once, and are."""
    under_way, found = {}, set()
    for node in block:
        if isinstance(node, Launch):
            for other in under_way.values():
                if other.stream is not node.stream and share_devices(node, other):
                    found.add((other.task.name, node.task.name))
            under_way[node.token] = node
        elif isinstance(node, Wait):
            for token in node.tokens:
                del under_way[token]
    return found


def allowed_on_one_stream(module, permutation):
    """What was found with two streams and is used with one keeps to the rules of one."""
    found = sequence_of(Builder(module), module.entry, Inner({}, {}))
    unit_of = {i.id: unit.number for unit in found.units for i in unit.instructions}
    old = module.entry.sequence
    order = dict.fromkeys(unit_of[old[n].id] for n in permutation or range(len(old)))
    program = build_program(module)
    stage = Stage(program, space_of(program, CLUSTER, named("tuner"), COARSE), MODEL)
    terms = Terms(stage, stage.untouched)
    return Descent(found, terms, {}, found.given).allows(tuple(order))


@st.composite
def steps(draw):
    """Random work and collectives; what is launched is waited for before the next."""
    values, lines = ["p0", "p1"], []
    for number in range(draw(st.integers(6, 18))):
        value, name = st.sampled_from(values), f"v{number}"
        what = draw(st.sampled_from(["dot", "add", ROWS, COLUMNS, FOURS, ALL]))
        if what == "dot":
            lines.append(matmul(name, draw(value), draw(value)))
        elif what == "add":
            lines.append(add(name, draw(value), draw(value)))
        else:
            lines += [
                start(f"begun{number}", draw(value), what),
                done(name, f"begun{number}"),
            ]
        values.append(name)
    lines.append(f"ROOT out = {WHOLE} add({values[-1]}, {values[-2]})")
    return lines


@FEW
@given(steps())
def test_no_order_has_two_under_way_that_clash(lines):
    module = module_of(*lines)
    ordering = ordered(module)
    assert ordering.after_seconds <= ordering.before_seconds
    program = program_in(module, ordering)
    assert meets(program.body) == set()
    assert not meet_and_clash(program)
    assert ordering.on_second_stream or allowed_on_one_stream(
        module, ordering.sequences.get(1)
    )
    chosen = {
        module.entry.sequence[place].name
        for place in ordering.on_second_stream.get(1, ())  # 0 is the sum of a reduction
    }
    assert chosen == {
        node.task.name
        for node in program.body
        if isinstance(node, Launch) and node.stream is Stream.ASIDE
    }


@FEW
@given(steps(), st.lists(st.floats(0.0, 1e-3), min_size=1, max_size=9))
def test_busy_streams_have_none_under_way_that_clash(lines, seconds):
    module = module_of(*lines)
    builder = Builder(module, inside_domains(build_program(module), CLUSTER))
    found = sequence_of(builder, module.entry, Inner({}, {}))
    alone = [seconds[unit.number % len(seconds)] for unit in found.units]
    clashing = clashes(launch for unit in found.units for launch in unit.launches)
    order = eager(
        found.units, alone, lambda task: seconds[task.bytes % len(seconds)], clashing
    )
    assert found.is_legal(order)
    block = [node for number in order for node in found.units[number].nodes]
    assert meets(block) == set()


def room_for(*lines):
    program = build_program(module_of(*lines))
    return is_crowded(program, lambda task: price_of(task, MODEL).seconds)


def test_where_kernels_take_longer_one_stream_is_enough():
    many = [matmul(f"work{n}", "p0", "p1") for n in range(40)]
    assert room_for(*ONE_AFTER_ANOTHER)
    assert not room_for(*many, *ONE_AFTER_ANOTHER)
    ordering = ordered(module_of(*many, *ONE_AFTER_ANOTHER))
    assert ordering.sequences
    assert not ordering.on_second_stream


@pytest.mark.parametrize("each", [10, 10_000])
def test_two_streams_hide_one_behind_the_other(each):
    """Whether both are searched or, with fewer evaluations, only the one with two."""
    module = module_of(*ONE_AFTER_ANOTHER)
    one, two = (
        ordered(module, evaluations=2000, streams=streams, per_start=each)
        for streams in (False, True)
    )
    assert not one.on_second_stream
    assert two.on_second_stream == {1: (5,)}
    timeline = replay(program_in(module, two), MODEL, MODEL.contention())
    alone = [figures.alone_seconds for figures in timeline.collectives().values()]
    # Most of what the shorter one takes goes.
    assert one.after_seconds - two.after_seconds > 0.75 * min(alone)
    # With Lagom's settings the step takes at least as long as its longer collective.
    assert timeline.step_seconds >= max(alone)


@pytest.mark.parametrize("each", [10, 10_000])
def test_a_second_stream_that_brings_nothing_is_not_used(each):
    """What is over the network needs what is inside a domain: nothing can meet."""
    lines = (
        start("near", "p0", ROWS),
        done("near1", "near"),
        start("far", "near1", COLUMNS),
        done("far1", "far"),
        matmul("work", "p0", "p1"),
        f"ROOT out = {WHOLE} add(far1, work)",
    )
    module = module_of(*lines)
    assert aside_in(module) == {"near"}
    assert room_for(*lines)
    ordering = ordered(module, evaluations=600, per_start=each)
    assert ordering.after_seconds < ordering.before_seconds
    assert not ordering.on_second_stream


def tokens_of(module):
    return {
        node.task.name: node.token
        for node in build_program(module).body
        if isinstance(node, Launch)
    }


@pytest.mark.parametrize("first", ["columns", "fours"])
def test_groups_of_another_shape_are_other_groups(first):
    two = {"columns": COLUMNS, "fours": FOURS}
    second = ({*two} - {first}).pop()
    module = module_of(
        start(first, "p0", two[first]),
        done("one", first),
        start(second, "p0", two[second]),
        done("two", second),
        start("rows", "p1", ROWS),
        done("three", "rows"),
        f"ROOT out = {WHOLE} add(one, two)",
    )
    token = tokens_of(module)
    launches = [n for n in build_program(module).body if isinstance(n, Launch)]
    found = clashes(launches, {token["rows"]})
    assert found == {
        token["fours"]: {token["rows"]},
        token["rows"]: {token["fours"]},
    }
    assert sharing(launches)[token["fours"]] == {token["rows"], token["columns"]}


def test_a_wait_that_needs_what_clashes_leaves_the_order_as_it_was():
    """The wait of one needs the other, which must not be launched at its side."""
    module = module_of(
        matmul("early", "p0", "p1"),
        matmul("work", "early", "p1"),
        start("far", "work", ALL),
        done("far1", "far"),
        start("near", "p1", ROWS),
        done("near1", "near") + ", control-predecessors={far1}",
        matmul("more", "near1", "far1"),
        f"ROOT out = {WHOLE} add(more, far1)",
    )
    ordering = ordered(module)
    assert meets(program_in(module, ordering).body) == set()


BOTH_AT_ONCE = (
    start("far", "p0", COLUMNS),
    start("near", "p1", ROWS, NAMED),
    done("near1", "near"),
    done("far1", "far"),
    f"ROOT out = {WHOLE} add(far1, near1)",
)
IN_TURNS = (
    start("far", "p0", COLUMNS),
    done("far1", "far"),
    start("near", "p1", ROWS, NAMED),
    done("near1", "near"),
    f"ROOT out = {WHOLE} add(far1, near1)",
)


def held(lines, second=()):
    channels = {"far": 16, "near": 24}
    program = build_program(module_of(*lines))
    return most_sms_held(program, lambda site: channels[site.name], second)


def test_streams_hold_the_sms_of_what_is_under_way_on_each():
    assert held(BOTH_AT_ONCE) == 16 + 24
    assert held(IN_TURNS) == 24


def test_a_stream_has_one_collective_at_a_time():
    """What waits in the queue of a stream holds nothing."""
    alike = [line.replace(NAMED, "") for line in BOTH_AT_ONCE]
    assert held(alike) == 24


@pytest.mark.parametrize(("sms", "second"), [(132, {1: (5,)}), (30, {})])
def test_no_second_stream_where_both_do_not_fit_on_the_gpu(sms, second):
    """Then a circle of devices could wait for each other."""
    gpu = dataclasses.replace(CLUSTER.gpu, sm_count=sms)
    system = dataclasses.replace(CLUSTER.system, gpu=gpu)
    small = dataclasses.replace(CLUSTER, system=system)
    found = find_order(
        module_of(*ONE_AFTER_ANOTHER),
        small,
        CostModel.of(small),
        controls=named("tuner"),
        grid=COARSE,
        evaluations=300,
        streams=True,
        parameters=SearchParameters(compared=1, per_start=1),
    )
    assert found.on_second_stream == second
