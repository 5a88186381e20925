"""Frames between a region and the meeting: a header and bytes."""

from __future__ import annotations

import dataclasses
import enum
import socket
import struct
from typing import Final

_HEADER: Final = struct.Struct("!BqqQ")
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


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One thing that is said.

    Example:
        >>> Frame(Kind.ASK, number=0, region=2).data
        b''
    """

    kind: Kind
    number: int
    region: int
    data: bytes = b""

    def to_bytes(self) -> bytes:
        """The frame as it travels."""
        head = _HEADER.pack(self.kind, self.number, self.region, len(self.data))
        return head + self.data


def read_frame(connection: socket.socket) -> Frame:
    """The next frame.

    Raises:
        ConnectionError: The other side is gone, or does not speak this protocol.
    """
    head = _HEADER.unpack(_read(connection, _HEADER.size))
    kind, number, region, length = head
    if kind not in list(Kind) or length > _MOST:
        raise ConnectionError("the other side speaks another protocol")
    return Frame(Kind(kind), number, region, _read(connection, length))


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
