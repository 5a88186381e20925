"""Seconds of a collective that has the links to itself.

Two parts add up: latency, and the transfer over channels and links. Inside one domain
both are calibrated at NCCL's own choice of channels, protocol by protocol
(`surface.py`); over several, the network's are added (`network.py`). Another setting
changes the latency by what NCCL's structure says, scales the transfer
(`nccl_time.py`), and never takes less than its channels need. All of them are derived
in docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import (
    NO_WAITS,
    Waits,
    bins_of,
    counted,
    protocols_of,
    usual_of,
    waits_of,
)
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.loads import NO_LOAD, CollectiveLoad, memory_rate
from lagom_jax.cost.nccl_default import default_of
from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.nccl_time import Structure, structure_of
from lagom_jax.cost.network import Alone, across
from lagom_jax.cost.prices import Price
from lagom_jax.cost.span import Span
from lagom_jax.plan.setting import Setting

# However much faster another algorithm starts, a kernel starts and ends.
_LEAST_LATENCY = 0.3
# Of the latency of a collective: the kernel's start and end, which the arrays of a
# group have in common. Chosen with two collectives of a measured step in view.
_KERNEL_SECONDS = 4.5e-6
_Bins: TypeAlias = list[tuple[list[tuple[float, ...]], list[str]]]


def collective_seconds(
    kind: str,
    nbytes: float,
    span: Span,
    cluster: Cluster,
    setting: Setting | None = None,
    *,
    arrays: tuple[float, ...] = (),
    nccl: str = "",
) -> float:
    """Seconds of one execution of a collective through NCCL, alone.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        cluster: What it runs on.
        setting: How it is run; by default as NCCL chooses by itself.
        arrays: Bytes of each array that the compiler combined into this launch.
        nccl: NCCL's version; by default that of its record.

    Raises:
        SettingError: NCCL does not have the setting's algorithm for this collective.

    Example:
        >>> h100 = Cluster.parse("h100:1x8")
        >>> one = collective_seconds("all-gather", 1 << 30, Span(8, 1, 8), h100)
        >>> 2.6e-3 < one < 2.9e-3
        True
        >>> few = Setting("ring", "simple", 2, 544, 524288)
        >>> slow = collective_seconds("all-gather", 1 << 30, Span(8, 1, 8), h100, few)
        >>> slow > 4 * one
        True
    """
    constants = load_constants(cluster, nccl)
    terms = CollectiveTerms.of(kind, nbytes, span, cluster, constants, arrays)
    return terms.price(setting).seconds


@dataclasses.dataclass(frozen=True, slots=True)
class _CollectiveParts:
    """Parts of a collective's time under a setting, in seconds."""

    structure: Structure
    latency: float
    transfer: float
    waits: Waits
    """Of its arrays for each other, which are in neither."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveTerms:
    """All of a collective's price that its setting does not change."""

    kind: str
    nbytes: float
    arrays: tuple[float, ...]
    """Bytes of each array on the larger side, from small to large."""
    span: Span
    cluster: Cluster
    constants: Constants
    usual: Setting | None
    """NCCL's own choice; None where it has no part in it."""
    _fixed: float
    """Seconds where no setting matters."""
    _by_protocol: dict[str, tuple[Setting, Alone, Structure]] = dataclasses.field(
        default_factory=dict[str, tuple[Setting, Alone, Structure]],
        compare=False,
        repr=False,
    )
    _by_setting: dict[Setting, _CollectiveParts] = dataclasses.field(
        default_factory=dict[Setting, _CollectiveParts], compare=False, repr=False
    )
    """Parts under settings, asked for by price and load alike."""
    _bins: _Bins = dataclasses.field(default_factory=_Bins, compare=False, repr=False)
    """Arrays that NCCL puts together, and their protocols, once they are known."""

    @classmethod
    def of(
        cls,
        kind: str,
        nbytes: float,
        span: Span,
        cluster: Cluster,
        constants: Constants,
        arrays: tuple[float, ...] = (),
        *,
        one_shot: bool = False,
    ) -> CollectiveTerms:
        """The terms of a collective.

        Args:
            kind: The kind of collective.
            nbytes: Bytes on the larger side of the op.
            span: How its groups lie on the cluster.
            cluster: The links it moves over.
            constants: What those links reach of their peaks.
            arrays: Bytes of each array that the compiler combined into this launch.
            one_shot: Whether XLA runs it as a kernel of its own.
        """
        usual, fixed = None, 0.0
        if span.size == 1:
            fixed = constants.launch_seconds
        elif one_shot:
            # Every GPU reads the whole operand of every other, after one barrier.
            read = nbytes * (span.size - 1) / cluster.inside.bytes_per_s
            fixed = constants.one_shot_seconds + read
        else:
            usual = usual_of(kind, nbytes, arrays, span, constants.facts)
        ordered = tuple(sorted(arrays)) if len(arrays) > 1 else ()
        return cls(kind, nbytes, ordered, span, cluster, constants, usual, fixed)

    @property
    def facts(self) -> NcclFacts:
        """NCCL's constants on the cluster."""
        return self.constants.facts

    def price(self, setting: Setting | None = None) -> Price:
        """The price under a setting, or under NCCL's own.

        Raises:
            SettingError: NCCL does not have the setting's algorithm for this.
        """
        if self.usual is None:
            return Price(self._fixed, "latency")
        setting = setting or self.usual
        parts = self._parts(setting)
        latency, transfer = parts.latency + parts.waits.longest, parts.transfer
        _, alone, _ = self._at(setting.protocol)
        seconds = latency + transfer
        share = min(1.0, parts.structure.sent_bytes / (alone.peak * seconds))
        return Price(seconds, "latency" if transfer <= latency else alone.bound, share)

    def load(self, price: Price, setting: Setting | None = None) -> CollectiveLoad:
        """Load on a GPU while it runs.

        Args:
            price: Its price under the setting.
            setting: How it is run; by default as NCCL chooses by itself.

        Raises:
            SettingError: NCCL does not have the setting's algorithm for this.
        """
        if self.usual is None:
            return NO_LOAD
        used = setting or self.usual
        passes = self.constants.sharing.passes(self.kind, used)
        parts = self._parts(used)
        # A channel that has done its arrays gives its SM back.
        own = parts.latency + parts.transfer
        whole = max(own + parts.waits.longest, 1e-12)
        held = (own + parts.waits.mean) / whole
        sent, seconds = parts.structure.sent_bytes, max(price.seconds, 1e-12)
        _, alone, _ = self._at(used.protocol)
        return CollectiveLoad(
            max(1, round(used.channels * held)),
            used.chunk_bytes,
            memory_rate(sent, price.seconds, passes),
            price.bound,
            min(1.0, sent / (alone.reached * seconds)),
            parts.transfer / whole,
            self.kind == "all-reduce" and used.protocol == "simple",
        )

    def _parts(self, setting: Setting) -> _CollectiveParts:
        known = self._by_setting.get(setting)
        if known is None:
            known = self._by_setting[setting] = self._parts_under(setting)
        return known

    def _parts_under(self, setting: Setting) -> _CollectiveParts:
        structure = self._structure(setting)
        reference, alone, usual = self._at(setting.protocol)
        latency, transfer = alone.latency, alone.transfer
        if setting != reference:
            other = latency + structure.latency - usual.latency
            latency = max(_LEAST_LATENCY * latency, other)
            if usual.transfer > 0:
                transfer *= structure.transfer / usual.transfer
        transfer = max(transfer, structure.on_channels)
        waits = self._waits(setting, latency) if self.arrays else NO_WAITS
        return _CollectiveParts(structure, latency, transfer, waits)

    def _waits(self, setting: Setting, latency: float) -> Waits:
        """Waits of arrays for others on their channel.

        A setting is that of the largest arrays; NCCL chooses for smaller ones that it
        does not put together with them.
        """
        facts = self.facts
        channels = min(setting.channels, facts.channels_over(self.span.domains))
        if not self._bins:
            of_kind = protocols_of(self.kind, self.arrays, self.span, facts)
            self._bins.append((list(bins_of(self.arrays, facts)), of_kind[:-1]))
        ((bins, smaller),) = self._bins
        latencies = [self._at(protocol)[1].latency for protocol in smaller]
        placed = [
            (
                counted(self.kind, nbytes, protocol, facts),
                max(_LEAST_LATENCY * whole, whole - _KERNEL_SECONDS),
            )
            for one, protocol, whole in zip(
                bins,
                (*smaller, setting.protocol),
                (*latencies, latency),
                strict=True,
            )
            for nbytes in one
        ]
        return waits_of(placed, channels)

    def _structure(self, setting: Setting) -> Structure:
        return structure_of(self.kind, self.nbytes, self.span, self.facts, setting)

    def _at(self, protocol: str) -> tuple[Setting, Alone, Structure]:
        """Setting of NCCL in a protocol, its time alone, and its structure."""
        known = self._by_protocol.get(protocol)
        if known is None:
            kind, nbytes, span, facts = self.kind, self.nbytes, self.span, self.facts
            reference = default_of(kind, nbytes, span, facts, protocol)
            alone = across(
                kind, nbytes, span, self.cluster, self.constants, facts, reference
            )
            known = reference, alone, self._structure(reference)
            self._by_protocol[protocol] = known
        return known
