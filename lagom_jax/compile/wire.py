"""How the two processes talk: frames of a JSON header and raw bytes.

A frame is two big-endian 64-bit lengths, the header as JSON, and the payload. Bytes
inside the header (an `fdo_profile` among the compiler options) travel as base64.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """As many bytes as asked for, or fewer where the stream ends."""
        ...


_LENGTHS = struct.Struct(">QQ")
_BYTES_KEY = "__bytes__"


def pack(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    r"""One frame.

    Example:
        >>> import io
        >>> unpack(io.BytesIO(pack({"profile": b"\x00"}, b"module")))
        ({'profile': b'\x00'}, b'module')
    """
    encoded = json.dumps(header, default=_encode_bytes).encode()
    return _LENGTHS.pack(len(encoded), len(payload)) + encoded + payload


def unpack(stream: Readable) -> tuple[dict[str, Any], bytes] | None:
    """The next frame of a stream, or None where the stream ends.

    A stream that ends inside a frame counts as ended: whoever wrote it died.

    Example:
        >>> import io
        >>> unpack(io.BytesIO(pack({}, b"module")[:-1])) is None
        True
    """
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, payload_size = _LENGTHS.unpack(lengths)
    header, payload = stream.read(header_size), stream.read(payload_size)
    if len(header) < header_size or len(payload) < payload_size:
        return None
    return json.loads(header, object_hook=_decode_bytes), payload


def _encode_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} does not fit into a header: {value!r}")


def _decode_bytes(value: dict[str, Any]) -> object:
    if value.keys() == {_BYTES_KEY}:
        return base64.b64decode(value[_BYTES_KEY])
    return value
