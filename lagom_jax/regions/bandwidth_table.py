"""Needed bandwidth for three sizes of models, beside what was published."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lagom_jax.regions.utilisation import RegionModel, Training

_PUBLISHED = Path(__file__).parent / "published.json"


@dataclasses.dataclass(frozen=True, slots=True)
class BandwidthEntry:
    """One entry: a method, a model, a utilisation."""

    method: str
    model: str
    utilisation: float
    predicted: float
    """Gbit/s of the replay."""
    published: float
    """Gbit/s of the paper's simulation, which tried bandwidths 21 % apart."""

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def entries() -> Iterator[BandwidthEntry]:
    """Every entry of the published table, predicted anew.

    Two regions; gradients and outer gradients of 16 bits, 4 where it says so; 3 layers
    in a fragment; overlapped ones may be one step late.

    Example:
        >>> one = next(entries())
        >>> one.method, one.model, one.published
        ('data parallel', '1B', 86.8)
    """
    table: dict[str, Any] = json.loads(_PUBLISHED.read_text(encoding="utf-8"))
    for method, models in table["gbit_per_s"].items():
        for model, row in models.items():
            shape = table["models"][model]
            training = _training(method, RegionModel(**shape))
            for target, published in zip(table["utilisation"], row, strict=True):
                gbit = training.needed(target) * 8 / 1e9
                yield BandwidthEntry(method, model, target, gbit, published)


def _training(method: str, workload: RegionModel) -> Training:
    if method == "data parallel":
        return Training(workload, 16, period=1)
    if method == "diloco":
        return Training(workload, 16, period=100)
    return Training(
        workload,
        bits=4 if "4 bits" in method else 16,
        period=100,
        fragments=workload.layers // 3,
        delay=int("overlapped" in method),
    )
