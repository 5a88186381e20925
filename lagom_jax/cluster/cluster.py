"""A cluster: so many hosts of so many GPUs of a known system."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from lagom_jax.cluster.hardware import Gpu, Link, System
from lagom_jax.cluster.records import read_system, system_names
from lagom_jax.cluster.wan import parse_wan
from lagom_jax.errors import ClusterError

# XLA numbers devices with 32 bits and builds tables of them; past this a typing
# mistake would cost minutes and gigabytes before it showed.
_MOST_DEVICES = 2**17


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that a program is analysed for.

    GPUs have the ids 0, 1, ... host by host; a scale-up domain is a run of
    consecutive ids whose GPUs reach each other over `inside`, everything else goes
    over `between`.

    Example:
        >>> cluster = Cluster.parse("h100:8x8")
        >>> cluster.devices, cluster.scale_up_size, cluster.inside.name
        (64, 8, 'nvlink4')
        >>> cluster.domains_of([0, 1, 7]), cluster.domains_of(range(0, 64, 8))
        (1, 8)
    """

    name: str
    """The spelling that `parse` reads back: `h100:8x8`."""
    system: System
    hosts: int
    gpus_per_host: int
    """GPUs in use on each host, at most what the system has."""
    regions: int = 1
    """Parts of the same number of hosts, joined by `wan` alone."""
    wan: Link | None = None
    """Between regions: the link of a whole region; None where there is but one."""

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """The cluster that `text` names.

        Args:
            text: `NAME:HOSTSxGPUS` (`h100:8x8`), `NAME:GPUS` for so many GPUs on
                full hosts, or on one that is not full (`h100:64`, `h100:4`), or
                `NAME` for one full scale-up domain (`h100` is `h100:1x8`,
                `gb200-nvl72` is `gb200-nvl72:18x4`). NAME is one of `names()` or the
                path of a system record. `4*h100:8x8@10gbps,80ms` is four such
                clusters in regions with a WAN between them.

        Returns:
            The cluster, under its canonical name.

        Raises:
            ClusterError: the name is unknown, the form is wrong, or the system has
                no such hosts.

        Example:
            >>> Cluster.parse("gb200-nvl72").name
            'gb200-nvl72:18x4'
            >>> Cluster.parse("h100:64").name
            'h100:8x8'
        """
        inside, at, link = text.strip().partition("@")
        if at:
            return cls._of_regions(text, inside, link)
        name, colon, size = text.strip().rpartition(":")
        if not colon:
            name, size = size, ""
        if not name or (colon and not size):
            raise ClusterError(f"{text!r} is no cluster; {_forms()}")
        system = read_system(name)
        hosts, gpus_per_host = _counts(text, size.lower(), system)
        if name.lower() == system.name:
            name = system.name
        return cls(f"{name}:{hosts}x{gpus_per_host}", system, hosts, gpus_per_host)

    @classmethod
    def _of_regions(cls, text: str, inside: str, link: str) -> Cluster:
        count, star, name = inside.partition("*")
        if not star or not count.isdecimal() or int(count) < 2:
            raise ClusterError(
                f"{text!r}: say how many regions the WAN joins, two or more, as in "
                "2*h100:8x8@10gbps,80ms"
            )
        wan, one = parse_wan(link), cls.parse(name)
        if int(count) * one.devices > _MOST_DEVICES:
            raise ClusterError(f"{text!r}: more than {_MOST_DEVICES} GPUs are too many")
        return dataclasses.replace(
            one,
            name=f"{int(count)}*{one.name}@{wan.name}",
            hosts=int(count) * one.hosts,
            regions=int(count),
            wan=wan,
        )

    @classmethod
    def of_gpus(cls, device_name: str, groups: int, gpus: int) -> Cluster:
        """The cluster that so many GPUs of a kind make up.

        Args:
            device_name: What CUDA calls them.
            groups: Hosts, or where hosts share NVLink, those that do.
            gpus: GPUs in each of them.

        Raises:
            ClusterError: There is no record of such GPUs, several have them, or none
                has so many in one place.

        Example:
            >>> Cluster.of_gpus("NVIDIA H100 80GB HBM3", 2, 8).name
            'h100:2x8'
            >>> Cluster.of_gpus("NVIDIA GB200", 1, 72).name
            'gb200-nvl72:18x4'
        """
        systems = [read_system(name) for name in system_names()]
        # CUDA leaves out the memory that XLA's name has, where a GPU has but one size.
        having = [
            system
            for system in systems
            if f"{system.gpu.xla_device_name} ".startswith(f"{device_name} ")
        ]
        # Hosts that one rents have the GPUs of others, but are named after themselves.
        named = [one for one in having if one.name.startswith(one.gpu.name)]
        having = named or having
        if len(having) != 1:
            names = ", ".join(system.name for system in having)
            raise ClusterError(
                f"the GPUs are {device_name}, which "
                + (f"{names} have" if having else "no system that is known here has")
                + f": name the cluster; {_forms()}"
            )
        (system,) = having
        per_host = gpus
        if system.hosts_per_domain > 1 and gpus % system.gpus_per_host == 0:
            per_host = system.gpus_per_host
        return cls.parse(f"{system.name}:{groups * gpus // per_host}x{per_host}")

    @staticmethod
    def names() -> tuple[str, ...]:
        """The systems that `parse` knows by name.

        Example:
            >>> "a40-pcie" in Cluster.names()
            True
        """
        return system_names()

    @property
    def gpu(self) -> Gpu:
        """Every GPU of the cluster."""
        return self.system.gpu

    @property
    def inside(self) -> Link:
        """Between GPUs of one scale-up domain."""
        return self.system.inside

    @property
    def between(self) -> Link:
        """The network between domains: one GPU's share of its host's adapters.

        The share is that of a full host, also where fewer of its GPUs are in use.

        Example:
            >>> Cluster.parse("a40-nvlink:2x8").between.bytes_per_s
            12500000000.0
        """
        return self.system.between

    @property
    def levels(self) -> tuple[Link, ...]:
        """The links between GPUs, from the nearest to the farthest.

        Example:
            >>> [link.kind for link in Cluster.parse("2*h100:8x8@10gbps,80ms").levels]
            ['nvlink', 'network', 'wan']
        """
        return (self.inside, self.between, *([self.wan] if self.wan else []))

    @property
    def to_host(self) -> Link:
        """Between a GPU and its host's processor."""
        return self.system.to_host

    @property
    def devices(self) -> int:
        """GPUs in the cluster."""
        return self.hosts * self.gpus_per_host

    @property
    def scale_up_size(self) -> int:
        """GPUs in one full scale-up domain; the last domain may have fewer.

        Example:
            >>> Cluster.parse("gb200-nvl72:36x4").scale_up_size
            72
        """
        hosts = self.hosts // self.regions
        return min(hosts, self.system.hosts_per_domain) * self.gpus_per_host

    def domains_of(self, ranks: Iterable[int]) -> int:
        """Number of scale-up domains that the GPUs with these ids are in.

        Raises:
            ClusterError: an id is not in the cluster.
        """
        return self._groups_of(ranks, self.scale_up_size)

    def hosts_of(self, ranks: Iterable[int]) -> int:
        """Number of hosts that the GPUs with these ids are in.

        Raises:
            ClusterError: an id is not in the cluster.

        Example:
            >>> Cluster.parse("gb200-nvl72:18x4").hosts_of(range(8))
            2
        """
        return self._groups_of(ranks, self.gpus_per_host)

    def regions_of(self, ranks: Iterable[int]) -> int:
        """Number of regions that the GPUs with these ids are in.

        Raises:
            ClusterError: an id is not in the cluster.

        Example:
            >>> Cluster.parse("2*h100:1x8@10gbps,80ms").regions_of(range(0, 16, 8))
            2
        """
        return self._groups_of(ranks, self.region_size)

    @property
    def region_size(self) -> int:
        """GPUs in one region.

        Example:
            >>> Cluster.parse("2*h100:8x8@10gbps,80ms").region_size
            64
        """
        return self.devices // self.regions

    def _groups_of(self, ranks: Iterable[int], size: int) -> int:
        ids = set(ranks)
        if ids and (min(ids) < 0 or max(ids) >= self.devices):
            raise ClusterError(
                f"the program uses device ids that {self.name} does not have (it has "
                f"0 to {self.devices - 1}): name a cluster of the size that the "
                "program was compiled for"
            )
        return len({rank // size for rank in ids})

    def as_dict(self) -> dict[str, object]:
        """The cluster and all figures that belong to it, as JSON-ready data.

        Example:
            >>> Cluster.parse("h100:8x8").as_dict()["devices"]
            64
        """
        return {
            "name": self.name,
            "system": self.system.title,
            "hosts": self.hosts,
            "gpus_per_host": self.gpus_per_host,
            "devices": self.devices,
            "scale_up_size": self.scale_up_size,
            "gpu": self.gpu.as_dict(),
            "inside": self.inside.as_dict(),
            "between": self.between.as_dict(),
            "to_host": self.to_host.as_dict(),
            **(
                {"regions": self.regions, "wan": self.wan.as_dict()} if self.wan else {}
            ),
        }


def _forms() -> str:
    return (
        "write NAME:HOSTSxGPUS, such as h100:8x8, or NAME:GPUS, or NAME alone, where "
        f"NAME is one of {', '.join(system_names())}, or the path of a system record"
    )


def _counts(text: str, size: str, system: System) -> tuple[int, int]:
    full = system.gpus_per_host
    if not size:
        return system.hosts_per_domain, full
    match = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", size)
    if not match:
        raise ClusterError(f"{text!r} is no cluster; {_forms()}")
    gpus = int(match[2])
    if match[1]:
        hosts = int(match[1])
    elif gpus <= full:
        hosts = 1
    elif gpus % full == 0:
        hosts, gpus = gpus // full, full
    else:
        raise ClusterError(
            f"{text!r}: {gpus} GPUs do not fill hosts of {full}; "
            "say how many hosts, as in NAME:HOSTSxGPUS"
        )
    if gpus > full:
        raise ClusterError(
            f"{text!r}: a host of this system has {full} GPUs, not {gpus}; "
            "the form is NAME:HOSTSxGPUS"
        )
    if hosts * gpus > _MOST_DEVICES:
        raise ClusterError(
            f"{text!r}: {hosts * gpus} GPUs are too many, the limit is {_MOST_DEVICES}"
        )
    return hosts, gpus
