"""From the compiler's serialised module to the types of this room."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator
from typing import Any

from lagom_jax.compile.schema import message_class
from lagom_jax.errors import HloError
from lagom_jax.hlo.elements import element_type
from lagom_jax.hlo.module import Computation, Instruction, Module, Shape

_TUPLE = 13


class _Shapes:
    """Turns ShapeProtos into Shapes, each distinct array shape made once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, ...], Shape] = {}

    def convert(self, proto: Any) -> Shape:
        code: int = proto.element_type
        if code == _TUPLE:
            parts = tuple([self.convert(part) for part in proto.tuple_shapes])
            return Shape("tuple", (), sum(part.byte_size for part in parts), parts)
        dimensions = tuple(proto.dimensions)
        key = (code, *dimensions)
        shape = self._arrays.get(key)
        if shape is None:
            name, bits = element_type(code)
            count = 1
            for dimension in dimensions:
                count *= dimension
            shape = Shape(name, dimensions, (count * bits + 7) // 8)
            self._arrays[key] = shape
        return shape


def read_module(data: bytes) -> Module:
    """Reads a serialised HloModuleProto.

    Args:
        data: The bytes that a live executable, a `.hlo.pb` dump or the text parser
            gives.

    Raises:
        HloError: The bytes are not a module, or contradict themselves.

    Example:
        >>> read_module(b"not a module")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: not a serialised HLO module ...
    """
    from google.protobuf.message import DecodeError

    try:
        proto = message_class("HloModuleProto").FromString(data)
    except DecodeError as error:
        raise HloError(
            f"not a serialised HLO module ({error}); expected an HloModuleProto as "
            "compiled executables and `.hlo.pb` dumps hold it"
        ) from None
    if not proto.computations:
        raise HloError("the HLO module is empty: it has no computations")
    with collection_paused():
        return _module(proto)


@contextlib.contextmanager
def collection_paused() -> Generator[None]:
    """Pauses Python's search for garbage, which takes half the time of a large module.

    For work that leaves little garbage with cycles until it ends: every such search
    walks through whole modules. It is paused for the whole process.

    Example:
        >>> with collection_paused():
        ...     gc.isenabled()
        False
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _module(proto: Any) -> Module:
    shapes = _Shapes()
    scheduled: dict[int, Any] = {
        entry.key: entry.value.instruction_ids for entry in proto.schedule.sequences
    }
    computations: dict[int, Computation] = {}
    for part in proto.computations:
        try:
            computations[part.id] = _computation(part, scheduled.get(part.id), shapes)
        except KeyError as missing:
            raise HloError(
                f"the HLO module contradicts itself: computation '{part.name}' refers "
                f"to instruction {missing.args[0]}, which it does not have; the file "
                "is damaged or cut off"
            ) from None
    entry = computations.get(proto.entry_computation_id)
    if entry is None:
        raise HloError("the HLO module has no entry computation; the file is damaged")
    callers: dict[int, Instruction] = {}
    for computation in computations.values():
        for instruction in computation.instructions.values():
            for called in instruction.called_ids:
                callers.setdefault(called, instruction)
                if called not in computations:
                    raise HloError(
                        f"the HLO module contradicts itself: '{instruction.name}' "
                        f"calls computation {called}, which the module does not have"
                    )
    replicas = max(1, proto.device_assignment.replica_count)
    partitions = max(1, proto.device_assignment.computation_count)
    placement = _placement(proto.device_assignment, replicas, partitions)
    return Module(
        *(proto.name, computations, entry, replicas, partitions, proto, placement),
        callers=callers,
    )


def _placement(assignment: Any, replicas: int, partitions: int) -> tuple[int, ...]:
    rows = [part.replica_device_ids for part in assignment.computation_devices]
    if len(rows) != partitions or any(len(row) != replicas for row in rows):
        return ()
    ids = [row[replica] for replica in range(replicas) for row in rows]
    # Ids may begin anywhere and leap from one process to the next.
    ranks = {device: rank for rank, device in enumerate(sorted(ids))}
    return tuple([ranks[device] for device in ids])


def _computation(proto: Any, order: Any, shapes: _Shapes) -> Computation:
    convert = shapes.convert
    table = {
        i.id: Instruction(
            i.id,
            i.name,
            i.opcode,
            convert(i.shape),
            i.operand_ids,
            i.called_computation_ids,
            i,
        )
        for i in proto.instructions
    }
    for instruction in table.values():
        for operand in instruction.operand_ids:
            if operand not in table:
                raise KeyError(operand)
    sequence = None if order is None else tuple([table[i] for i in order])
    return Computation(proto.id, proto.name, table, table[proto.root_id], sequence)
