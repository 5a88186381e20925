"""Kinds of collectives, number types and versions as tables spell them."""

from __future__ import annotations

import re
from typing import Final

from lagom_jax.hlo.elements import ELEMENT_TYPES, element_bytes
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.measurements.table import RowError

_KINDS: Final = {kind.replace("-", ""): kind for kind in KINDS} | {
    "broadcast": "collective-broadcast",
    "permute": "collective-permute",
    "sendrecv": "collective-permute",
}
_TYPES: Final = {
    "bool": "pred",
    "double": "f64",
    "float": "f32",
    "half": "f16",
    "bfloat16": "bf16",
    # What runs on the tensor cores as TensorFloat-32 lies in memory as f32.
    "tf32": "f32",
    "fp8": "f8e4m3fn",
    "float8": "f8e4m3fn",
    "e4m3": "f8e4m3fn",
    "e5m2": "f8e5m2",
    "fp4": "f4e2m1fn",
    "nvfp4": "f4e2m1fn",
    "float4": "f4e2m1fn",
}
# Prefix of other libraries' names -> XLA's, before the bits.
_PREFIXES: Final = (("float", "f"), ("fp", "f"), ("uint", "u"), ("int", "s"))
_PRODUCT: Final = re.compile(r"(\w+)x(\w+?)(?:->(\w+))?$")


def collective_kind(spelled: str) -> str:
    """The kind of collective that a word means.

    Raises:
        RowError: None that is known.

    Example:
        >>> collective_kind("all-gather"), collective_kind("AllReduce")
        ('all-gather', 'all-reduce')
    """
    word = re.sub(r"[\s_-]", "", spelled).lower().removesuffix("perf")
    if word not in _KINDS:
        known = ", ".join(sorted(KINDS))
        raise RowError(f"no collective is called {spelled!r}; known are {known}")
    return _KINDS[word]


def product_types(spelled: str) -> tuple[str, str, str]:
    """The types of both operands of a product and of its result.

    Args:
        spelled: As `bf16xbf16->bf16`. One type alone stands for all three; a result
            that is not given is as wide as the operands, but at least 16 bits.

    Raises:
        RowError: That is no such text, or a type is unknown.

    Example:
        >>> product_types("f8e4m3fnxf8e5m2->bf16")
        ('f8e4m3fn', 'f8e5m2', 'bf16')
        >>> product_types("fp16 x fp16"), product_types("int8")
        (('f16', 'f16', 'f16'), ('s8', 's8', 's32'))
    """
    text = re.sub(r"\s", "", spelled).lower()
    found = _PRODUCT.match(text)
    if found:
        lhs, rhs = _element_type(found[1]), _element_type(found[2])
        return lhs, rhs, _element_type(found[3]) if found[3] else _wide(lhs)
    if not re.match(r"\w+$", text):
        raise RowError(
            f"types is {spelled!r}; write LHSxRHS->RESULT, as bf16xbf16->bf16"
        )
    alone = _element_type(text)
    return alone, alone, _wide(alone)


def version_in(spelled: str) -> str:
    """A version of NCCL without what stands before its numbers.

    Example:
        >>> version_in("v2.28.9-1"), version_in("NCCL 2.27.5"), version_in("22809")
        ('2.28.9-1', '2.27.5', '2.28.9')
    """
    text = re.sub(r"^(?:nccl)?[\s_-]*v?", "", spelled.strip(), flags=re.IGNORECASE)
    if re.match(r"[2-9]\d{4}$", text):
        # As `ncclGetVersion` has it.
        code = int(text)
        return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    return text


def _element_type(spelled: str) -> str:
    name = _TYPES.get(spelled, spelled)
    if name not in ELEMENT_TYPES:
        for prefix, own in _PREFIXES:
            if name.startswith(prefix):
                name = own + name.removeprefix(prefix).replace("_", "")
                break
    if name not in ELEMENT_TYPES:
        known = ", ".join(sorted(ELEMENT_TYPES))
        raise RowError(f"types has {spelled!r}; known are {known}")
    return name


def _wide(name: str) -> str:
    if element_bytes(name) > 1:
        return name
    return "s32" if name[0] in "su" else "bf16"
