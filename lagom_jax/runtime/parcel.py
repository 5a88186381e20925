"""Bytes as they travel from one process to others: small, and known to be whole.

A parcel is the SHA-256 and the length of what follows them, as a big-endian 64-bit
number: one byte that says whether there is a result or the reason why there is none,
and either of these, compressed.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

_HEAD = struct.Struct(">32sQ")
_RESULT, _REASON = b"\x01", b"\x00"
# Plans are JSON: the fastest level already makes them ten times smaller.
_LEVEL = 1


class ParcelError(ValueError):
    """A parcel that is not what was sent."""


def pack(content: bytes, *, result: bool = True) -> bytes:
    """A parcel.

    Args:
        content: What is to travel.
        result: Whether it is a result, and not the reason why there is none.

    Example:
        >>> unpack(pack(b"a plan"))
        (b'a plan', True)
        >>> unpack(pack(b"no such cluster", result=False))
        (b'no such cluster', False)
    """
    body = (_RESULT if result else _REASON) + zlib.compress(content, _LEVEL)
    return _HEAD.pack(hashlib.sha256(body).digest(), len(body)) + body


def unpack(parcel: bytes) -> tuple[bytes, bool]:
    """The contents of a parcel, and True if they are a result, not an error.

    Args:
        parcel: As `pack` made it.

    Raises:
        ParcelError: It is not.

    Example:
        >>> unpack(pack(b"a plan")[:-1])
        Traceback (most recent call last):
        ...
        lagom_jax.runtime.parcel.ParcelError: 14 bytes came where 15 were sent
    """
    if len(parcel) < _HEAD.size:
        raise ParcelError(f"{len(parcel)} bytes are too few")
    digest, length = _HEAD.unpack_from(parcel)
    body = parcel[_HEAD.size :]
    if len(body) != length:
        raise ParcelError(f"{len(body)} bytes came where {length} were sent")
    if hashlib.sha256(body).digest() != digest:
        raise ParcelError(f"the {length} bytes that came are not those that were sent")
    return zlib.decompress(body[1:]), body[:1] == _RESULT
