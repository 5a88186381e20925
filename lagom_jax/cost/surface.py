"""Calibrated times of collectives at NCCL's default setting, from the records.

A surface is a form with fitted coefficients (`structure.py`) times a smooth correction
that is tabulated over bytes and ranks and interpolated between its knots. Where a GPU
was not measured, that of the nearest one stands in, scaled to the link's rate; over
PCIe, one that was measured over PCIe, since many cards there share a way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lagom_jax.cost.nccl_facts import NcclFacts, numbers_of
from lagom_jax.cost.peers import default_parts
from lagom_jax.cost.span import Span
from lagom_jax.cost.spread import (
    NOTHING_MISSED,
    Spread,
    borrowed,
    estimates,
    spread_of,
)
from lagom_jax.cost.structure import (
    EXCHANGED_KINDS,
    Exchanged,
    Form,
    Parted,
    Streamed,
)
from lagom_jax.errors import ClusterError

Floats = npt.NDArray[np.float64]

_STAND_INS = {
    "ragged-all-to-all": "all-to-all",
    "collective-broadcast": "all-gather",
    "send": "collective-permute",
    "recv": "collective-permute",
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Times of one kind of collective inside one domain of one GPU."""

    kind: str
    form: Form
    log2_ranks: Floats
    """Knots of the correction, ranks or the pairs of a permute; so too the next."""
    log2_bytes: Floats
    factors: Mapping[str, Floats]
    """By protocol the log of measured over form: a row per rank knot."""
    peak: float
    """Bytes per second of the link that was measured."""
    by_older_version: Mapping[str, Mapping[str, Floats]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, Floats]]
    )
    """The same for versions of NCCL that were measured, older than the newest."""
    spread: Spread = NOTHING_MISSED
    """Error left over, of collectives of 1 MiB and more and of smaller ones."""

    def parted(
        self, nbytes: float, span: Span, peak: float, facts: NcclFacts, protocol: str
    ) -> Parted:
        """Seconds of latency and of the transfer, alone, in a protocol.

        Args:
            nbytes: Bytes on the larger side of the op.
            span: How its groups lie on the cluster; as if in one domain.
            peak: The link's bytes per second and direction.
            facts: NCCL's constants.
            protocol: The protocol; sends and receives have the channels of NCCL's own.
        """
        form, kind = self.form, self.kind
        if isinstance(form, Streamed):
            found = form.parted(kind, nbytes, span.size, peak, protocol)
        else:
            parts = default_parts(kind, nbytes, span.size, facts)
            parts = dataclasses.replace(parts, protocol=protocol)
            found = form.parted(kind, nbytes, span, peak, parts)
        # On another link, what counts is how long the bytes take, not how many.
        size = nbytes * self.peak / peak
        ranks = span.pairs or span.size
        factor = 1e-6 * self.correction(size, ranks, protocol, facts.version)
        return found[0] * factor, found[1] * factor

    def reached(self, span: Span, facts: NcclFacts, protocol: str) -> float:
        """Share of a GPU's part of the link that the largest messages reach.

        Args:
            span: How the groups lie on the cluster; as if in one domain.
            facts: NCCL's constants.
            protocol: The protocol.
        """
        ranks = span.pairs or span.size
        factor = self.correction(math.inf, ranks, protocol, facts.version)
        return min(1.0, self.form.share_in(protocol) / factor)

    def correction(
        self, nbytes: float, ranks: int, protocol: str, version: str = ""
    ) -> float:
        """Factor of the form; outside the knots, that of the edge."""
        x = math.log2(max(nbytes, 1.0))
        known = _measured_as(version, tuple(self.by_older_version))
        factors = self.by_older_version.get(known, self.factors)
        table = factors.get(protocol)
        if table is None:
            table = factors["simple"]
        rows = [
            float(np.interp(x, self.log2_bytes, row))
            for row in cast("list[Floats]", list(table))
        ]
        return math.exp(float(np.interp(math.log2(ranks), self.log2_ranks, rows)))


@dataclasses.dataclass(frozen=True, slots=True)
class Surfaces:
    """The surfaces that hold for a GPU.

    Example:
        >>> load_surfaces("h100").calibrated, load_surfaces("a40").calibrated
        (True, False)
    """

    gpu: str
    calibrated: bool
    """False where another GPU's measurements stand in."""
    source: str
    by_kind: Mapping[str, Surface]
    launches: Mapping[str, Mapping[str, tuple[float, float]]]
    """Seconds of the host's launch that a table of single programs has below 1 MiB and
    above, by kind and
    by the ranks of a group."""
    nccl: str
    """NCCL's version there."""
    longer: Mapping[str, Mapping[str, float]]
    """Times as long as NCCL alone that sums of 1 MiB and more take there, likewise."""
    fall_range: tuple[float, float] | None = None
    """In which the forms' `fall` lies, where it is an estimate."""

    def with_fall(self, fall: float) -> Surfaces:
        """The same with another fall in every form.

        Example:
            >>> pcie = load_surfaces("a40", "pcie")
            >>> {one.form.fall for one in pcie.with_fall(0.5).by_kind.values()}
            {0.5}
        """
        return dataclasses.replace(
            self,
            by_kind={
                kind: dataclasses.replace(
                    surface, form=dataclasses.replace(surface.form, fall=fall)
                )
                for kind, surface in self.by_kind.items()
            },
        )

    def of(self, kind: str) -> Surface:
        """The surface of a kind, or that of the measured kind nearest to it."""
        return self.by_kind[_STAND_INS.get(kind, kind)]


@functools.cache
def load_surfaces(gpu: str, link: str = "nvlink") -> Surfaces:
    """The surfaces of a GPU.

    Args:
        gpu: As in `Gpu.name`.
        link: Kind of the link inside a domain: `nvlink` or `pcie`.

    Raises:
        ClusterError: No record is about that GPU.

    Example:
        >>> load_surfaces("a40", "pcie").source
        'not measured over PCIe; l40s stands in, what many share is estimated'
        >>> load_surfaces("l40s", "pcie").calibrated
        True
    """
    record = load_record(gpu)
    if link == "pcie" and record.get("link") != "pcie":
        return _over_pcie(gpu)
    if "stands_in" in record:
        other = load_surfaces(record["stands_in"])
        return _standing_in(other, gpu, record["source"])
    return Surfaces(
        gpu,
        True,
        record["source"],
        {kind: _surface(kind, record) for kind in record["kinds"]},
        record["launch_in_table_seconds"]["value"],
        record["launch_in_table_seconds"]["nccl"],
        record["times_as_long_in_table"]["value"],
    )


def _over_pcie(gpu: str) -> Surfaces:
    """Those of the GPU measured over PCIe, with what its host decides left open."""
    record = estimates("pcie.json")
    name, fall = record["stands_in"]["value"], record["fall"]
    source = f"not measured over PCIe; {name} stands in, what many share is estimated"
    found = _standing_in(load_surfaces(name, "pcie"), gpu, source)
    # What its form misses of more than two is of its own host.
    by_kind = {kind: _as_of_two(of) for kind, of in found.by_kind.items()}
    low, high = fall["range"]
    found = dataclasses.replace(found, by_kind=by_kind, fall_range=(low, high))
    return found.with_fall(fall["value"])


def _as_of_two(surface: Surface) -> Surface:
    """With the correction of the fewest ranks for any, and what two of them do."""
    form = surface.form
    if isinstance(form, Streamed):
        form = dataclasses.replace(form, first_bytes=0.0, first_saved=0.0)
    factors = {name: rows[:1] for name, rows in surface.factors.items()}
    return dataclasses.replace(
        surface,
        form=form,
        log2_ranks=surface.log2_ranks[:1],
        factors=factors,
        by_older_version={},
    )


def _standing_in(other: Surfaces, gpu: str, source: str) -> Surfaces:
    return dataclasses.replace(
        other,
        gpu=gpu,
        calibrated=False,
        source=source,
        by_kind={
            kind: dataclasses.replace(surface, spread=borrowed("collectives"))
            for kind, surface in other.by_kind.items()
        },
    )


def load_record(gpu: str) -> dict[str, Any]:
    """The record about a GPU as it is in its file.

    Example:
        >>> load_record("a40")["stands_in"]
        'a100'
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "collectives"
    path = folder / f"{gpu}.json"
    if not path.is_file():
        raise ClusterError(
            f"there are no measured collectives for the GPU '{gpu}', nor a GPU that "
            "stands in for it; known are "
            + ", ".join(sorted(p.name[:-5] for p in folder.iterdir()))
            + ". How to add one: 'Add a GPU' in CONTRIBUTING.md"
        )
    return json.loads(path.read_text())


def _surface(kind: str, record: dict[str, Any]) -> Surface:
    item = record["kinds"][kind]
    form = Exchanged if kind in EXCHANGED_KINDS else Streamed
    table = item["correction"]
    older = table.get("by_older_version", {})
    return Surface(
        kind,
        form(**item["form"]),
        np.log2(np.array(table["ranks"], dtype=float)),
        np.array(table["log2_bytes"], dtype=float),
        _logs(table["factors"]),
        item.get("peak_bytes_per_s", record["peak_bytes_per_s"]),
        {version: _logs(factors) for version, factors in older.items()},
        spread_of(
            item.get("errors", {}),
            "1 MiB and more",
            "below 1 MiB",
            borrowed("collectives"),
        ),
    )


@functools.lru_cache(maxsize=256)
def _measured_as(version: str, measured: tuple[str, ...]) -> str:
    """The measured version that a version is: 2.23 if it is 2.23.4-1."""
    if version and measured:
        numbers = numbers_of(version)
        for known in measured:
            short = numbers_of(known)
            if numbers[: len(short)] == short:
                return known
    return ""


def _logs(factors: Mapping[str, Any]) -> dict[str, Floats]:
    return {
        protocol: np.log(np.array(rows, dtype=float))
        for protocol, rows in factors.items()
    }
