"""Telling serialised modules apart by what they hold, without reading them whole.

`.hlo.pb` files hold an HloProto (a module and its buffer assignment) or the bare
HloModuleProto; compressed, renamed or without an ending they look alike. Field
numbers and lengths of the outermost level are enough to tell, and cost next to
nothing for modules of hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Of HloModuleProto (and the first of HloProto); see `schema`.
_NAME = _WRAPPED_MODULE = 1
_COMPUTATIONS, _SCHEDULE = 3, 7


def module_in(data: bytes) -> bytes | None:
    """The HloModuleProto in these bytes; None if they are something else.

    Example:
        >>> from lagom_jax.compile.schema import message_class
        >>> module = message_class("HloModuleProto")(name="m")
        >>> computation = module.computations.add(name="entry")
        >>> bare = module.SerializeToString()
        >>> wrapped = message_class("HloProto")(hlo_module=module).SerializeToString()
        >>> module_in(bare) == bare, module_in(wrapped) == bare, module_in(b"text")
        (True, True, None)
    """
    if _is_module(data):
        return data
    fields = _fields(data)
    inner = [part for number, part in fields or () if number == _WRAPPED_MODULE]
    return inner[0] if len(inner) == 1 and _is_module(inner[0]) else None


def is_scheduled(module: bytes) -> bool:
    """True if a serialised HloModuleProto contains a schedule.

    Example:
        >>> from lagom_jax.compile.schema import message_class
        >>> module = message_class("HloModuleProto")(name="m")
        >>> is_scheduled(module.SerializeToString())
        False
        >>> module.schedule.sequences.add(key=1).value.instruction_ids.append(2)
        >>> is_scheduled(module.SerializeToString())
        True
    """
    return any(n == _SCHEDULE and part for n, part in _fields(module) or ())


def _is_module(data: bytes) -> bool:
    fields = _fields(data)
    if fields is None or not any(number == _COMPUTATIONS for number, _ in fields):
        return False
    return _has_name(data) and all(
        _has_name(part) for number, part in fields if number == _COMPUTATIONS
    )


def _has_name(message: bytes) -> bool:
    """True if a message has a name, as a module and a computation do."""
    # Mostly it comes first; fields may come in any order.
    try:
        name = next((part for number, part in _walk(message) if number == _NAME), None)
    except (IndexError, ValueError):
        return False
    # In an HloProto that field is a message and holds control characters.
    return name is not None and name.isascii() and name.decode().isprintable()


def _fields(data: bytes) -> list[tuple[int, bytes]] | None:
    """The fields that have a length, or None if this is no protobuf message."""
    try:
        return list(_walk(data))
    except (IndexError, ValueError):
        return None


def _walk(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire_type == _VARINT:
            _, position = _varint(data, position)
        elif wire_type == _LENGTH:
            size, start = _varint(data, position)
            position = start + size
            if position > len(data):
                raise ValueError("a field longer than the message")
            yield number, data[start:position]
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
    if position > len(data):
        raise ValueError("a field longer than the message")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
