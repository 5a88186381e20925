"""Contention in a replay follows its closed forms."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.contention import Rates
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.program.program import Launch, Loop, Run, Stream

from .programs import ByName, collective, launch, program, run, wait
from .test_replay import BLOCKS, PRICES


@dataclasses.dataclass(frozen=True)
class Slowing:
    """Collectives slow kernels, and kernels collectives, each by a factor of its own."""

    kernel: dict
    flying: float = 1.0

    def rates(self, running, flying):
        slowed = 1.0
        for task in flying:
            slowed *= self.kernel.get(task.name, 1.0)
        each = 1.0 if running is None else self.flying
        return Rates(slowed, (each,) * len(flying))


def test_a_kernel_beside_a_collective_all_along():
    """Half as fast for as long as it takes."""
    step = program(launch("c", 1), run("k"), wait(1))
    timeline = replay(step, ByName({"c": 100.0, "k": 4.0}), Slowing({"c": 0.5}))
    (figures,) = timeline.kernels().values()
    assert figures.seconds == 8.0
    assert figures.contention_seconds == 4.0
    assert timeline.totals.contention_seconds == 4.0
    assert timeline.step_seconds == 100.0


def test_a_kernel_beside_a_collective_for_a_while():
    """Three seconds at half speed leave 2.5 of 4 seconds' work at full speed."""
    step = program(launch("c", 1), run("k"), wait(1))
    timeline = replay(step, ByName({"c": 3.0, "k": 4.0}), Slowing({"c": 0.5}))
    assert timeline.step_seconds == 3.0 + 2.5
    assert timeline.totals.exposed_seconds == 0.0
    assert timeline.totals.contention_seconds == 1.5


def test_a_collective_slowed_by_the_kernel_beside_it():
    """At half speed beside the kernel, at full speed once compute stands still."""
    step = program(launch("c", 1), run("k"), wait(1))
    timeline = replay(step, ByName({"c": 5.0, "k": 4.0}), Slowing({}, flying=0.5))
    (figures,) = timeline.collectives().values()
    assert figures.seconds == 4.0 + 3.0
    assert figures.alone_seconds == pytest.approx(5.0)
    assert figures.exposed_seconds == 3.0
    assert timeline.step_seconds == 7.0


def test_both_slow_each_other():
    """Kernel at 1/2, collective at 1/4: the kernel is done first."""
    step = program(launch("c", 1), run("k"), wait(1))
    prices = ByName({"c": 2.0, "k": 2.0})
    timeline = replay(step, prices, Slowing({"c": 0.5}, flying=0.25))
    # After 4 s the kernel is done and half of the collective; it ends alone.
    assert timeline.step_seconds == 4.0 + 1.0


def test_two_collectives_on_two_streams_slow_a_kernel_together():
    step = program(
        launch("c", 1), launch("d", 2, Stream.SEND), run("k"), wait(1), wait(2)
    )
    prices = ByName({"c": 4.0, "d": 2.0, "k": 2.0})
    timeline = replay(step, prices, Slowing({"c": 0.5, "d": 0.5}))
    # 2 s at 1/4, then 2 s at 1/2, then half a second of work alone.
    assert timeline.step_seconds == 2.0 + 2.0 + 0.5


def test_contention_in_a_loop_is_multiplied_exactly():
    body = (launch("c", 1), run("k"), wait(1))
    step = program(Loop("l", body, 1000, True))
    timeline = replay(step, ByName({"c": 3.0, "k": 4.0}), Slowing({"c": 0.5}))
    assert timeline.step_seconds == pytest.approx(5500.0, rel=1e-12)
    assert timeline.totals.contention_seconds == pytest.approx(1500.0, rel=1e-12)


def test_a_synchronous_collective_is_slowed_by_one_that_flies():
    """Half a speed each for 4 s, then what is left of the first, alone."""
    step = program(launch("c", 1), Run(collective("d", ranks=(0, 2))), wait(1))
    prices = ByName({"c": 5.0, "d": 2.0})
    timeline = replay(step, prices, Slowing({"c": 0.5}, flying=0.5))
    assert {t.name: f.seconds for t, f in timeline.tasks.items()} == {"c": 7, "d": 4}
    assert timeline.totals.exposed_seconds == timeline.step_seconds == 7.0
    assert timeline.totals.contention_seconds == 0.0


def test_nccl_runs_the_collectives_of_one_communicator_in_turn():
    """The synchronous one waits for both, and nothing is ever at its side."""
    step = program(
        *(launch("c", 1), launch("e", 2), run("k"), Run(collective("d")), wait(1, 2)),
    )
    prices = ByName({"c": 3.0, "d": 2.0, "e": 1.0, "k": 1.0})
    timeline = replay(step, prices, Slowing({"c": 0.5}, flying=0.5))
    # Of c's 3 s half a second is done beside the kernel, which takes 2.
    found = {task.name: figures.seconds for task, figures in timeline.tasks.items()}
    assert found == {"c": 2.0 + 2.0, "d": 2.0, "e": 1.0, "k": 2.0}
    assert timeline.step_seconds == 2.0 + 2.0 + 1.0 + 2.0
    assert timeline.totals.exposed_seconds == 5.0


def test_a_kernel_of_xlas_own_waits_for_no_communicator():
    own = collective("d", kind="all-reduce", one_shot_kernel=True)
    step = program(launch("c", 1), Run(own), wait(1))
    assert replay(step, ByName({"c": 5.0, "d": 2.0})).step_seconds == 5.0


SIZES = st.sampled_from([1 << n for n in range(18, 31)])


@given(st.sampled_from(["h100:1x8", "h100:2x8", "l40s:1x8"]), SIZES, SIZES, st.data())
def test_links_carry_no_more_than_they_can(name, first, second, data):
    """Wherever its collectives run, a step takes what their bytes need."""
    cluster = Cluster.parse(name)
    model, ranks = CostModel.of(cluster), tuple(range(cluster.devices))
    one, other = (collective("c", nbytes=n, ranks=ranks) for n in (first, second))
    beside = data.draw(st.sampled_from([Run(other), Launch(other, Stream.ASIDE, 2)]))
    step = program(Launch(one, Stream.COLLECTIVE, 1), beside, wait(1, 2))
    loads = [model.collective_load(task) for task in (one, other)]
    assume(loads[0].link == loads[1].link)
    busy = sum(
        model.collective(task).seconds * load.link_share
        for task, load in zip((one, other), loads, strict=True)
    )
    timeline = replay(step, model, model.contention())
    assert timeline.step_seconds >= busy * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-to-all"])
@pytest.mark.parametrize(
    "name", ["h100:1x8", "h100:4x8", "b200:1x8", "l40s:2x8", "a40-pcie:2x8"]
)
def test_two_large_ones_at_once_are_by_no_model_a_way_to_have_more_of_a_link(
    name, kind
):
    """Who finds a link slow finds it slow for both."""
    cluster = Cluster.parse(name)
    ranks = tuple(range(cluster.devices))
    # In another order, and so with a communicator of their own.
    one, other = (
        collective(each, nbytes=1 << 29, kind=kind, ranks=listed)
        for each, listed in (("c", ranks), ("d", ranks[::-1]))
    )
    step = program(Launch(one, Stream.COLLECTIVE, 1), Run(other), wait(1))
    for model in Ensemble.of(cluster).members:
        alone = model.collective(one).seconds
        both = replay(step, model, model.contention()).step_seconds
        assert 1.3 * alone < both <= 2 * alone * (1 + 1e-9)


FACTORS = st.fixed_dictionaries(
    {name: st.sampled_from([0.25, 0.5, 0.75, 1.0]) for name in "def"}
)


@given(BLOCKS, PRICES, FACTORS, st.sampled_from([0.5, 1.0]))
def test_work_is_conserved(block, prices, factors, flying):
    """However it is slowed, every task does the work it has."""
    timeline = replay(program(*block), ByName(prices), Slowing(factors, flying))
    for task, figures in timeline.tasks.items():
        work = figures.executions * prices[task.name]
        assert figures.alone_seconds == pytest.approx(work, rel=1e-9)
        assert figures.seconds >= work * (1 - 1e-9)
    totals = timeline.totals
    parts = totals.compute_seconds + totals.exposed_seconds + totals.waiting_seconds
    assert timeline.step_seconds == pytest.approx(parts, rel=1e-9)


@given(BLOCKS, PRICES, FACTORS, st.sampled_from([0.5, 1.0]))
def test_contention_never_makes_a_step_shorter(block, prices, factors, flying):
    free = replay(program(*block), ByName(prices)).step_seconds
    slowed = replay(program(*block), ByName(prices), Slowing(factors, flying))
    assert slowed.step_seconds >= free * (1 - 1e-9)
