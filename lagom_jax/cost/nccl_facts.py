"""NCCL's constants for one generation of GPUs, from the record `nccl.json`."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.errors import MeasurementError

ByProtocol = Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NcclFacts:
    """NCCL's assumptions about a GPU and its links. GB are 1e9 bytes.

    Example:
        >>> facts = nccl_facts(Cluster.parse("h100:8x8"))
        >>> facts.channels, round(facts.inside_gb_per_s, 1)
        (24, 370.8)
    """

    base_microseconds: Mapping[str, ByProtocol]
    """By algorithm and protocol."""
    inside_microseconds: Mapping[str, ByProtocol]
    """A hop inside a domain."""
    network_microseconds: Mapping[str, ByProtocol]
    """A hop between domains."""
    inside_gb_per_s: float
    """Rate that NCCL counts for the links of one GPU in its domain."""
    network_gb_per_s: float
    """One GPU's share of the network cards."""
    ll_most_gb_per_s: tuple[float, float, float]
    """All channels together, on 1, 2, and more domains; so too the next three."""
    ring_ll128_channel_gb_per_s: tuple[float, float, float]
    tree_ll128_channel_gb_per_s: tuple[float, float, float]
    tree_channel_gb_per_s: tuple[float, float, float]
    nvls_efficiency: float
    """0 where the links cannot reduce or multicast."""
    ll128: bool
    """True if NCCL has LL128: all of a domain reach each other over NVLink. Over PCIe
    128 bytes may arrive in parts."""
    version: str
    """Of NCCL."""
    channels: int
    """Of a communicator inside one domain."""
    far_channels: int
    """Of one that crosses the network."""
    nvls_channels: int
    channel_gb_per_s: float
    """Rate of one channel with Simple and all its threads (estimated)."""
    slice_overhead_microseconds: ByProtocol
    half_rate_threads: float
    p2p_chunk_bytes: int
    p2p_ll_bytes_per_channel: int
    p2p_most_chunks: int
    p2p_least_part_bytes: int
    """A channel's part of a send, unless the whole is shorter."""
    p2p_ll_by_channels_in_use: bool
    """True if LL depends on the channels that a message uses, or on all of them."""
    near_channels_per_peer: int
    """Most channels of a pair inside a domain: over NVLink more than there are."""
    net_channels_per_peer: int
    """Most channels of a pair in a communicator that crosses the network."""
    array_bytes: int
    """Least bytes that an array of a group counts when channels are filled."""
    ll_array_counts: int
    """Times its bytes that an array of a group counts in LL."""
    arrays_in_a_batch: int
    """Arrays of a group that NCCL's kernel takes up at once."""
    arrays_chosen_together: bool
    """True if a group has one algorithm and protocol, whatever its arrays' sizes."""
    bytes_per_channel: int
    """The least traffic for which NCCL uses another channel."""
    bytes_per_thread: ByProtocol
    """The least payload for which NCCL uses another thread."""

    def channels_over(self, domains: int) -> int:
        """Channels of a communicator over so many domains.

        Example:
            >>> facts = nccl_facts(Cluster.parse("h100:8x8"))
            >>> facts.channels_over(1), facts.channels_over(8)
            (24, 16)
        """
        return self.channels if domains == 1 else self.far_channels

    def by_domains(self, values: tuple[float, float, float], domains: int) -> float:
        """The value that holds for so many domains.

        Example:
            >>> facts = nccl_facts(Cluster.parse("h100:8x8"))
            >>> facts.by_domains(facts.ll_most_gb_per_s, 8)
            35.0
        """
        return values[0 if domains == 1 else 1 if domains == 2 else 2]

    def link_gb_per_s(
        self, algorithm: str, protocol: str, bus: float, domains: int
    ) -> float:
        """Rate of a protocol over a link, however many channels it has.

        Args:
            algorithm: `ring` or `tree`; the others reach what their own rate says.
            protocol: The protocol.
            bus: GB/s of the slowest link on the way.
            domains: Scale-up domains that a group reaches into.

        Example:
            >>> facts = nccl_facts(Cluster.parse("h100:8x8"))
            >>> facts.link_gb_per_s("ring", "ll", 360.0, 8)
            35.0
        """
        if protocol == "ll":
            most = self.by_domains(self.ll_most_gb_per_s, domains)
            return min(most, bus / 3.8 if algorithm == "tree" else bus / 2)
        if protocol == "ll128":
            if algorithm == "tree":
                return bus * (7 / 9 if domains == 1 else 15 / 16)
            return 0.92 * bus
        return 0.92 * bus if algorithm == "tree" else bus


@functools.lru_cache(maxsize=64)
def nccl_facts(cluster: Cluster, nccl: str = "") -> NcclFacts:
    """NCCL's constants on a cluster.

    Args:
        cluster: What it runs on.
        nccl: Its version, such as 2.28.9; by default that of the record.

    Raises:
        MeasurementError: That is no version.

    Example:
        >>> nccl_facts(Cluster.parse("a100")).nvls_efficiency
        0.0
    """
    capability = cluster.gpu.compute_capability.rstrip("af")
    nvlink = cluster.inside.kind == "nvlink"
    record = stated()
    version = nccl or str(record["version"]["value"])
    numbers = numbers_of(version)
    values = {
        key: _value(item, numbers) for key, item in record.items() if key != "source"
    }
    major = capability.partition(".")[0]
    known = {**record["generations"][major]}
    known |= record["generations"].get(capability, {})
    generation: dict[str, Any] = {
        key: _value(item, numbers) for key, item in known.items()
    }
    per_link = values["link_gb_per_s"]
    over_pcie = values["pcie_gb_per_s"]
    inside = over_pcie.get(capability, over_pcie["any"])
    if nvlink:
        rate = per_link.get(capability, per_link[major])
        inside = rate * cluster.gpu.nvlink_links
    small, p2p = values["small_messages"], values["p2p"]
    chunk = p2p["nvlink_chunk_bytes" if nvlink else "other_chunk_bytes"]
    return NcclFacts(
        base_microseconds=values["base_microseconds"],
        inside_microseconds=values[f"{'nvlink' if nvlink else 'pcie'}_microseconds"],
        network_microseconds=values["network_microseconds"],
        inside_gb_per_s=inside,
        network_gb_per_s=cluster.between.bytes_per_s / 1e9,
        ll_most_gb_per_s=tuple(generation["ll_most_gb_per_s"]),
        ring_ll128_channel_gb_per_s=tuple(generation["ring_ll128_channel_gb_per_s"]),
        tree_ll128_channel_gb_per_s=tuple(generation["tree_ll128_channel_gb_per_s"]),
        tree_channel_gb_per_s=tuple(generation["tree_channel_gb_per_s"]),
        nvls_efficiency=generation["nvls_efficiency"] if nvlink else 0.0,
        ll128=nvlink and all_joined(cluster),
        version=version,
        channels=generation["channels"],
        far_channels=generation["far_channels"],
        nvls_channels=generation["nvls_channels"],
        channel_gb_per_s=values["simple_channel_gb_per_s"][major],
        slice_overhead_microseconds=values["slice_overhead_microseconds"],
        half_rate_threads=values["half_rate_threads"],
        p2p_chunk_bytes=chunk,
        p2p_ll_bytes_per_channel=p2p["ll_bytes_per_channel"],
        p2p_most_chunks=p2p["most_chunks_in_a_part"],
        p2p_least_part_bytes=values["p2p_least_part_bytes"],
        p2p_ll_by_channels_in_use=values["p2p_ll_by_channels_in_use"],
        near_channels_per_peer=(
            generation["channels"] * 2 if nvlink else values["pcie_channels_per_peer"]
        ),
        net_channels_per_peer=values["net_channels_per_peer"],
        array_bytes=values["array_bytes"],
        ll_array_counts=values["ll_array_counts"],
        arrays_in_a_batch=values["arrays_in_a_batch"],
        arrays_chosen_together=values["arrays_chosen_together"],
        bytes_per_channel=small["bytes_per_channel"],
        bytes_per_thread={
            protocol: small[f"{protocol}_bytes_per_thread"]
            for protocol in ("ll", "ll128", "simple")
        },
    )


def all_joined(cluster: Cluster) -> bool:
    """True if the GPUs of a domain reach each other without another way between.

    Example:
        >>> all_joined(Cluster.parse("h100:1x8"))
        True
        >>> all_joined(Cluster.parse("a40-nvlink:1x8"))
        False
    """
    joined = cluster.inside.gpus_joined
    return joined is None or cluster.scale_up_size <= joined


@functools.cache
def stated() -> dict[str, Any]:
    """The record as it is in its file.

    Example:
        >>> stated()["half_rate_threads"]["value"]
        96
    """
    path = resources.files(__name__.rpartition(".")[0]) / "nccl.json"
    return json.loads(path.read_text())


def numbers_of(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared.

    Raises:
        MeasurementError: It is none.

    Example:
        >>> numbers_of("2.28.9") < numbers_of("2.29"), numbers_of("2.30.7-1")
        (True, (2, 30, 7))
    """
    found = re.match(r"\d+(?:\.\d+)+", version.strip())
    if found is None:
        raise MeasurementError(f"nccl is {version!r}, not a version such as 2.28.9")
    return tuple(int(number) for number in found[0].split("."))


def _value(item: Mapping[str, Any], version: tuple[int, ...]) -> Any:
    by_version: dict[str, Any] | None = item.get("by_version")
    if by_version is None:
        return item.get("value", item)
    firsts = sorted(by_version, key=numbers_of)
    reached = [first for first in firsts if numbers_of(first) <= version]
    return by_version[reached[-1] if reached else firsts[0]]
