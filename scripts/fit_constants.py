"""Fits the cost constants to the measurements that ship with the package.

Prints what was fitted to what and how far the fit is from every measurement it used,
and writes `lagom_jax/cost/constants/*.json`. Run it again after adding measurements:

    python scripts/fit_constants.py

Collectives: `seconds = latency + per_rank * ranks + wire_bytes / (peak * efficiency)`,
least squares of the relative error, coefficients kept from going negative. Matmuls have
`scripts/fit_matmuls.py`.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import wire_bytes

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
# GPU in the measurements -> (record to write, a cluster of it)
MEASURED = {
    "h100-sxm": ("h100", "h100:1x8"),
    "b200": ("b200", "b200:1x8"),
    "gb200-nvl72": ("gb200", "gb200-nvl72:18x4"),
}
# GPU that nobody measured -> the one whose efficiencies are taken over
ESTIMATED = {"h200": "h100", "a100": "h100", "a40": "h100"}
SMALLEST_FITTED_BYTES = 1 << 16


def fit_collectives(gpu: str, cluster: Cluster) -> dict[str, Any]:
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with (COST / "measured" / "collectives.csv").open() as file:
        for row in csv.DictReader(file):
            nbytes = int(row["tensor_bytes"])
            if row["gpu"] != gpu or nbytes < SMALLEST_FITTED_BYTES:
                continue
            ranks = int(row["group_size"] or 2)
            moved = wire_bytes(row["op"], nbytes, ranks)
            rows[row["op"]].append((ranks, moved, float(row["microseconds"]) * 1e-6))
    fitted: dict[str, Any] = {}
    for kind, points in sorted(rows.items()):
        latency, per_rank, per_byte = _non_negative(points)
        errors = [
            abs((latency + per_rank * n + per_byte * b) / t - 1) for n, b, t in points
        ]
        median, worst = statistics.median(errors), np.percentile(errors, 90)
        print(
            f"{gpu:12} {kind:19} {len(points):4} points"
            f"  latency {latency * 1e6:6.1f} us + {per_rank * 1e6:5.2f} us/rank"
            f"  {1 / per_byte / 1e9:6.1f} GB/s"
            f"  error median {median:5.1%} p90 {worst:5.1%}"
        )
        fitted[kind] = {
            "value": {
                "latency_seconds": _rounded(latency),
                "latency_seconds_per_rank": _rounded(per_rank),
                "efficiency": _rounded(1 / per_byte / cluster.inside.bytes_per_s),
            },
            "source": f"fitted to {len(points)} rows of measured/collectives.csv; "
            f"error of the fit: median {median:.0%}, 90th percentile {worst:.0%}",
        }
    return fitted


def _non_negative(points: list[tuple[float, float, float]]) -> list[float]:
    """Least squares of the relative error; what would go negative becomes zero."""
    table = np.array(points)
    columns = np.stack([np.ones(len(table)), table[:, 0], table[:, 1]], axis=1)
    columns /= table[:, 2:3]
    if len(set(table[:, 0])) == 1:
        columns[:, 1] = 0
    active = [i for i in range(3) if columns[:, i].any()]
    while True:
        found, *_ = np.linalg.lstsq(columns[:, active], np.ones(len(table)), rcond=None)
        if (found >= 0).all():
            result = [0.0, 0.0, 0.0]
            for i, value in zip(active, found, strict=True):
                result[i] = float(value)
            return result
        del active[int(found.argmin())]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _kernels() -> dict[str, Any]:
    return {
        "launch_seconds": {
            "value": 4e-6,
            "source": "estimated: start, drain and gap of one kernel on a stream",
        },
        "network_efficiency": {
            "value": 0.9,
            "source": "estimated: payload share of RDMA traffic at large messages",
        },
        "network_latency_seconds": {
            "value": 1.2e-5,
            "source": "estimated: one hop through two network cards and a switch",
        },
        "one_shot_seconds": {
            "value": 5e-6,
            "source": "estimated: a kernel launch and a barrier over peer memory",
        },
    }


def _write(name: str, record: dict[str, Any]) -> None:
    path = COST / "constants" / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    records: dict[str, dict[str, Any]] = {}
    for measured, (name, spelled) in MEASURED.items():
        cluster = Cluster.parse(spelled)
        records[name] = {
            "gpu": name,
            "calibrated": True,
            "source": f"link and matmul rates fitted to published measurements of "
            f"{measured}; memory, launch and network figures estimated",
            "kernels": _kernels(),
            "collectives": fit_collectives(measured, cluster),
        }
    for name, origin in ESTIMATED.items():
        records[name] = {
            **records[origin],
            "gpu": name,
            "calibrated": False,
            "source": f"shares of the peaks taken over from {origin}",
        }
    for name, record in records.items():
        _write(name, record)


if __name__ == "__main__":
    main()
