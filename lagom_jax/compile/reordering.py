"""Another order for a module that was scheduled before, without compiling it again.

Nearly all of a compile is over when XLA's scheduler has ended, and an order of ours
changes nothing of that. So XLA is given a program that does nothing, with the step's
parameters and results, and a pass after its scheduler puts the step's module in its
place, in the new order. What follows, buffers and kernels, is done for the step. The
result is that of a compile of the step with the order, but for the numbers of
instructions and the names of those that XLA adds.

The table of the frames that instructions come from belongs to the program that XLA was
given, so meanwhile they travel as numbers, in the fields for a file and its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lagom_jax.compile.schema import message_class

_FRAME: Final = "lagom.frame"
# XLA's numbers for types of elements, in StableHLO's words.
_TYPES: Final = (
    {1: "i1", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 21: "i4"}
    | {6: "ui8", 7: "ui16", 8: "ui32", 9: "ui64", 22: "ui4"}
    | {10: "f16", 11: "f32", 12: "f64", 16: "bf16", 19: "f8E5M2", 20: "f8E4M3FN"}
)


class NoPlaceholderError(Exception):
    """A module with parameters or results that no program of ours can have."""


def placeholder(module: bytes, partitions: int) -> tuple[bytes, int, int]:
    """A program that does nothing, with a module's parameters, results and donation.

    Args:
        module: A serialised `HloModuleProto` of one device.
        partitions: The devices that it is for.

    Returns:
        StableHLO, the number of parameters, and the number of results.

    Raises:
        NoPlaceholderError: There is none.
    """
    parsed = message_class("HloModuleProto").FromString(module)
    (entry,) = (c for c in parsed.computations if c.id == parsed.entry_computation_id)
    parameters = sorted(
        (one for one in entry.instructions if one.opcode == "parameter"),
        key=lambda one: one.parameter_number,
    )
    (root,) = (one.shape for one in entry.instructions if one.id == entry.root_id)
    given = [_type(one.shape) for one in parameters]
    made = [_type(shape) for shape in root.tuple_shapes or [root]]
    lines = [
        f"%r{number} = stablehlo.constant dense<{_nothing(kind)}> : {kind}"
        for number, kind in enumerate(made)
    ]
    # How much memory is left to a step depends on what it is donated.
    donated = {
        entry.parameter_number: (*entry.output_shape_index, 0)[0]
        for entry in parsed.input_output_alias.entries
    }
    arguments = ", ".join(
        f"%a{number}: {kind}"
        + (
            f" {{tf.aliasing_output = {donated[number]} : i32}}"
            if number in donated
            else ""
        )
        for number, kind in enumerate(given)
    )
    results = ", ".join(f"%r{number}" for number in range(len(made)))
    body = "\n".join(lines)
    text = f"""
module @"{parsed.name}" attributes {{
  mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = 1 : i32
}} {{
  func.func public @main({arguments}) -> ({", ".join(made)}) {{
    {body}
    return {results} : {", ".join(made)}
  }}
}}
"""
    return text.encode(), len(given), len(made)


def _type(shape: Any) -> str:
    dimensions = [*shape.dimensions]
    usual = [*reversed(range(len(dimensions)))]
    element = _TYPES.get(shape.element_type)
    layout = shape.layout
    if (
        element is None
        or shape.tuple_shapes
        or layout.memory_space
        or [*layout.minor_to_major] != usual
    ):
        raise NoPlaceholderError(str(shape))
    return f"tensor<{''.join(f'{size}x' for size in dimensions)}{element}>"


def _nothing(kind: str) -> str:
    element = kind.removesuffix(">").rpartition("x")[2].removeprefix("tensor<")
    if element == "i1":
        return "false"
    return "0.0" if element.startswith(("f", "bf")) else "0"


def without_frames(module: bytes) -> bytes:
    """A module whose instructions have numbers in the place of frames.

    Args:
        module: A serialised `HloModuleProto`.
    """
    parsed = message_class("HloModuleProto").FromString(module)
    for metadata in _metadata(parsed):
        if metadata.stack_frame_id:
            metadata.source_file = _FRAME
            metadata.source_line = metadata.stack_frame_id
            metadata.stack_frame_id = 0
    parsed.ClearField("stack_frame_index")
    return parsed.SerializeToString()


def with_frames(module: bytes, origin: bytes) -> bytes:
    """The module that was made of one without frames, with its frames and attributes.

    Args:
        module: A serialised `HloModuleProto`.
        origin: The module that had them.
    """
    parsed = message_class("HloModuleProto").FromString(module)
    table = parsed.stack_frame_index
    numbers = {
        number: location.line
        for number, frame in enumerate(table.stack_frames, 1)
        if (location := table.file_locations[frame.file_location_id - 1])
        and table.file_names[location.file_name_id - 1] == _FRAME
    }
    for metadata in _metadata(parsed):
        if metadata.source_file == _FRAME:
            metadata.stack_frame_id = metadata.source_line
            metadata.source_file, metadata.source_line = "", 0
        elif metadata.stack_frame_id:
            metadata.stack_frame_id = numbers.get(metadata.stack_frame_id, 0)
    known = message_class("HloModuleFramesProto").FromString(origin)
    parsed.stack_frame_index.CopyFrom(known.stack_frame_index)
    # XLA's own mark of what it scheduled.
    parsed.frontend_attributes.CopyFrom(known.frontend_attributes)
    return parsed.SerializeToString()


def _metadata(module: Any) -> Iterator[Any]:
    for computation in module.computations:
        for instruction in computation.instructions:
            yield instruction.metadata
