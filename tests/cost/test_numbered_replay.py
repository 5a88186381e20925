"""Replays with numbers, against replays of the same program by its tasks."""

from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cost.contention import Rates
from lagom_jax.cost.numbered_block import NumberedBlock
from lagom_jax.cost.numbered_replay import NumberedReplay, SpeedsByLoads, TaskTerms
from lagom_jax.cost.replay import replay
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel, Loop

from .programs import ByName, program
from .test_replay import BLOCKS, NAMES, PRICES


class OneInTheWay:
    """Each task has a load of its own, and all of them slow each other."""

    def __init__(self, loads):
        self._loads = loads

    def rates(self, running, flying):
        own = 0 if running is None else self._loads[running.name]
        beside = [
            self._loads[task.name] if isinstance(task, Collective) else 0
            for task in flying
        ]
        return self.between(own, tuple(beside))

    def between(self, own, flying):
        together = own + sum(flying)
        return Rates(
            1 / (1 + together / 8),
            tuple(1 / (1 + (together + place) / 16) for place in range(len(flying))),
        )


@given(
    BLOCKS,
    BLOCKS,
    PRICES,
    st.integers(0, 40),
    st.fixed_dictionaries({name: st.integers(0, 3) for name in NAMES}),
)
def test_they_say_the_same(before, body, prices, trips, loads):
    """To the last bit, and the collectives in the same order."""
    looped = program(*before, Loop("l", body, trips, True))
    contention = OneInTheWay(loads)
    block = NumberedBlock(looped.body)
    terms = TaskTerms(
        [prices[task.name] for task in block.tasks],
        [loads[t.name] if isinstance(t, Kernel) else 0 for t in block.tasks],
        [0 if isinstance(t, Kernel) else loads[t.name] for t in block.tasks],
    )
    speeds = SpeedsByLoads(lambda flying: lambda own: contention.between(own, flying))
    books = NumberedReplay(block, terms, speeds).books()
    whole = replay(looped, ByName(prices), contention)
    assert books.totals == whole.totals
    numbered = zip(block.tasks, books.seconds, strict=True)
    assert [one for one in numbered if isinstance(one[0], Collective)] == [
        (task, figures.seconds) for task, figures in whole.collectives().items()
    ]
