"""Regions and the links between them, for planning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lagom_jax.cluster.wan import parse_wan
from lagom_jax.errors import RegionError
from lagom_jax.regions.volume import sent_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Wan:
    """All links between regions, as far as an exchange depends on them.

    Example:
        >>> wan = Wan.between(["eu-us=10gbps,80ms", "us-asia=5gbps,120ms"])
        >>> wan.regions, wan.bytes_per_s, wan.latency_s
        (('asia', 'eu', 'us'), 625000000.0, 0.12)
    """

    regions: tuple[str, ...]
    bytes_per_s: float
    """Of the slowest link, each way."""
    latency_s: float
    """Of the longest link."""
    direct: bool
    """True if each pair of regions has a link of its own."""

    @classmethod
    def between(cls, words: Iterable[str]) -> Wan:
        """The links that words such as `eu-us=10gbps,80ms` describe.

        Raises:
            RegionError: A word has another form, or a region cannot be reached.
            ClusterError: A link has another form.
        """
        pairs: dict[frozenset[str], str] = {}
        for word in words:
            ends, equals, link = word.partition("=")
            one, dash, other = ends.partition("-")
            if not equals or not dash or not one or not other or one == other:
                raise RegionError(
                    f"{word!r} is no link: name its two ends, as in eu-us=10gbps,80ms"
                )
            pairs[frozenset((one, other))] = link
        if not pairs:
            raise RegionError("there must be a link, as in eu-us=10gbps,80ms")
        links = [parse_wan(link) for link in pairs.values()]
        names = sorted({name for pair in pairs for name in pair})
        apart = set(names) - _reached(names[0], pairs)
        if apart:
            raise RegionError(
                f"no link leads from {names[0]} to {', '.join(sorted(apart))}"
            )
        return cls(
            tuple(names),
            min(link.bytes_per_s for link in links),
            max(link.latency_s for link in links),
            direct=len(pairs) == len(names) * (len(names) - 1) // 2,
        )

    @classmethod
    def shared(cls, regions: int, link: str) -> Wan:
        """So many regions, each with one such link to all others.

        Example:
            >>> Wan.shared(4, "1gbps,100ms").bytes_per_s
            125000000.0
        """
        made = parse_wan(link)
        names = tuple(f"region{n}" for n in range(regions))
        return cls(names, made.bytes_per_s, made.latency_s, direct=False)

    def carried_bytes(self, size: int, bits: int) -> float:
        """Bytes that one link carries, each way, for an exchange of so many numbers.

        Where each pair has a link of its own, it carries one message; otherwise one
        link carries those for all other regions. In 32 bits they go around a ring.
        """
        count = len(self.regions)
        if bits == 32 or not self.direct:
            return sent_bytes(size, bits, count)
        return sent_bytes(size, bits, 2)

    def seconds(self, size: int, bits: int) -> float:
        """Seconds from a send to its arrival.

        Example:
            >>> round(Wan.shared(2, "1gbps,100ms").seconds(1000, 32), 3)
            0.1
        """
        return self.latency_s + self.carried_bytes(size, bits) / self.bytes_per_s


def _reached(start: str, pairs: Iterable[frozenset[str]]) -> set[str]:
    found, grown = {start}, True
    while grown:
        more = {name for pair in pairs if pair & found for name in pair}
        grown = bool(more - found)
        found |= more
    return found
