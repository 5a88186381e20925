"""A computation as something to be put in order: units, and which needs which.

A unit is an instruction, or a synchronous collective from its start to its done, which
XLA wants next to each other. An order of the units is legal when each stands behind all
that it needs:

- its operands and control predecessors;
- what reads memory that it writes over, and the other way about (`buffers`);
- for sends, receives, random states and calls with side effects: the one before it;
- for launches and waits: loops, branches and calls that communicate, and collectives on
  the compute stream, which stay on their side of them; where there are sends or
  receives, all other launches too;
- for the last instruction, where it is the result: everything.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction
from lagom_jax.order.buffers import Buffers, buffers_of
from lagom_jax.program.build import CALLERS, Builder
from lagom_jax.program.program import Block, Branch, Launch, Loop, Node, Run, Wait

Order: TypeAlias = tuple[int, ...]
"""Units by number, in the order in which they stand."""

_SIDE_EFFECTS = frozenset(
    {
        *("send", "recv", "send-done", "recv-done", "infeed", "outfeed"),
        *("rng", "rng-bit-generator", "rng-get-and-update-state", "partition-id"),
    }
)
_ONE_TO_ONE = frozenset({"send", "recv"})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Instructions that stay next to each other."""

    number: int
    instructions: tuple[Instruction, ...]
    nodes: Block
    """Its part of the program; most units do nothing."""
    needs: tuple[int, ...]
    """Units that must stand before it."""
    accesses: frozenset[int]
    """Buffers that it reads or writes."""
    within_bytes: int
    """Bytes that the computations that it calls need at most while it runs."""
    launches: tuple[Launch, ...] = dataclasses.field(init=False)
    """The launches among its nodes."""
    tokens: tuple[int, ...] = dataclasses.field(init=False)
    """Tokens of its waits."""

    def __post_init__(self) -> None:
        """Looks for what a search asks for at every turn."""
        launches = tuple(node for node in self.nodes if isinstance(node, Launch))
        waits = (node for node in self.nodes if isinstance(node, Wait))
        tokens = tuple(token for wait in waits for token in wait.tokens)
        object.__setattr__(self, "launches", launches)
        object.__setattr__(self, "tokens", tokens)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class UnitSequence:
    """The units of a computation."""

    computation: Computation
    units: tuple[Unit, ...]
    buffers: Buffers

    @property
    def given(self) -> Order:
        """The order that the compiler chose."""
        return tuple(range(len(self.units)))

    def instructions(self, order: Order) -> tuple[Instruction, ...]:
        """The computation's instructions in an order."""
        return tuple(i for number in order for i in self.units[number].instructions)

    def is_legal(self, order: Order) -> bool:
        """True if an order has every unit once, behind all that it needs."""
        if sorted(order) != list(self.given):
            return False
        seen: set[int] = set()
        for number in order:
            if not seen.issuperset(self.units[number].needs):
                return False
            seen.add(number)
        return True

    def live_bytes(self, order: Order) -> int:
        """An estimate of the most memory that an order needs at a time.

        A buffer is counted from its first access to its last. What XLA saves by
        writing results where operands were, and may lose by gaps, is left out.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        sizes = self.buffers.sizes
        for place, number in enumerate(order):
            for buffer in self.units[number].accesses:
                if buffer in sizes:
                    first.setdefault(buffer, place)
                    last[buffer] = place
        for buffer in self.buffers.results & sizes.keys():
            last[buffer] = len(order) - 1
        change: defaultdict[int, int] = defaultdict(int)
        for buffer, place in first.items():
            change[place] += sizes[buffer]
            change[last[buffer] + 1] -= sizes[buffer]
        live = most = 0
        for place, number in enumerate(order):
            live += change.get(place, 0)
            most = max(most, live + self.units[number].within_bytes)
        return most


def sequence_of(
    builder: Builder, computation: Computation, inner: Inner
) -> UnitSequence:
    """The units of a computation that has a sequence.

    Args:
        builder: Of the module.
        computation: One of its computations.
        inner: Orders and memory of the computations that it calls.
    """
    assert computation.sequence is not None
    sequence = computation.sequence
    buffers = buffers_of(builder.module, computation)
    nodes = [builder.nodes(computation, i, inner.orders) for i in sequence]
    members = _members(sequence, nodes)
    unit_of = {
        sequence[place].id: number
        for number, places in enumerate(members)
        for place in places
    }
    needs: list[set[int]] = [
        {
            unit_of[needed]
            for place in places
            for needed in (
                *sequence[place].operand_ids,
                *sequence[place].proto.control_predecessor_ids,
            )
            if needed in unit_of
        }
        for places in members
    ]
    for one, other in (
        *_over_memory(buffers, members),
        *_in_file(sequence, members),
        *_around_barriers(nodes, members, sequence),
    ):
        needs[other].add(one)
    last = len(members) - 1
    if any(sequence[place] is computation.root for place in members[last]):
        needs[last].update(range(last))
    units = tuple(
        Unit(
            number=number,
            instructions=tuple(sequence[place] for place in places),
            nodes=tuple(node for place in places for node in nodes[place]),
            needs=tuple(sorted(needs[number] - {number})),
            accesses=frozenset[int]().union(
                *(
                    access.reads | access.writes
                    for access in (buffers.accesses[place] for place in places)
                )
            ),
            within_bytes=max(inner.needed(sequence[place]) for place in places),
        )
        for number, places in enumerate(members)
    )
    return UnitSequence(computation, units, buffers)


def with_inner(builder: Builder, found: UnitSequence, inner: Inner) -> UnitSequence:
    """The same units, when computations that they call have changed."""
    units = tuple(
        dataclasses.replace(
            unit,
            nodes=tuple(
                node
                for instruction in unit.instructions
                for node in builder.nodes(found.computation, instruction, inner.orders)
            ),
            within_bytes=max(map(inner.needed, unit.instructions)),
        )
        if any(i.opcode in CALLERS for i in unit.instructions)
        else unit
        for unit in found.units
    )
    return dataclasses.replace(found, units=units)


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    """Orders and memory of computations that others call."""

    orders: Mapping[int, Sequence[Instruction]]
    live_bytes: Mapping[int, int]

    def needed(self, instruction: Instruction) -> int:
        """The most that a computation needs which an instruction calls."""
        known = self.live_bytes
        return max(
            (known.get(called, 0) for called in instruction.called_ids), default=0
        )


def _members(
    sequence: Sequence[Instruction], nodes: Sequence[Block]
) -> list[tuple[int, ...]]:
    """Places in the sequence that make up one unit each."""
    found: list[tuple[int, ...]] = []
    place = 0
    while place < len(sequence):
        after = place + 1
        if _is_synchronous(nodes[place]) and sequence[place].opcode.endswith("-start"):
            # Whatever stands between the two does nothing, or they are apart already.
            while after < len(sequence) and not nodes[after]:
                after += 1
                if sequence[place].id in sequence[after - 1].operand_ids:
                    break
            if sequence[place].id not in sequence[after - 1].operand_ids:
                after = place + 1
        found.append(tuple(range(place, after)))
        place = after
    return found


def _is_synchronous(nodes: Block) -> bool:
    return any(isinstance(n, Run) and isinstance(n.task, Collective) for n in nodes)


def _over_memory(
    buffers: Buffers, members: Sequence[tuple[int, ...]]
) -> Iterable[tuple[int, int]]:
    """Pairs of units of which one writes what the other reads or writes."""
    written: dict[int, int] = {}
    read: defaultdict[int, list[int]] = defaultdict(list)
    for number, places in enumerate(members):
        for access in (buffers.accesses[place] for place in places):
            for buffer in access.reads - access.writes:
                if buffer in written:
                    yield written[buffer], number
                read[buffer].append(number)
            for buffer in access.writes:
                yield from ((reader, number) for reader in read.pop(buffer, ()))
                if buffer in written:
                    yield written[buffer], number
                written[buffer] = number


def _in_file(
    sequence: Sequence[Instruction], members: Sequence[tuple[int, ...]]
) -> Iterable[tuple[int, int]]:
    """Pairs of units that must not overtake each other, whatever they compute."""
    before: int | None = None
    for number, places in enumerate(members):
        if any(_has_side_effect(sequence[place]) for place in places):
            if before is not None:
                yield before, number
            before = number


def _has_side_effect(instruction: Instruction) -> bool:
    return instruction.opcode in _SIDE_EFFECTS or bool(
        instruction.proto.custom_call_has_side_effect
    )


def _around_barriers(
    nodes: Sequence[Block],
    members: Sequence[tuple[int, ...]],
    sequence: Sequence[Instruction],
) -> Iterable[tuple[int, int]]:
    """Pairs of units that launch or wait, of which one is a barrier to such units."""
    in_pairs = any(i.opcode in _ONE_TO_ONE for i in sequence)
    barrier: int | None = None
    since: list[int] = []
    for number, places in enumerate(members):
        inside = [node for place in places for node in nodes[place]]
        if not any(map(_communicates, inside)):
            continue
        if in_pairs or not all(isinstance(n, Launch | Wait) for n in inside):
            yield from ((other, number) for other in since)
            if barrier is not None:
                yield barrier, number
            barrier, since = number, []
        else:
            if barrier is not None:
                yield barrier, number
            since.append(number)


def _communicates(node: Node) -> bool:
    if isinstance(node, Loop):
        return any(map(_communicates, node.body))
    if isinstance(node, Branch):
        return any(_communicates(inner) for arm in node.arms for inner in arm)
    return not isinstance(node, Run) or isinstance(node.task, Collective)
