"""Frames between a region and the meeting: a header and bytes."""

from __future__ import annotations

import dataclasses
import enum
import socket
import struct
from typing import Final

_HEADER: Final = struct.Struct("!BqqqqqQ")
_MOST: Final = 1 << 40


class Kind(enum.IntEnum):
    """Purpose of a frame."""

    JOIN = 1
    """A region takes part from an exchange on."""
    GIVE = 2
    """A region's message for an exchange."""
    RESULT = 3
    """The messages of an exchange that is closed."""
    ASK = 4
    """A region wants the state of another."""
    STATE = 5
    """A state, for the region that asked."""
    REFUSED = 6
    """A region is not laid out as the others are; the data says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One message of the protocol.

    Attributes:
        kind: Its purpose.
        number: Of an exchange.
        region: Whose it is.
        part: A part of a region's message, or a process of a region.
        parts: How many of these the region has.
        step: After which a state was taken.
        data: What it carries.

    Example:
        >>> Frame(Kind.ASK, number=0, region=2).data
        b''
    """

    kind: Kind
    number: int
    region: int
    part: int = 0
    parts: int = 1
    step: int = 0
    data: bytes = b""

    def to_bytes(self) -> bytes:
        """The frame as it travels."""
        numbers = (self.number, self.region, self.part, self.parts, self.step)
        return _HEADER.pack(self.kind, *numbers, len(self.data)) + self.data


def read_frame(connection: socket.socket) -> Frame:
    """The next frame.

    Raises:
        ConnectionError: The other side is gone, or does not speak this protocol.
    """
    head = _HEADER.unpack(_read(connection, _HEADER.size))
    kind, *numbers, length = head
    if kind not in list(Kind) or length > _MOST:
        raise ConnectionError("the other side speaks another protocol")
    return Frame(Kind(kind), *numbers, data=_read(connection, length))


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:], min(size - got, 1 << 20))
        if not count:
            raise ConnectionError("the connection was closed")
        got += count
    return bytes(data)


def pack(messages: dict[int, bytes]) -> bytes:
    """Messages by region as one piece of data.

    Example:
        >>> unpack(pack({2: b"two", 0: b""}))
        {0: b'', 2: b'two'}
    """
    found = bytearray()
    for region, data in sorted(messages.items()):
        found += struct.pack("!qQ", region, len(data)) + data
    return bytes(found)


def unpack(data: bytes) -> dict[int, bytes]:
    """The messages that `pack` wrote."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        region, length = struct.unpack_from("!qQ", data, at)
        at += struct.calcsize("!qQ")
        found[region] = data[at : at + length]
        at += length
    return found
