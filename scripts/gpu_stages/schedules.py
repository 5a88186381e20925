"""Differences of two schedules of one step, collective by collective.

Names mean nothing from one compile to the next. A collective is known by what it moves,
among whom and how often; a kernel by its products, or by its kind and its bytes.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True, slots=True)
class Overlapped:
    """A collective with the kernels between its start and its end."""

    transfer: Transfer
    sync: bool
    products: tuple[Product, ...] = ()
    """Sorted."""
    others: tuple[tuple[str, int], ...] = ()
    """Kind and bytes of kernels without products, sorted."""

    def __str__(self) -> str:
        """For people.

        Example:
            >>> gather = Transfer("all-gather", 1 << 20, ("bf16",), ((0, 1),), 32)
            >>> print(Overlapped(gather, False, ((64, 128, 32),)))
            all-gather of 1.05 MB in groups of 2 (32 times) beside 64 x 128 x 32
        """
        one = self.transfer
        size = len(one.groups[0]) if one.groups else 0
        kernels = [" x ".join(map(str, product)) for product in self.products]
        if self.others:
            kernels.append(counted(len(self.others), "other kernel"))
        return (
            "synchronous " * self.sync
            + f"{one.kind} of {in_bytes(one.nbytes)} in groups of {size} "
            + f"({counted(one.times, 'time')})"
            + (f" beside {', '.join(kernels)}" if kernels else "")
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
    other_kernels: int
    """Those that are not the same, or overlap any other kernel."""
    only_first: tuple[str, ...]
    """Those at a place, or beside products, that the second schedule does not have."""
    only_second: tuple[str, ...]


def compare(first: Program, second: Program) -> Comparison:
    """Compares two programs of one step."""
    a, b = transfers(first), transfers(second)
    most = max(len(a), len(b))
    order = SequenceMatcher(
        None, [x.transfer for x in a], [x.transfer for x in b], autojunk=False
    )
    left = [(x.transfer, x.sync, x.products) for x in a]
    right = [(x.transfer, x.sync, x.products) for x in b]
    changes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    other = [places for what, *places in changes if what != "equal"]
    alike = (
        sum(one.size for one in order.get_matching_blocks()),
        (Counter(left) & Counter(right)).total(),
        (Counter(a) & Counter(b)).total(),
    )
    return Comparison(
        most,
        *(most - count for count in alike),
        only_first=tuple(str(x) for begin, end, _, _ in other for x in a[begin:end]),
        only_second=tuple(str(x) for _, _, begin, end in other for x in b[begin:end]),
    )


def transfers(program: Program) -> tuple[Overlapped, ...]:
    """The collectives of a program in the order of their starts."""
    walk = _Walk()
    walk.block(program.body, 1)
    return tuple(one.overlapped() for one in walk.found)


@dataclasses.dataclass(slots=True)
class _UnderWay:
    """A collective as it is met, and the kernels after its start."""

    collective: Collective
    times: int
    sync: bool
    kernels: dict[Kernel, None] = dataclasses.field(default_factory=dict[Kernel, None])

    def overlapped(self) -> Overlapped:
        task, works = self.collective, [kernel.work for kernel in self.kernels]
        groups = tuple(tuple(map(int, row)) for row in task.groups.members)
        products = [_known_as(product) for work in works for product in work.matmuls]
        others = [(work.kind, work.hbm_bytes) for work in works if not work.matmuls]
        return Overlapped(
            Transfer(task.kind, task.bytes, task.element_types, groups, self.times),
            self.sync,
            tuple(sorted(products)),
            tuple(sorted(others)),
        )


class _Walk:
    """Goes through a program, with what is under way."""

    def __init__(self) -> None:
        self.found: list[_UnderWay] = []
        self._open: dict[int, list[_UnderWay]] = {}

    def block(self, block: Block, times: int, *, again: bool = False) -> None:
        """Meets every node; a second time only for what the first left under way."""
        for node in block:
            if isinstance(node, Run):
                if isinstance(node.task, Kernel):
                    for under_way in self._open.values():
                        for one in under_way:
                            one.kernels[node.task] = None
                elif not again:
                    self.found.append(_UnderWay(node.task, times, sync=True))
            elif isinstance(node, Launch):
                if isinstance(node.task, Collective) and not again:
                    one = _UnderWay(node.task, times, sync=False)
                    self.found.append(one)
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
