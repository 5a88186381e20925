"""Differences of two schedules of one step, collective by collective.

Names mean nothing from one compile to the next. A collective is known by what it moves,
among whom and how often; a kernel by its products, or by its kind and its bytes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.schedule.program import (
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

Part: TypeAlias = tuple[str, int]
"""A kernel without products: its kind, and its bytes."""


class What(enum.Enum):
    """Kinds of difference, the gravest first."""

    MISSING = "only the first has it"
    EXTRA = "only the second has it"
    BYTES = "other bytes"
    GROUPS = "among others"
    TIMES = "more or less often"
    ORDER = "before or after others"
    SYNC = "synchronous in one of them"
    PRODUCTS = "with other matrix products"
    OTHERS = "with the same matrix products, but other kernels"


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a schedule, with the kernels between its start and its end."""

    kind: str
    nbytes: int
    """On the larger side."""
    types: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    times: int
    """Executions in a step."""
    sync: bool
    products: tuple[Product, ...] = ()
    """Sorted."""
    others: tuple[Part, ...] = ()
    """Sorted."""

    def words(self) -> str:
        """The collective in words.

        Example:
            >>> Transfer("all-gather", 1 << 20, ("bf16",), ((0, 1),), 32, False).words()
            'all-gather of 1.05 MB in groups of 2 (32 times)'
        """
        size = len(self.groups[0]) if self.groups else 0
        return (
            f"{self.kind} of {in_bytes(self.nbytes)} in groups of {size} "
            f"({counted(self.times, 'time')})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the schedules in one collective."""

    what: What
    first: Transfer | None
    second: Transfer | None

    def words(self, first: str, second: str) -> str:
        """The difference in a sentence without a full stop.

        Args:
            first: Place of the first schedule, such as `on the GPU`.
            second: Place of the second one.

        Example:
            >>> gather = Transfer("all-gather", 1000, ("bf16",), ((0, 1),), 1, False)
            >>> Difference(What.EXTRA, None, gather).words("here", "there")
            'the all-gather of 1.00 kB in groups of 2 (1 time) is there alone'
        """
        one, other = self.first, self.second
        if one is None or other is None:
            only, where = (other, second) if one is None else (one, first)
            assert only is not None
            return f"the {only.words()} is {where} alone"
        ways = {
            What.BYTES: f"moves {in_bytes(other.nbytes)} {second}",
            What.GROUPS: f"is among other devices {second}",
            What.TIMES: f"runs {counted(other.times, 'time')} {second}",
            What.ORDER: f"starts at another place among the others {second}",
            What.SYNC: f"is synchronous {first if one.sync else second} only",
            What.PRODUCTS: _exchanged(one.products, other.products, first, second),
            What.OTHERS: "overlaps the same matrix products, and other kernels, "
            f"{second}",
        }
        return f"the {one.words()} {ways[self.what]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Agreement of two schedules, in numbers of collectives."""

    collectives: int
    """In the schedule that has more of them."""
    in_order: int
    """Those that are the same, in the same order."""
    same_products: int
    """Those that are the same wherever they are, and overlap the same products."""
    same_kernels: int
    """Those of them that overlap all the same kernels."""
    differences: tuple[Difference, ...]

    def share(self, count: int) -> float:
        """A part of all collectives."""
        return count / self.collectives if self.collectives else 1.0


def compare(first: Program, second: Program) -> Comparison:
    """Compares two programs of one step."""
    a, b = transfers(first), transfers(second)
    ordered = _in_order(a, b)
    moved = _moved(a, b, ordered)
    pairs = [(a[i], b[j]) for i, j in (*ordered, *moved)]
    overlaps = [_overlap(x, y) for x, y in pairs]
    return Comparison(
        collectives=max(len(a), len(b)),
        in_order=len(ordered),
        same_products=sum(what in (None, What.OTHERS) for what in overlaps),
        same_kernels=overlaps.count(None),
        differences=differences(a, b),
    )


def differences(
    first: Sequence[Transfer], second: Sequence[Transfer]
) -> tuple[Difference, ...]:
    """All differences of the collectives of two schedules.

    One that moved is an `ORDER`, once; kernels that collectives overlap are compared
    for all that are the same but for their place.
    """
    ordered = _in_order(first, second)
    moved = _moved(first, second, ordered)
    found = [Difference(What.ORDER, first[i], second[j]) for i, j in moved]
    for i, j in (*ordered, *moved):
        what = _overlap(first[i], second[j])
        if what is not None:
            found.append(Difference(what, first[i], second[j]))
    left = [x for i, x in enumerate(first) if i not in {i for i, _ in ordered + moved}]
    right = [
        y for j, y in enumerate(second) if j not in {j for _, j in ordered + moved}
    ]
    return (*found, *_unlike(left, right))


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
        products = [
            _known_as(p) for kernel in self.kernels for p in kernel.work.matmuls
        ]
        return Transfer(
            task.kind,
            task.bytes,
            task.element_types,
            groups,
            self.times,
            self.sync,
            tuple(sorted(products)),
            tuple(
                sorted(
                    (kernel.work.kind, kernel.work.hbm_bytes)
                    for kernel in self.kernels
                    if not kernel.work.matmuls
                )
            ),
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


Pairs: TypeAlias = list[tuple[int, int]]


def _key(one: Transfer) -> tuple[object, ...]:
    return (one.kind, one.nbytes, one.types, one.groups, one.times)


def _in_order(first: Sequence[Transfer], second: Sequence[Transfer]) -> Pairs:
    """The longest sequence of collectives that both have: places in either."""
    a, b = [_key(x) for x in first], [_key(x) for x in second]
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            longest[i][j] = (
                longest[i + 1][j + 1] + 1
                if a[i] == b[j]
                else max(longest[i + 1][j], longest[i][j + 1])
            )
    pairs: Pairs = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _moved(
    first: Sequence[Transfer], second: Sequence[Transfer], ordered: Pairs
) -> Pairs:
    """Collectives that both have, at another place."""
    left = [i for i in range(len(first)) if i not in {i for i, _ in ordered}]
    right = [j for j in range(len(second)) if j not in {j for _, j in ordered}]
    pairs: Pairs = []
    for i in left:
        same = [j for j in right if _key(second[j]) == _key(first[i])]
        if same:
            pairs.append((i, same[0]))
            right.remove(same[0])
    return pairs


# Keys of collectives, if one thing may differ.
_ALIKE: Final[Sequence[tuple[What, Callable[[Transfer], tuple[object, ...]]]]] = (
    (What.TIMES, lambda x: (x.kind, x.nbytes, x.types, x.groups)),
    (What.BYTES, lambda x: (x.kind, x.groups, x.times)),
    (What.GROUPS, lambda x: (x.kind, x.nbytes, x.types, x.times)),
)


def _unlike(left: list[Transfer], right: list[Transfer]) -> Iterable[Difference]:
    """Collectives without an equal on the other side."""
    left, right = list(left), list(right)
    for what, likeness in _ALIKE:
        for one in tuple(left):
            same = [other for other in right if likeness(other) == likeness(one)]
            if same:
                yield Difference(what, one, same[0])
                left.remove(one)
                right.remove(same[0])
    yield from (Difference(What.MISSING, one, None) for one in left)
    yield from (Difference(What.EXTRA, None, one) for one in right)


def _overlap(one: Transfer, other: Transfer) -> What | None:
    if one.sync != other.sync:
        return What.SYNC
    if one.products != other.products:
        return What.PRODUCTS
    return None if one.others == other.others else What.OTHERS


def _exchanged(
    one: tuple[Product, ...], other: tuple[Product, ...], first: str, second: str
) -> str:
    parts = [
        f"{_listed(counts)} {where} alone"
        for counts, where in (
            (Counter(one) - Counter(other), first),
            (Counter(other) - Counter(one), second),
        )
        if counts
    ]
    return f"overlaps the products {', and '.join(parts)}"


def _listed(products: Counter[Product]) -> str:
    return ", ".join(" x ".join(map(str, product)) for product in products.elements())
