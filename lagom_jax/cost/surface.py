"""Calibrated times of collectives at NCCL's default setting, from the records.

A surface is a form with fitted coefficients (`structure.py`) times a smooth correction
that is tabulated over bytes and ranks and interpolated between its knots. Where a GPU
was not measured, that of the nearest one stands in, scaled to the link's rate.
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

from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.span import Span
from lagom_jax.cost.structure import EXCHANGED_KINDS, Exchanged, Form, Streamed
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
    factors: Floats
    """Log of measured over form: a row per rank knot."""
    peak: float
    """Bytes per second of the link that was measured."""

    def seconds(
        self, nbytes: float, span: Span, peak: float, facts: NcclFacts
    ) -> float:
        """Seconds alone; `peak` is the link's bytes per second and direction."""
        base = self.form.microseconds(self.kind, nbytes, span, peak, facts)
        # On another link, what counts is how long the bytes take, not how many.
        factor = self.correction(nbytes * self.peak / peak, span.pairs or span.size)
        return base * factor * 1e-6

    def correction(self, nbytes: float, ranks: int) -> float:
        """What the form is multiplied by; outside the knots, that of the edge."""
        x = math.log2(max(nbytes, 1.0))
        rows = [
            float(np.interp(x, self.log2_bytes, row))
            for row in cast("list[Floats]", list(self.factors))
        ]
        return math.exp(float(np.interp(math.log2(ranks), self.log2_ranks, rows)))


@dataclasses.dataclass(frozen=True, slots=True)
class Surfaces:
    """The surfaces that hold for a GPU.

    Example:
        >>> load_surfaces("h100").calibrated, load_surfaces("a100").calibrated
        (True, False)
    """

    gpu: str
    calibrated: bool
    """False where another GPU's measurements stand in."""
    source: str
    by_kind: Mapping[str, Surface]

    def of(self, kind: str) -> Surface:
        """The surface of a kind, or that of the measured kind nearest to it."""
        return self.by_kind[_STAND_INS.get(kind, kind)]


@functools.cache
def load_surfaces(gpu: str) -> Surfaces:
    """The surfaces of a GPU.

    Raises:
        ClusterError: No record is about that GPU.
    """
    record = load_record(gpu)
    if "stands_in" in record:
        other = load_surfaces(record["stands_in"])
        return Surfaces(gpu, False, record["source"], other.by_kind)
    return Surfaces(
        gpu,
        True,
        record["source"],
        {kind: _surface(kind, record) for kind in record["kinds"]},
    )


def load_record(gpu: str) -> dict[str, Any]:
    """The record about a GPU as it is in its file.

    Example:
        >>> load_record("a100")["stands_in"]
        'h100'
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "collectives"
    path = folder / f"{gpu}.json"
    if not path.is_file():
        raise ClusterError(
            f"there are no measured collectives for the GPU '{gpu}', nor a GPU that "
            "stands in for it; known are "
            + ", ".join(sorted(p.name[:-5] for p in folder.iterdir()))
        )
    return json.loads(path.read_text())


def _surface(kind: str, record: dict[str, Any]) -> Surface:
    item = record["kinds"][kind]
    form = Exchanged if kind in EXCHANGED_KINDS else Streamed
    table = item["correction"]
    return Surface(
        kind,
        form(**item["form"]),
        np.log2(np.array(table["ranks"], dtype=float)),
        np.array(table["log2_bytes"], dtype=float),
        np.log(np.array(table["factors"], dtype=float)),
        record["peak_bytes_per_s"],
    )
