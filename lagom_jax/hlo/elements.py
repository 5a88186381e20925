"""Element types of arrays: how HLO spells them, and how large they are."""

from __future__ import annotations

# PrimitiveType number -> (spelling in HLO text, bits an element takes)
_ELEMENT_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    14: ("opaque", 0),
    15: ("c64", 64),
    16: ("bf16", 16),
    17: ("token", 0),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 4),
    22: ("u4", 4),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    26: ("s2", 2),
    27: ("u2", 2),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 4),
    33: ("f8e8m0fnu", 8),
    35: ("f6e3m2fn", 8),
    36: ("f6e2m3fn", 8),
}
_BITS = dict(_ELEMENT_TYPES.values())
# A type of a newer compiler than this table knows.
_UNKNOWN_BITS = 8

ELEMENT_TYPES = frozenset(name for name, bits in _BITS.items() if bits)
"""Spellings of the types that an array in memory can have."""


def element_type(code: int) -> tuple[str, int]:
    """The spelling and the bits of the compiler's type of that number.

    Example:
        >>> element_type(16), element_type(99)
        (('bf16', 16), ('type99', 8))
    """
    return _ELEMENT_TYPES.get(code, (f"type{code}", _UNKNOWN_BITS))


def element_bytes(name: str) -> float:
    """Bytes of one element; those below a byte are packed.

    Example:
        >>> [element_bytes(name) for name in ("bf16", "f8e4m3fn", "s4", "c64")]
        [2.0, 1.0, 0.5, 8.0]
    """
    return _BITS.get(name, _UNKNOWN_BITS) / 8
