"""What holds for every module: orders are legal, never worse, and always the same."""

import dataclasses
import random

from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.order.constraints import Constraints
from lagom_jax.order.descent import Descent
from lagom_jax.order.eager import eager
from lagom_jax.order.find import find_order
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.neighbours import Neighbours, async_pairs
from lagom_jax.order.parameters import SearchParameters
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.splices import Splice, shifted, shifts
from lagom_jax.program.build import Builder, build_program
from lagom_jax.settings.controls import COARSE, named

from ..depth import slow_examples
from .modules import H100, MODEL, descent_parts, program_in, steps
from .modules import module as made_of

FEW = slow_examples(8, 100)
MANY = slow_examples(25, 400)


def sequence(module):
    builder = Builder(module)
    return sequence_of(builder, module.entry, Inner({}, {}))


def stands_behind_its_operands(module, permutation):
    """From the module alone, without what the room says about needs."""
    old = module.entry.sequence
    seen = set()
    for place in permutation:
        assert seen.issuperset(old[place].operand_ids)
        seen.add(old[place].id)


@FEW
@given(steps(), st.data())
def test_moves_keep_an_order_legal(lines, data):
    module = made_of(*lines)
    found = sequence(module)
    order = found.given
    assert found.is_legal(order)
    places = st.integers(0, len(order) - 1)
    for _ in range(8):
        place, target = data.draw(places), data.draw(places)
        order = shifted(found.units, order, place, target).applied(order)
        assert found.is_legal(order)
        stands_behind_its_operands(module, order)
    swapped = list(found.given)
    swapped[0], swapped[-1] = swapped[-1], swapped[0]
    assert not found.is_legal(tuple(swapped))
    assert not found.is_legal(found.given[1:])


@FEW
@given(steps(), st.lists(st.floats(0.0, 1e-3), min_size=1, max_size=9))
def test_busy_streams_are_a_legal_order_that_keeps_kernels_in_place(lines, seconds):
    module = made_of(*lines)
    found = sequence(module)
    alone = [seconds[unit.number % len(seconds)] for unit in found.units]
    order = eager(found.units, alone, lambda task: seconds[task.bytes % len(seconds)])
    assert found.is_legal(order)
    stands_behind_its_operands(module, order)
    launches = {unit.number for unit in found.units if unit.launches or unit.tokens}
    kernels = [n for n in order if found.units[n].nodes and n not in launches]
    assert kernels == sorted(kernels)


@MANY
@given(steps(), st.data())
def test_an_incremental_replay_is_a_replay_of_the_whole(lines, data):
    """To the last bit, after any orders and settings before."""
    stage, found, terms = descent_parts(Builder(made_of(*lines)), "tuner")
    order = found.given
    part = IncrementalReplay(found, terms, order)
    assert abs(part.seconds - stage.score(stage.untouched).step_seconds) < 1e-12
    places = st.integers(0, len(order) - 1)
    groups = stage.space.groups
    for _ in range(6):
        splices, changed, here = [], frozenset(), {u: n for n, u in enumerate(order)}
        if data.draw(st.booleans()):
            splice = shifted(found.units, order, data.draw(places), data.draw(places))
            splices, order = [splice], splice.applied(order)
        if groups and (not splices or data.draw(st.booleans())):
            group = data.draw(st.integers(0, len(groups) - 1))
            candidates = st.integers(0, len(groups[group].candidates) - 1)
            terms.choose(group, data.draw(candidates))
            launchers = [
                unit.number
                for unit in found.units
                if any(one.task in groups[group].sites for one in unit.launches)
            ]
            assert launchers
            changed = frozenset(terms.number(site) for site in groups[group].sites)
            splices += [
                Splice(here[unit], (unit,))
                for unit in launchers
                if not any(s.first <= here[unit] < s.end for s in splices)
            ]
            splices.sort(key=lambda splice: splice.first)
        if not splices:
            continue
        fresh = terms.under(terms.choice)
        whole = IncrementalReplay(found, fresh, order).seconds
        assert part.seconds_with(splices, changed=changed) == whole
        limit = whole * (1 - 1e-9)
        assert part.seconds_with(splices, limit, changed) == float("inf")
        limit = whole * (1 + 1e-9) + 1e-13
        assert part.seconds_with(splices, limit, changed) == whole
        assert part.take(splices, changed) == whole
        assert tuple(part.order) == order


def with_inner_memory(found, sizes):
    """Units that need memory of their own while they run, as loops do."""
    units = tuple(
        dataclasses.replace(unit, within_bytes=sizes[unit.number % len(sizes)])
        for unit in found.units
    )
    return dataclasses.replace(found, units=units)


SIZES = st.lists(st.sampled_from([0, 1 << 24, 1 << 26]), min_size=1, max_size=9)


@MANY
@given(steps(), SIZES, st.sampled_from([1, 2]), st.data())
def test_what_a_splice_may_do_is_what_the_whole_order_may(lines, sizes, streams, data):
    """Memory, streams, and what XLA would make synchronous, in the stretch only."""
    module = made_of(*lines)
    starts = [i.id for i in module.entry.sequence if i.opcode.endswith("-start")]
    second = frozenset(starts[::2]) if streams > 1 else frozenset()
    plain = sequence_of(Builder(module, second), module.entry, Inner({}, {}))
    found = with_inner_memory(plain, sizes)
    ends = [unit.number for unit in found.units if unit.launches or unit.tokens]
    places = st.integers(0, len(found.units) - 1)

    def drawn(order):
        place = data.draw(places)
        if ends and data.draw(st.booleans()):
            place = order.index(data.draw(st.sampled_from(ends)))
        return shifted(found.units, order, place, data.draw(places))

    order = found.given
    most = found.live_bytes(order) + data.draw(st.sampled_from([0, 0, 1 << 25]))
    for _ in range(data.draw(st.sampled_from([0, 0, 2]))):
        # Whatever that order may be: a search may begin with one that is not allowed.
        order = drawn(order).applied(order)
    constraints = Constraints(found, order, most)
    for _ in range(16):
        splice = drawn(order)
        other = splice.applied(order)
        allowed = constraints.allow_with(splice)
        assert allowed == Constraints(found, found.given, most).allow(other)
        if allowed:
            constraints.take_with(splice)
            order = other


@FEW
@given(steps(), st.data())
def test_neighbours_are_legal_and_the_same_in_one_splice(lines, data):
    stage, found, terms = descent_parts(Builder(made_of(*lines)))
    near = SearchParameters(stride=1.0, near=6)
    groups = frozenset(range(len(stage.space.groups)))
    order = found.given
    for _ in range(3):
        neighbours = Neighbours(found.units, order, near)
        moves = [*neighbours.shifted(data.draw(st.sampled_from(order)))]
        for pair in async_pairs(found, terms, groups):
            moves += neighbours.stretched(pair)
        for splices in moves:
            ends = [0, *(splice.end for splice in splices)]
            assert all(a <= b.first for a, b in zip(ends, splices, strict=False))
            other = order
            for splice in splices:
                other = splice.applied(other)
            assert found.is_legal(other)
            assert neighbours.merged(splices).applied(order) == other
            if data.draw(st.integers(0, 9)) == 0:
                order = other
                break


@FEW
@given(steps(), st.data())
def test_one_target_after_another_is_each_for_itself(lines, data):
    found = sequence(made_of(*lines))
    order = found.given
    place = data.draw(st.integers(0, len(order) - 1))
    for targets in (range(place - 1, -1, -1), range(place + 1, len(order))):
        at_once = [*shifts(found.units, order, place, targets)]
        alone = [shifted(found.units, order, place, target) for target in targets]
        assert at_once == alone


@FEW
@given(steps(), st.sampled_from(["tuner", "sequence"]))
def test_never_worse_and_the_same_each_time(lines, controls):
    module = made_of(*lines)

    def found():
        return find_order(
            module, H100, MODEL, controls=named(controls), grid=COARSE, evaluations=300
        )

    ordering = found()
    assert ordering.after_seconds <= ordering.before_seconds
    assert ordering.evaluations <= 700
    for number, permutation in ordering.sequences.items():
        assert number == 1  # 0 is the sum of a reduction
        assert sorted(permutation) == list(range(len(permutation)))
        stands_behind_its_operands(module, permutation)
    again = found()
    assert again.sequences == ordering.sequences
    assert again.after_seconds == ordering.after_seconds
    tasks = {task for task, _, _ in program_in(module, ordering).tasks()}
    assert len(tasks) == len({task for task, _, _ in build_program(module).tasks()})


@FEW
@given(steps(), st.sampled_from([100, 1000]))
def test_finer_controls_are_never_worse_than_coarser_ones(lines, evaluations):
    module = made_of(*lines)
    coarse, fine = (
        find_order(
            module,
            H100,
            MODEL,
            controls=named(controls),
            grid=COARSE,
            evaluations=evaluations,
        )
        for controls in ("tuner", "sequence")
    )
    assert fine.after_seconds <= coarse.after_seconds * (1 + 1e-9)
    # What is under way when the last evaluation is reached is finished.
    assert fine.evaluations <= 1.25 * coarse.evaluations + 400


@FEW
@given(steps(), st.integers(0, 1 << 26))
def test_the_memory_limit_is_kept(lines, spare):
    module = made_of(*lines)
    ordering = find_order(
        module,
        H100,
        MODEL,
        controls=named("sequence"),
        grid=COARSE,
        evaluations=300,
        spare_bytes=spare,
    )
    found = sequence(module)
    assert ordering.live_bytes_change <= spare
    if ordering.sequences:
        before, after = found.live_bytes(found.given), ordering.sequences[1]
        assert found.live_bytes(after) - before == ordering.live_bytes_change


@MANY
@given(steps(), SIZES, st.integers(0, 9), st.sampled_from(["tuner", "sequence"]))
def test_perturbations_never_lose_what_was_found(lines, sizes, seed, controls):
    stage, found, terms = descent_parts(Builder(made_of(*lines)), controls)
    found = with_inner_memory(found, sizes)
    options = {
        number: range(0, len(group.candidates), 3)
        for number, group in enumerate(stage.space.groups)
    }
    most = found.live_bytes(found.given)
    descent = Descent(found, terms, options, found.given, most_bytes=most)
    first = descent.run(400)
    second = descent.run(400, random.Random(seed))
    assert second.seconds <= first.seconds
    assert found.is_legal(second.order)
    assert Constraints(found, found.given, most).allow(second.order)
    assert terms.choice == [candidate for _, candidate in second.settings]
    launched = {launch.task for unit in found.units for launch in unit.launches}
    assert launched == {site for group in stage.space.groups for site in group.sites}
    # What was kept takes as long as it says, to the last bit, changed settings included.
    fresh = IncrementalReplay(found, terms.under(terms.choice), second.order)
    assert second.seconds == fresh.seconds
    # And the search stands there: what it goes on from is what it says.
    assert descent.excess_seconds == fresh.seconds - sum(fresh.alone)


@FEW
@given(steps(), st.sampled_from(["tuner", "sequence"]))
def test_nothing_near_is_better_where_a_search_ends(lines, controls):
    """Each end of each transfer elsewhere, each group with each of its candidates."""
    stage, found, terms = descent_parts(Builder(made_of(*lines)), controls)
    options = {
        number: range(0, len(group.candidates), 3)
        for number, group in enumerate(stage.space.groups)
    }
    descent = Descent(found, terms, options, found.given)
    best = descent.run(100_000)
    assert descent.evaluations < 100_000
    choice = list(stage.untouched)
    for group, candidate in best.settings:
        choice[group] = candidate
    constraints = Constraints(found, found.given, None)
    neighbours = Neighbours(found.units, best.order, SearchParameters())
    few = SearchParameters().together
    for pair in async_pairs(found, terms, frozenset(options)):
        shifts_of_ends = [
            (*neighbours.shifted(pair.start),),
            *((*neighbours.shifted(wait),) for wait in pair.waits),
        ]
        for moves in shifts_of_ends:
            candidates, launches = [None], 0
            if pair.group is not None:
                launches = sum(
                    launch.task in stage.space.groups[pair.group].sites
                    for unit in found.units
                    for launch in unit.launches
                )
                candidates += options[pair.group]
            for candidate in candidates:
                other = list(choice)
                if candidate is not None:
                    other[pair.group] = candidate
                of_other = terms.under(other)
                # A setting of many changes by itself, not along with one of them.
                alone = candidate is not None and launches > few
                for splices in ((),) if alone else ((), *moves):
                    order = best.order
                    for splice in splices:
                        order = splice.applied(order)
                    if constraints.allow(order):
                        seconds = IncrementalReplay(found, of_other, order).seconds
                        assert seconds >= best.seconds * (1 - 1.01e-6)
