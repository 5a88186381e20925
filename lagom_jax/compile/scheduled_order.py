"""The scheduler's decision: the order of instructions, and those that may move.

The fingerprint of a schedule is made of its structure alone: of every computation that
has a sequence, the opcodes, the shapes and the positions of operands and control
predecessors, in the order of the schedule, and of what decides who may overtake whom:
which memory is shared, and what is done inside of fusions and calls. Names, numbers,
source locations and options are left out, so it is equal in every process and for every
checkout path.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from lagom_jax.compile.schema import message_class
from lagom_jax.plan.order import ScheduleEdit


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledComputation:
    """A computation that has a sequence; instruction `i` is the `i`-th to run.

    Example:
        >>> ScheduledComputation("main", ("p", "t"), ("parameter", "tuple"),
        ...     (b"", b""), ((), (0,)), ((), ()), (b"", b"")).needs(1)
        (0,)
    """

    name: str
    names: tuple[str, ...]
    opcodes: tuple[str, ...]
    shapes: tuple[bytes, ...] = dataclasses.field(repr=False)
    """Serialised `ShapeProto`s, layouts included."""
    operands: tuple[tuple[int, ...], ...]
    """Of each instruction, where its operands stand."""
    controls: tuple[tuple[int, ...], ...]
    """Of each instruction, what else must have run before it."""
    inside: tuple[bytes, ...]
    """Of each instruction, a digest of what it calls and of the memory it shares."""

    def needs(self, position: int) -> tuple[int, ...]:
        """Everything that must stand before an instruction."""
        return self.operands[position] + self.controls[position]


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledOrder:
    """The sequences of a scheduled module.

    Example:
        >>> ScheduledOrder((), b"").fingerprint[:8]
        'e3b0c442'
    """

    computations: tuple[ScheduledComputation, ...]
    """Those that have a sequence, as they stand in the module."""
    donated: bytes
    """Results that live in the memory of arguments, as serialised pairs; or empty."""

    @property
    def donates(self) -> bool:
        """True if results live in the memory of arguments."""
        return bool(self.donated)

    @classmethod
    def of(cls, module: bytes) -> ScheduledOrder:
        """Reads the sequences of a serialised `HloModuleProto`."""
        parsed = message_class("HloModuleProto").FromString(module)
        sequences = {
            entry.key: entry.value.instruction_ids
            for entry in parsed.schedule.sequences
        }
        called = _Called(parsed.computations, sequences)
        return cls(
            tuple(
                _computation(computation, sequences[computation.id], called)
                for computation in parsed.computations
                if computation.id in sequences
            ),
            parsed.input_output_alias.SerializeToString(deterministic=True),
        )

    @property
    def size(self) -> int:
        """The number of instructions that have a place in a sequence."""
        return sum(len(computation.opcodes) for computation in self.computations)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the structure, in hexadecimal."""
        digest = hashlib.sha256(self.donated)
        for computation in self.computations:
            digest.update(b"%d;" % len(computation.opcodes))
            for opcode, shape, operands, controls, inside in zip(
                computation.opcodes,
                computation.shapes,
                computation.operands,
                computation.controls,
                computation.inside,
                strict=True,
            ):
                words = f"{opcode} {operands} {controls} {len(shape)} {len(inside)} "
                digest.update(words.encode() + shape + inside)
        return digest.hexdigest()

    def objection(self, edit: ScheduleEdit) -> str | None:
        """Reason why a new order is impossible for these instructions, or None.

        Example:
            >>> main = ScheduledComputation("main", ("p", "t"), ("parameter", "tuple"),
            ...     (b"", b""), ((), (0,)), ((), ()), (b"", b""))
            >>> order = ScheduledOrder((main,), b"")
            >>> order.objection(ScheduleEdit(order.fingerprint, {0: (1, 0)}))
            't, a tuple of main, would run before p, its operand'
        """
        if edit.fingerprint != self.fingerprint:
            return (
                f"the order is for the schedule {edit.fingerprint[:12]}, this is "
                f"{self.fingerprint[:12]}"
            )
        for number, permutation in sorted(edit.sequences.items()):
            if number >= len(self.computations):
                return (
                    f"there is no sequence {number}, the schedule has "
                    f"{len(self.computations)}"
                )
            reason = _objection(self.computations[number], permutation)
            if reason is not None:
                return reason
        for number, places in sorted(edit.second_stream.items()):
            for place in places:
                reason = self._objection_to_aside(number, place)
                if reason is not None:
                    return reason
        return None

    def _objection_to_aside(self, number: int, place: int) -> str | None:
        found = self.computations[number] if number < len(self.computations) else None
        if found is None or not 0 <= place < len(found.opcodes):
            return f"there is no place {place} in a sequence {number}"
        opcode = found.opcodes[place]
        if not opcode.endswith("-start"):
            return (
                f"{found.names[place]}, a {opcode} of {found.name}, launches nothing "
                "that has a stream"
            )
        return None


class _Called:
    """Digests of the computations that instructions call.

    They count as far as they decide which instruction may overtake which.
    """

    def __init__(self, computations: Sequence[Any], scheduled: Collection[int]) -> None:
        self._computations = {made.id: made for made in computations}
        self._scheduled = scheduled
        self._known: dict[int, bytes] = {}

    def digest(self, made: Any) -> bytes:
        """Empty for an instruction that calls nothing and shares no memory."""
        shared = made.output_operand_aliasing
        if not shared and not made.called_computation_ids:
            return b""
        digest = hashlib.sha256()
        for alias in shared:
            digest.update(alias.SerializeToString(deterministic=True))
        for called in made.called_computation_ids:
            # What has a sequence is in the fingerprint by itself.
            if called not in self._scheduled:
                digest.update(self._computation(called))
        return digest.digest()

    def _computation(self, number: int) -> bytes:
        known = self._known.get(number)
        if known is None:
            inside = self._computations[number].instructions
            places = {made.id: place for place, made in enumerate(inside)}
            digest = hashlib.sha256()
            for made in inside:
                operands = [places[operand] for operand in made.operand_ids]
                digest.update(f"{made.opcode} {operands} ".encode())
                digest.update(self.digest(made))
            known = self._known[number] = digest.digest()
        return known


def _computation(
    proto: Any, sequence: Sequence[int], called: _Called
) -> ScheduledComputation:
    places = {identity: place for place, identity in enumerate(sequence)}
    instructions = sorted(proto.instructions, key=lambda made: places[made.id])
    return ScheduledComputation(
        name=proto.name,
        names=tuple(made.name for made in instructions),
        opcodes=tuple(made.opcode for made in instructions),
        shapes=tuple(
            made.shape.SerializeToString(deterministic=True) for made in instructions
        ),
        operands=tuple(
            tuple(places[operand] for operand in made.operand_ids)
            for made in instructions
        ),
        controls=tuple(
            tuple(sorted(places[other] for other in made.control_predecessor_ids))
            for made in instructions
        ),
        inside=tuple(map(called.digest, instructions)),
    )


def _objection(
    computation: ScheduledComputation, permutation: Sequence[int]
) -> str | None:
    count = len(computation.opcodes)
    if len(permutation) != count:
        return (
            f"the order has {len(permutation)} instructions for {computation.name}, "
            f"which has {count}"
        )
    new_place = {old: new for new, old in enumerate(permutation)}
    for user in permutation:
        for kind, needed in (
            ("its operand", computation.operands[user]),
            ("which it must wait for", computation.controls[user]),
        ):
            for other in needed:
                if new_place[other] > new_place[user]:
                    return (
                        f"{computation.names[user]}, a {computation.opcodes[user]} of "
                        f"{computation.name}, would run before "
                        f"{computation.names[other]}, {kind}"
                    )
    return None
