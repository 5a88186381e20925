"""Collectives off the rings: symmetric kernels, the switch, copy engines.

NCCL and XLA decide where a collective runs before a tuner is asked, by the memory that
its buffers lie in, its kind, the process's policy and versions. What such a collective
takes is NCCL's own model of its symmetric kernels, the number of their blocks included,
and an estimate for copy engines. Derivation, and what was scored with what:
docs/explanation/transports.md.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_facts import all_joined, nccl_facts, numbers_of
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.cost.symmetric_kernels import Carried, SymmetricCall
from lagom_jax.cost.transport_constants import TransportConstants
from lagom_jax.hlo.symmetric_buffers import SymmetricBuffers
from lagom_jax.plan.setting import REDUCING
from lagom_jax.plan.transport import CtaPolicy, Refusal, Transport

_COPIED: Final = ("all-gather", "all-to-all")
"""Kinds that NCCL has for copy engines, of those that XLA asks for."""
ONE_SIDED: Final = ("all-gather", "collective-permute", "ragged-all-to-all")
"""Kinds that XLA can run by puts of its own."""
_ADDED: Final = ("f32", "f16", "bf16", "f8e4m3fn", "f8e5m2")
_WIDTHS: Final = {"bf16": 2, "f16": 2, "f8e4m3fn": 1, "f8e5m2": 1, "s8": 1, "u8": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedCall:
    """A collective, as far as its transport depends on it.

    Example:
        >>> from lagom_jax.cost.transport_constants import load_transport_constants
        >>> h100 = Cluster.parse("h100:1x8")
        >>> call = PlacedCall(
        ...     "all-gather", 32 << 20, Span(8, 1, 8), h100, ("bf16",), 1)
        >>> carried = call.symmetric(load_transport_constants())
        >>> carried.kernel, carried.blocks, round(1e6 * carried.seconds)
        ('AllGather_STMC', 2, 95)
    """

    kind: str
    nbytes: float
    """On the larger side."""
    span: Span
    cluster: Cluster
    types: tuple[str, ...]
    """Of its elements."""
    arrays: int
    """In one launch."""

    @property
    def _generation(self) -> str:
        # NCCL has one set up to Hopper, and one from Blackwell on.
        major = int(self.cluster.gpu.compute_capability.partition(".")[0])
        return "10" if major >= 10 else "9"

    @property
    def _multicast(self) -> bool:
        facts = nccl_facts(self.cluster)
        return bool(facts.nvls_efficiency) and self.span.size > 2

    def copied(self, constants: TransportConstants, *, one_sided: bool) -> Carried:
        """The collective by copy engines.

        Args:
            constants: What they take.
            one_sided: By puts of XLA's own, not NCCL's collective.
        """
        n = self.span.size
        peers = 1 if self.kind == "collective-permute" else n - 1
        if one_sided:
            start = constants.one_sided_start_microseconds
            each = constants.one_sided_each_microseconds
            latency = (
                start
                + each * peers
                + constants.copy_each_microseconds * (peers * (self.arrays - 1))
            )
        else:
            once = constants.copy_start_microseconds
            latency = self.arrays * (once + constants.copy_each_microseconds * peers)
        sent = wire_bytes(self.kind, self.nbytes, n)
        rate = constants.copy_share * self.cluster.inside.bytes_per_s
        return Carried(
            "copy engines", "", 1e-6 * latency, sent / rate, 0, 2 * self.nbytes
        )

    def symmetric(self, constants: TransportConstants) -> Carried:
        """The collective by the symmetric kernel that NCCL takes for it.

        Args:
            constants: What these kernels take, as NCCL has it.
        """
        found = self.kernel(constants)
        sent = wire_bytes(self.kind, self.nbytes, self.span.size)
        if found.transport == "switch" and self.kind == "all-reduce":
            # The switch adds up and multiplies: all data goes out once and comes once.
            sent = self.nbytes
        # NCCL's model goes a little beyond the links here and there.
        on_link = sent / self.cluster.inside.bytes_per_s
        transfer = max(found.transfer, on_link - found.latency)
        return dataclasses.replace(found, transfer=transfer)

    def kernel(self, constants: TransportConstants) -> Carried:
        """The symmetric kernel that NCCL takes, with what it thinks of it.

        Args:
            constants: What these kernels take, as NCCL has it.
        """
        return SymmetricCall(
            self.kind,
            self.nbytes,
            self.span.size,
            self.arrays,
            self._generation,
            self._multicast,
            self.cluster.inside.bytes_per_s,
        ).chosen(constants)

    def refusal(
        self, transport: Transport, constants: TransportConstants, nccl: str
    ) -> Refusal | None:
        """The first condition of a transport that this call does not meet.

        Args:
            transport: Any but rings.
            constants: When each can be had.
            nccl: NCCL's version.
        """
        since = constants.symmetric_since
        if transport == "copy engines":
            since = constants.copy_engines_since
        elif self.arrays > 1:
            since = constants.several_at_once_since
        if numbers_of(nccl) < numbers_of(since):
            return Refusal(
                transport,
                "nccl version",
                f"NCCL {nccl} does not have them"
                if self.arrays == 1 or since == constants.copy_engines_since
                else f"NCCL {nccl} has them for one array at a time",
                f"install NCCL {since} or newer",
            )
        if self.cluster.inside.kind != "nvlink":
            return Refusal(
                transport,
                "links",
                f"the GPUs of {self.cluster.name} reach each other over "
                f"{self.cluster.inside.kind}, not directly over NVLink",
            )
        if not all_joined(self.cluster):
            # src/sym_kernels.cc of NCCL 2.30.7 asks for `isAllDirectNvlink`, and what
            # copy engines move beside the bridge goes at the rate of PCI Express.
            joined = self.cluster.inside.gpus_joined
            return Refusal(
                transport,
                "links",
                f"a bridge joins {joined} of the GPUs of {self.cluster.name}; the "
                "others reach each other over PCI Express",
            )
        if self.span.domains > 1:
            return Refusal(
                transport,
                "one domain",
                f"{self.kind} over {self.span.domains} NVLink domains",
                "use them on mesh axes that stay inside of one",
            )
        if transport == "copy engines":
            return self._refused_copy(transport)
        return self._refused_kernel(transport)

    def _refused_copy(self, transport: Transport) -> Refusal | None:
        if self.kind in ("all-reduce", "reduce-scatter"):
            return Refusal(transport, "no reduction", "copy engines cannot add")
        if self.kind not in (*_COPIED, *ONE_SIDED):
            return Refusal(transport, "no reduction", f"there is no such {self.kind}")
        return None

    def _refused_kernel(self, transport: Transport) -> Refusal | None:
        if self.kind not in REDUCING:
            return Refusal(
                transport, "element type", f"there is no such kernel for {self.kind}"
            )
        others = [one for one in self.types if one not in _ADDED]
        if self.kind != "all-gather" and others:
            return Refusal(
                transport,
                "element type",
                f"these kernels add floats of up to 32 bits, not {others[0]}",
            )
        if transport == "switch" and not self._multicast:
            return Refusal(
                transport,
                "switch",
                "nothing is multiplied or added up there: that takes a switch of "
                "Hopper's generation or later, and three GPUs",
            )
        return None

    def carried(
        self,
        buffers: SymmetricBuffers,
        policy: CtaPolicy,
        constants: TransportConstants,
        nccl: str,
    ) -> Carried | None:
        """The collective where NCCL and XLA run it; None where that is on rings.

        Args:
            buffers: Those of it that lie in symmetric memory.
            policy: The process's.
            constants: What transports take.
            nccl: NCCL's version.
        """
        if not buffers:
            return None
        if buffers.one_sided:
            if self.one_sided_refusal(constants, nccl) is None:
                return self.copied(constants, one_sided=True)
            # NCCL has not registered its buffers then.
            return None
        if (
            buffers.received
            and self.kind in _COPIED
            and (policy == "zero" or self._copied_anyway(constants, nccl))
            and self.refusal("copy engines", constants, nccl) is None
        ):
            return self.copied(constants, one_sided=False)
        both = buffers.sent and buffers.received
        if both and self.refusal("symmetric kernels", constants, nccl) is None:
            return self.symmetric(constants)
        return None

    def one_sided_refusal(
        self, constants: TransportConstants, nccl: str
    ) -> Refusal | None:
        """The condition of XLA's own puts that this call does not meet."""
        since = constants.one_sided_since
        if self.kind not in ONE_SIDED:
            return Refusal(
                "copy engines", "no reduction", f"XLA has no puts for {self.kind}"
            )
        if numbers_of(nccl) < numbers_of(since):
            return Refusal(
                "copy engines",
                "nccl version",
                f"NCCL {nccl} has no put and signal",
                f"install NCCL {since} or newer",
            )
        found = self.refusal("copy engines", constants, nccl)
        if found is None and self.span.size > self.cluster.gpus_per_host:
            return Refusal(
                "copy engines",
                "one host",
                f"XLA puts within a host only; {self.span.size} GPUs are on several",
            )
        return found

    def _copied_anyway(self, constants: TransportConstants, nccl: str) -> bool:
        if self.kind != "all-gather" or self._generation != "10":
            return False
        if numbers_of(nccl) < numbers_of(constants.automatic_since):
            return False
        width = _WIDTHS.get(self.types[0], 4) if self.types else 4
        elements = self.nbytes / self.span.size / max(1, self.arrays) / width
        return elements > constants.automatic_elements
