"""Transports: the parts of a GPU and its links that a collective runs on."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, TypeAlias

Transport: TypeAlias = Literal["rings", "symmetric kernels", "switch", "copy engines"]
"""`rings` is everything that runs on channels with settings of ours: rings, trees,
NVLS, sends and receives. `symmetric kernels` read and write the other GPUs' memory
without a buffer between; `switch` are those of them whose data the NVLink switch
multiplies or adds up; `copy engines` take no SM at all."""
CtaPolicy: TypeAlias = Literal["default", "efficiency", "zero"]
"""`NCCL_CTA_POLICY`: what a process spares SMs for."""
CTA_POLICY: Final = "NCCL_CTA_POLICY"
POLICY_VALUES: Final[dict[CtaPolicy, str]] = {
    "default": "0",
    "efficiency": "1",
    "zero": "2",
}
"""As every version of NCCL that has the variable reads it."""

Condition: TypeAlias = Literal[
    "nccl version",
    "cuda driver",
    "one domain",
    "one host",
    "no reduction",
    "element type",
    "links",
    "switch",
    "memory fraction",
    "known hazard",
]
"""The condition of a transport that is not met."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A transport that cannot be had, and the condition that is not met.

    Example:
        >>> str(Refusal("copy engines", "no reduction", "copy engines cannot add"))
        'copy engines: copy engines cannot add'
    """

    transport: Transport
    condition: Condition
    why: str
    """In words."""
    remedy: str = ""
    """In words; empty where there is none."""

    def __str__(self) -> str:
        """The transport and why not, with the remedy."""
        return f"{self.transport}: {self.why}" + (self.remedy and f"; {self.remedy}")
