"""Metadata of an instruction: backend settings, origin, attributes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lagom_jax.compile.schema import message_class
from lagom_jax.hlo.module import Instruction, Module

# Folders of packages that were installed, of Python's own, and this package, which
# stands between its user and jax. The models of the zoo are looked at like a user's.
_INSTALLED = re.compile(
    r"(?:site|dist)-packages/(?!lagom_models/)"
    r"|/lib/python\d[.\d]*/(?!(?:site|dist)-packages/)|^<frozen|^"
    + re.escape(f"{Path(__file__).parents[1]}/")
)


# More loops in one another than any program has.
_DEEPEST = 16


def backend_config(instruction: Instruction) -> Mapping[str, Any]:
    """The backend's settings of an instruction as the JSON object of HLO text.

    The compiler keeps them as JSON text in some versions and as a binary message in
    others; both give the same keys here. Text that is not a JSON object (some
    custom calls carry opaque strings) gives an empty mapping.
    """
    proto = instruction.proto
    if proto.backend_config:
        try:
            found = json.loads(proto.backend_config)
        except (UnicodeDecodeError, ValueError):
            return {}
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if proto.HasField("backend_config_payload") and proto.backend_config_payload.value:
        return _from_binary(instruction.opcode, proto.backend_config_payload.value)
    return {}


def _from_binary(opcode: str, payload: bytes) -> Mapping[str, Any]:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError

    kind = "WhileLoopBackendConfig" if opcode == "while" else "GpuBackendConfig"
    try:
        message = message_class(kind).FromString(payload)
    except DecodeError:
        return {}
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One part of a backend config; compilers before 2024 wrote the parts bare.

    Example:
        >>> section({"collective_backend_config": {"is_sync": True}},
        ...         "collective_backend_config")
        {'is_sync': True}
        >>> section({"is_sync": True}, "collective_backend_config")
        {'is_sync': True}
    """
    found = config.get(name, config)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def frontend_attributes(instruction: Instruction) -> dict[str, str]:
    """The attributes that the program's author or an earlier pass attached."""
    entries = instruction.proto.frontend_attributes.map
    return {entry.key: entry.value for entry in entries}


def op_name(instruction: Instruction) -> str:
    """The JAX operation that an instruction came from; empty where unknown."""
    return instruction.proto.metadata.op_name


def source_line(module: Module, instruction: Instruction) -> str:
    """`file:line` of the user's own code that an instruction came from, or empty.

    It is the innermost frame of the call that is in no installed package. Inside of a
    loop's body jax writes the frames from there on: further out are those of the loop.
    Without any it is the innermost of all.
    """
    found = source_lines(module, instruction)
    return found[0] if found else ""


def source_lines(module: Module, instruction: Instruction) -> tuple[str, ...]:
    """`source_line`, and those of the user's calls that lead there, nearest first."""
    frames = innermost = source_frames(module, instruction)
    if not innermost:
        return ()
    place: Instruction | None = instruction
    for _ in range(_DEEPEST):
        if own := tuple(f for f in frames if not _INSTALLED.search(f)):
            return own
        place = module.caller(place)
        if place is None:
            break
        frames = source_frames(module, place)
    return (innermost[0],)


def library_line(module: Module, instruction: Instruction) -> str:
    """`file:line` of the library that made an instruction for the user, or empty."""
    frames = source_frames(module, instruction)
    return frames[0] if frames and _INSTALLED.search(frames[0]) else ""


def source_frames(module: Module, instruction: Instruction) -> list[str]:
    """The frames of the call that an instruction came from, the innermost first."""
    metadata = instruction.proto.metadata
    if metadata.source_file:
        return [f"{metadata.source_file}:{metadata.source_line}"]
    index = module.proto.stack_frame_index
    frames: list[str] = []
    frame_id: int = metadata.stack_frame_id
    # Ids in the stack frame tables count from one; zero means none. A frame's parent
    # is another one, so there are no more than there are frames.
    while 0 < frame_id <= len(index.stack_frames) >= len(frames):
        frame = index.stack_frames[frame_id - 1]
        location_id = frame.file_location_id
        if not 0 < location_id <= len(index.file_locations):
            break
        location = index.file_locations[location_id - 1]
        if not 0 < location.file_name_id <= len(index.file_names):
            break
        name = index.file_names[location.file_name_id - 1]
        frames.append(f"{name}:{location.line}")
        frame_id = frame.parent_frame_id
    return frames
