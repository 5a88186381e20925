"""Another setting of a transfer matters for as long as the transfer is under way."""

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.order.descent import Descent
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.splices import Splice
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import COARSE, named
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from .modules import gather, gathered, matmul, module, reduced, reduction

H100 = Cluster.parse("h100:1x8")
MODEL = CostModel.of(H100)


def parts():
    """An all-gather, and behind it on the same stream an all-reduce."""
    made = module(
        gather("gather", "q0"),
        reduction("reduce", "p0"),
        matmul("one", "p0", "p1"),
        matmul("two", "one", "p1"),
        gathered("gather.done", "gather"),
        matmul("three", "two", "gather.done"),
        reduced("reduce.done", "reduce"),
        matmul("four", "three", "reduce.done"),
        "ROOT end = () tuple()",
    )
    builder = Builder(made)
    program = builder.program()
    stage = Stage(program, space_of(program, H100, named("tuner"), COARSE), MODEL)
    sequence = sequence_of(builder, made.entry, Inner({}, {}))
    return stage, sequence, Terms(stage, stage.untouched)


def of_kind(stage, sequence, terms, kind):
    """The group of a kind, the place of its launch, and the number of its task."""
    (number,) = (
        number
        for number, group in enumerate(stage.space.groups)
        if group.sites[0].kind == kind
    )
    (site,) = stage.space.groups[number].sites
    (unit,) = (
        unit.number
        for unit in sequence.units
        if any(launch.task is site for launch in unit.launches)
    )
    return number, sequence.given.index(unit), terms.number(site)


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
@pytest.mark.parametrize("take", [False, True])
def test_a_replay_goes_on_while_what_changed_is_under_way_or_queued(kind, take):
    """Where one is queued, streams look the same, whatever its setting."""
    stage, sequence, terms = parts()
    replay = IncrementalReplay(sequence, terms, sequence.given)
    group, place, task = of_kind(stage, sequence, terms, kind)
    splice = Splice(place, (sequence.given[place],))
    differ = 0
    for candidate in range(1, len(stage.space.groups[group].candidates), 5):
        before = replay.seconds
        terms.choose(group, candidate)
        fresh = terms.under(terms.choice)
        whole = IncrementalReplay(sequence, fresh, sequence.given).seconds
        if take:
            assert replay.take([splice], frozenset([task])) == whole
        else:
            found = replay.seconds_with([splice], changed=frozenset([task]))
            assert found == whole
        differ += whole != before
    assert differ >= 3


@pytest.mark.parametrize("take", [False, True])
def test_a_setting_that_takes_as_long_alone_may_take_more_of_the_gpu(take):
    """Work that is left says nothing of the load: the replay must go on."""
    stage, sequence, terms = parts()
    replay = IncrementalReplay(sequence, terms, sequence.given)
    group, place, task = of_kind(stage, sequence, terms, "all-gather")
    alone, load = terms.seconds[task], terms.loads[task]
    splice = Splice(place, (sequence.given[place],))
    differ = 0
    for candidate in range(1, len(stage.space.groups[group].candidates), 5):
        fresh = terms.under(stage.untouched)
        for each in (terms, fresh):
            other = each.under(stage.untouched)
            other.choose(group, candidate)
            number = each.number(stage.space.groups[group].sites[0])
            each.choose(group, candidate)
            each.seconds[number] = alone
        differ += terms.loads[task] != load
        whole = IncrementalReplay(sequence, fresh, sequence.given).seconds
        if take:
            assert replay.take([splice], frozenset([task])) == whole
        else:
            found = replay.seconds_with([splice], changed=frozenset([task]))
            assert found == whole
    assert differ >= 3


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_a_search_that_returns_takes_settings_back(kind):
    """Also where no unit has moved, so that there is no stretch to replay."""
    stage, sequence, terms = parts()
    group, _, _ = of_kind(stage, sequence, terms, kind)
    options = {group: range(len(stage.space.groups[group].candidates))}
    descent = Descent(sequence, terms, options, sequence.given)
    before = descent.excess_seconds
    for candidate in options[group][1::5]:
        terms.choose(group, candidate)
        descent._take((), [group])
        changed = descent.excess_seconds
        descent._return()
        assert descent.excess_seconds == before
        assert terms.choice[group] == 0
    assert changed != before
