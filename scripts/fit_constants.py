"""Fits the cost constants to the measurements that ship with the package.

Prints what was fitted to what and how far the fit is from every measurement it used,
and writes `lagom_jax/cost/constants/*.json`. Run it again after adding measurements:

    python scripts/fit_constants.py

Matmuls: the median share of the dense peak over the larger half of the measured shapes.
Collectives have a fit of their own, `scripts/fit_collectives.py`.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lagom_jax.cluster import Cluster

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
# GPU in the measurements -> (record to write, a cluster of it)
MEASURED = {
    "h100-sxm": ("h100", "h100:1x8"),
    "b200": ("b200", "b200:1x8"),
    "gb200-nvl72": ("gb200", "gb200-nvl72:18x4"),
}
# GPU that nobody measured -> the one whose efficiencies are taken over
ESTIMATED = {"h200": "h100", "a100": "h100", "a40": "h100"}
LARGE_MATMUL_FLOPS = 5e10
TYPES = {"bf16xbf16->bf16": "bf16", "f32xf32->f32": "tf32"}


def fit_matmuls(gpu: str, cluster: Cluster) -> dict[str, float]:
    shares: dict[str, list[float]] = defaultdict(list)
    with (COST / "measured" / "matmuls.csv").open() as file:
        for row in csv.DictReader(file):
            kind = TYPES.get(row["types"])
            size = math.prod(int(row[c]) for c in ("batch", "m", "n", "k")) * 2
            if row["gpu"] == gpu and kind and size >= LARGE_MATMUL_FLOPS:
                rate = size / float(row["microseconds"]) * 1e6
                shares[kind].append(rate / cluster.gpu.dense_flops_per_s[kind])
    for kind, found in shares.items():
        low, high = np.percentile(found, [10, 90])
        print(
            f"{gpu:12} matmul {kind:12} {len(found):4} points  median"
            f" {statistics.median(found):.2f} of peak, p10 {low:.2f}, p90 {high:.2f}"
        )
    return {kind: _rounded(statistics.median(v)) for kind, v in shares.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _kernels(matmuls: dict[str, float], source: str) -> dict[str, Any]:
    typical = matmuls.get("bf16", 0.7)
    return {
        "matmul_efficiency": {"value": {**matmuls, "other": typical}, "source": source},
        "memory_efficiency": {
            "value": 0.85,
            "source": "estimated: streaming kernels usually reach 80-90 % of the peak",
        },
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
        matmuls = fit_matmuls(measured, cluster)
        source = "fitted to measured/matmuls.csv: median share of the dense peak"
        if not matmuls:
            matmuls = fit_matmuls("b200", Cluster.parse("b200:1x8"))
            source = "estimated: as fitted for b200, which has the same chip"
        records[name] = {
            "gpu": name,
            "calibrated": True,
            "source": f"matmul rates fitted to published measurements of "
            f"{measured}; memory, launch and network figures estimated",
            "kernels": _kernels(matmuls, source),
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
