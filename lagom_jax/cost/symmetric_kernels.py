"""NCCL's own model of its symmetric kernels, by which it also chooses among them.

Read in `src/sym_kernels.cc` of NCCL 2.30.7. A kernel of some blocks moves its traffic
at a smooth minimum of what the blocks and the links can, after a latency of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Final

from lagom_jax.cost.transport_constants import TransportConstants
from lagom_jax.plan.transport import Transport

_GIB_PER_US: Final = (1 << 30) / 1e6
_LL_MOST_BYTES: Final = 2 << 30
_LINKS: Final = {"9": 450e9, "10": 900e9}
"""Bytes a second and direction of the links of a GPU, by generation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """A collective off the rings: what it takes, and of what."""

    transport: Transport
    kernel: str
    """As NCCL logs it; empty for copy engines."""
    latency: float
    transfer: float
    blocks: int
    """SMs that it holds."""
    memory_bytes: float
    """Read and written in a GPU's memory."""

    @property
    def seconds(self) -> float:
        """Alone."""
        return self.latency + self.transfer


@dataclasses.dataclass(frozen=True, slots=True)
class SymmetricCall:
    """A call of NCCL on symmetric memory, within one domain.

    Example:
        >>> from lagom_jax.cost.transport_constants import load_transport_constants
        >>> call = SymmetricCall("all-gather", 32 << 20, 8, 1, "9", True, 450e9)
        >>> kernel = call.chosen(load_transport_constants())
        >>> kernel.kernel, kernel.blocks, round(1e6 * kernel.seconds)
        ('AllGather_STMC', 2, 95)
    """

    kind: str
    nbytes: float
    """On the larger side."""
    ranks: int
    arrays: int
    """In one launch."""
    generation: str
    """`9` up to Hopper, `10` from Blackwell on, as NCCL has it."""
    multicast: bool
    link_bytes_per_s: float

    def chosen(self, constants: TransportConstants) -> Carried:
        """The kernel that NCCL takes: a block more counts for a longer time.

        Args:
            constants: What kernels take.
        """
        found = [self._timed(one, constants) for one in self._kernels(constants)]
        penalty = constants.block_penalty
        return min(found, key=lambda one: one.seconds * (1 + penalty * one.blocks))

    def _kernels(self, constants: TransportConstants) -> Iterator[_Kernel]:
        n, generation = self.ranks, self.generation
        each = self.nbytes / n
        prefix, plain, multicast = _NAMES[self.kind]
        reduces = self.kind == "all-reduce"
        most = constants.blocks
        few = -(-constants.multicast_heads[generation] // n)
        if self.arrays == 1 and self.nbytes < _LL_MOST_BYTES:
            whole = n * self.nbytes if reduces else self.nbytes
            name, name_multicast = _LL_NAMES[self.kind]
            traffic = whole * constants.ll_factor
            yield _Kernel(prefix + name, traffic, 1.0, most, ll=True)
            if self.multicast and name_multicast:
                gain = constants.ll_multicast_gain
                yield _Kernel(
                    prefix + name_multicast, traffic, gain, most, ll=True, switch=True
                )
        sent = (n - 1) * each
        yield _Kernel(prefix + plain, 2 * sent if reduces else sent, 1.0, most)
        if self.multicast and reduces:
            both = self.nbytes + each
            yield _Kernel(prefix + multicast, both, n, few, switch=True)
        elif self.multicast:
            gain = constants.multicast_gain * n
            yield _Kernel(prefix + multicast, sent, gain, few, switch=True)

    def _timed(self, kernel: _Kernel, constants: TransportConstants) -> Carried:
        """The fewest blocks that are about as fast as the most."""
        generation, reduces = self.generation, self.kind == "all-reduce"
        base = constants.base_microseconds[generation]
        latency = base["all-reduce" if reduces else "other"]
        if kernel.ll:
            latency = base["ll all-gather" if self.kind == "all-gather" else "ll"]
        of_block = constants.block_gib_per_s[generation]
        block = of_block["all-reduce" if reduces else "other"] * _GIB_PER_US
        of_all = constants.most_gib_per_s[generation]
        key = "switch all-reduce" if reduces and kernel.switch else "other"
        # Its constants are those of a Hopper's or a Blackwell's links.
        slower = min(1.0, self.link_bytes_per_s / _LINKS[generation])
        most = of_all["other" if kernel.ll else key] * _GIB_PER_US * slower

        def moving(blocks: int) -> float:
            rate = _softmin(blocks * block * kernel.gain, most, block)
            return _softplus(kernel.traffic / rate - 1)

        least = latency + moving(kernel.blocks)
        blocks = next(
            count
            for count in range(1, kernel.blocks + 1)
            if latency + moving(count) <= constants.enough * least
        )
        share = constants.correction[generation]
        # LL writes a flag with every word, and reads both.
        twice = 2.0 if kernel.ll else 1.0
        both = self.nbytes * (2.0 if reduces else 1 + 1 / self.ranks)
        return Carried(
            "switch" if kernel.switch else "symmetric kernels",
            kernel.name,
            1e-6 * share * latency,
            1e-6 * share * moving(blocks),
            blocks,
            twice * both,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Kernel:
    """A symmetric kernel for one call."""

    name: str
    traffic: float
    """Bytes by which NCCL's model counts its time."""
    gain: float
    """Times a block's rate."""
    blocks: int
    """The most that it may have."""
    ll: bool = False
    switch: bool = False


_NAMES: Final = {
    "all-gather": ("AllGather_", "ST", "STMC"),
    "reduce-scatter": ("ReduceScatter_", "LD", "LDMC"),
    "all-reduce": ("AllReduce_", "RSxLD_AGxST", "RSxLDMC_AGxSTMC"),
}
_LL_NAMES: Final = {
    "all-gather": ("LL", "LLMC"),
    "reduce-scatter": ("LL", ""),
    "all-reduce": ("AGxLL_R", "AGxLLMC_R"),
}


def _softmin(value: float, ceiling: float, softness: float) -> float:
    """A smooth version of the smaller of two rates, as NCCL has it."""
    inner = math.expm1(ceiling / softness) * math.exp(-value / softness)
    return ceiling - softness * math.log1p(inner)


def _softplus(value: float) -> float:
    """A smooth version of what is above 0, as NCCL has it."""
    return value if value >= 100.0 else math.log1p(math.exp(value))
