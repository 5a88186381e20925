"""Differences of two schedules of one step, collective by collective.

Names mean nothing from one compile to the next. A collective is known by what it moves,
among whom and how often, and by the matrix products that it overlaps.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from difflib import SequenceMatcher
from typing import TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Wait,
)
from lagom_jax.units import counted, in_bytes

Product: TypeAlias = tuple[int, int, int]
"""The smaller side of the result, the larger one, and the length of the sums.

Libraries compute a product or its transpose, and split a sum into a batch of parts: so
the smaller side comes first, and a batch counts as length.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a schedule."""

    kind: str
    nbytes: int
    """On the larger side."""
    types: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    times: int
    """Executions in a step."""
    sync: bool = False
    products: tuple[Product, ...] = ()
    """The matrix products between its start and its end, sorted."""

    @property
    def alone(self) -> Transfer:
        """The same wherever it starts and ends."""
        return dataclasses.replace(self, sync=False, products=())

    def __str__(self) -> str:
        """For people.

        Example:
            >>> among, products = ((0, 1),), ((64, 128, 32),)
            >>> print(Transfer("all-gather", 1 << 20, (), among, 32, False, products))
            all-gather of 1.05 MB in groups of 2 (32 times) beside 64 x 128 x 32
        """
        size = len(self.groups[0]) if self.groups else 0
        beside = ", ".join(" x ".join(map(str, one)) for one in self.products)
        return (
            "synchronous " * self.sync
            + f"{self.kind} of {in_bytes(self.nbytes)} in groups of {size} "
            + f"({counted(self.times, 'time')})"
            + f" beside {beside}" * bool(beside)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of two schedules, in numbers of collectives."""

    collectives: int
    """In the schedule that has more of them."""
    other_order: int
    """Those that are not the same, or not in the same order."""
    other_products: int
    """Those that are not the same wherever they are, or overlap other products."""
    only_first: tuple[str, ...]
    """Those at a place, or beside products, that the second schedule does not have."""
    only_second: tuple[str, ...]


def compare(first: Program, second: Program) -> Comparison:
    """Compares two programs of one step."""
    a, b = transfers(first), transfers(second)
    most = max(len(a), len(b))
    order = SequenceMatcher(
        None, [x.alone for x in a], [x.alone for x in b], autojunk=False
    )
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    other = [places for what, *places in changes if what != "equal"]
    return Comparison(
        most,
        most - sum(one.size for one in order.get_matching_blocks()),
        most - (Counter(a) & Counter(b)).total(),
        only_first=tuple(str(x) for begin, end, _, _ in other for x in a[begin:end]),
        only_second=tuple(str(x) for _, _, begin, end in other for x in b[begin:end]),
    )


def transfers(program: Program) -> tuple[Transfer, ...]:
    """The collectives of a program in the order of their starts."""
    walk = _Walk()
    walk.block(program.body, 1)
    return tuple(one.transfer() for one in walk.found)


@dataclasses.dataclass(slots=True)
class _UnderWay:
    """A collective as it is met, and the kernels after its start."""

    collective: Collective
    times: int
    sync: bool
    kernels: dict[Kernel, None] = dataclasses.field(default_factory=dict[Kernel, None])

    def transfer(self) -> Transfer:
        task = self.collective
        groups = tuple(tuple(map(int, row)) for row in task.groups.members)
        what = (task.kind, task.bytes, task.element_types, groups, self.times)
        products = (one for kernel in self.kernels for one in kernel.work.matmuls)
        return Transfer(*what, self.sync, tuple(sorted(map(_known_as, products))))


class _Walk:
    """Goes through a program, with what is under way."""

    def __init__(self) -> None:
        self.found: list[_UnderWay] = []
        self._open: dict[int, list[_UnderWay]] = {}

    def block(self, block: Block, times: int, *, again: bool = False) -> None:
        """Meets every node; a second time only for what the first left under way."""
        for node in block:
            if isinstance(node, Run) and isinstance(node.task, Kernel):
                for one in itertools.chain.from_iterable(self._open.values()):
                    one.kernels[node.task] = None
            elif isinstance(node, Run | Launch) and isinstance(node.task, Collective):
                if not again:
                    one = _UnderWay(node.task, times, isinstance(node, Run))
                    self.found.append(one)
                    if isinstance(node, Launch):
                        self._open.setdefault(node.token, []).append(one)
            elif isinstance(node, Wait):
                for token in node.tokens:
                    self._open.pop(token, None)
            elif isinstance(node, Loop):
                self._loop(node, times, again=again)
            elif isinstance(node, Branch):
                for arm in node.arms:
                    self.block(arm, times, again=again)

    def _loop(self, loop: Loop, times: int, *, again: bool) -> None:
        before = set(self._open)
        self.block(loop.body, times * loop.trips, again=again)
        carried = {t: o for t, o in self._open.items() if t not in before}
        if carried and loop.trips > 1:
            # What one iteration starts may end in the next.
            others = {t: o for t, o in self._open.items() if t in before}
            self._open = carried
            self.block(loop.body, times, again=True)
            self._open |= others


def _known_as(product: Matmul) -> Product:
    small, large = sorted((product.m, product.n))
    return small, large, product.batch * product.k
