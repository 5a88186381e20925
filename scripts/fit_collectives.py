"""Fits the times of collectives at NCCL's default setting to the measurements.

    python scripts/fit_collectives.py

Two tables: NCCL alone (`nccl_alone.csv`), and single programs (`collectives.csv`),
whose times on an H100 and a B200 include the host's launch. Per GPU and kind: the
coefficients of a form (`lagom_jax/cost/structure.py`), what the launch adds and how
many times as long sums take in such programs, then a smooth correction over
log2(bytes), log2(ranks) and protocols, a Gaussian process with a Matern kernel. All
are robust: a row far from its neighbours counts less, so that warm-up outliers do not
bend the fit. The protocol of a row is what NCCL of that version chooses by its own
model. Prints the errors on the rows that were fitted and on rows kept out in turn, and
writes `lagom_jax/cost/collectives/*.json`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from collective_surfaces import (
    COST,
    SUMS,
    TABLE_NCCL,
    Launch,
    Rows,
    Smoothness,
    errors,
    fit,
    read,
    smoothness,
)
from fit_scores import compact, scores, show

from lagom_jax.cluster import Cluster
from lagom_jax.cost.surface import Surface

# GPU in the measurements -> (record to write, a cluster of it)
MEASURED = {
    "a100-sxm": ("a100", "a100:1x8"),
    "h100-sxm": ("h100", "h100:1x8"),
    "h200-sxm": ("h200", "h200:1x8"),
    "b200": ("b200", "b200:1x8"),
    "gb200-nvl72": ("gb200", "gb200-nvl72:18x4"),
    "l40s": ("l40s", "l40s:1x8"),
}
# GPU that nobody measured -> the one that stands in, and why
STAND_INS = {
    "a40": ("a100", "the nearest measured; scaled to the rate of the link"),
    "b300": ("b200", "the same links"),
    "gb300": ("gb200", "the same links"),
    "rtx-pro-6000": ("l40s", "the nearest measured; scaled to the rate of the link"),
}
# Kinds of which a GPU has no rows of its own -> whose form and correction it takes.
BORROWED_KINDS = {"a100": "h100", "h200": "h100", "l40s": "h100"}


def folds(rows: Rows) -> dict[str, list[np.ndarray]]:
    """What is kept out together: every seventh row, a size, a group size, a job size.

    Sizes and group sizes at the ends of the measured range are fitted always: leaving
    them out asks for extrapolation, which the others do not.
    """
    sizes = np.round(np.log2(rows.nbytes))
    own = rows.own > 0
    inner = sorted(set(sizes))[1:-1]
    ranks = sorted(set(rows.ranks[own]))
    jobs = sorted(set(rows.devices[own]))
    found = {
        "rows": [np.arange(len(rows)) % 7 == i for i in range(7)],
        "sizes": [sizes == size for size in inner],
        "group sizes": [rows.ranks == n for n in ranks[1:-1]],
        "job sizes": [rows.devices == n for n in jobs] if len(ranks) > 2 else [],
    }
    return {
        name: [part for part in parts if own[part].any()]
        for name, parts in found.items()
    }


Found = list[tuple[float, float, bool]]
"""Bytes and error of rows, and whether they include a launch."""


def judge(
    kind: str, rows: Rows, cluster: Cluster, how: Smoothness
) -> tuple[Surface, Launch, dict[str, Found]]:
    """The fit to all rows, and the errors on fitted rows and on rows kept out."""

    def scored(fitted: tuple[Surface, Launch], part: Rows) -> Found:
        off = errors(fitted, part, cluster)
        return [*zip(part.nbytes, off, part.launched > 0, strict=True)]

    whole = fit(kind, rows, cluster, how)
    found = {"fitted": scored(whole, rows[rows.own > 0])}
    for name, parts in folds(rows).items():
        found[f"kept out: {name}"] = []
        for out in parts:
            part = fit(kind, rows[~out], cluster, how)
            found[f"kept out: {name}"] += scored(part, rows[out & (rows.own > 0)])
    return *whole, found


def judged_parts(found: dict[str, Found]) -> dict[str, Any]:
    """Scores of NCCL alone and of single programs apart."""
    result: dict[str, Any] = {}
    for key, rows in found.items():
        for words, launched in (("", False), (", with the launch", True)):
            part = [(nbytes, off) for nbytes, off, has in rows if has == launched]
            if part:
                result[key + words] = scores(part)
    return result


def record_of(measured: str, name: str, cluster: Cluster) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    launches: dict[str, Any] = {}
    longer: dict[str, Any] = {}
    total: dict[str, Found] = {}
    for kind, rows in read(measured, cluster).items():
        how = smoothness(kind, cluster)
        surface, launch, found = judge(kind, rows, cluster, how)
        judged = judged_parts(found)
        show(measured, kind, judged)
        for key, pairs in found.items():
            total.setdefault(key, []).extend(pairs)
        launches[kind] = {
            str(n): [round(us * 1e-6, 9) for us in (one.below, one.above)]
            for n, one in launch.items()
        }
        if kind in SUMS and launch:
            longer[kind] = {str(n): one.times for n, one in launch.items()}
        kinds[kind] = {
            "source": f"fitted to {int(rows.own.sum())} rows of "
            "measured/nccl_alone.csv and collectives.csv by scripts/fit_collectives.py",
            "form": dataclasses.asdict(surface.form),
            "correction": {
                "ranks": [round(2**x) for x in surface.log2_ranks],
                "log2_bytes": [int(x) for x in surface.log2_bytes],
                "factors": {
                    protocol: np.exp(table).round(4).tolist()
                    for protocol, table in surface.factors.items()
                },
                "by_older_version": {
                    version: {
                        protocol: np.exp(table).round(4).tolist()
                        for protocol, table in factors.items()
                    }
                    for version, factors in surface.by_older_version.items()
                },
            },
            "errors": judged,
        }
    judged = judged_parts(total)
    show(measured, "all", judged)
    return {
        "gpu": name,
        "measured": measured,
        "link": cluster.inside.kind,
        "source": f"fitted to published measurements of {measured}",
        "peak_bytes_per_s": cluster.inside.bytes_per_s,
        "errors": judged,
        "launch_in_table_seconds": {
            "value": launches,
            "nccl": TABLE_NCCL,
            "source": "median of what short rows of measured/collectives.csv take "
            "longer than NCCL alone, below 1 MiB and above, by the ranks of a group",
        },
        "times_as_long_in_table": {
            "value": longer,
            "source": "median of what long sums of measured/collectives.csv take, "
            "without that, over NCCL alone; from 1 MiB on, by the ranks of a group",
        },
        "kinds": kinds,
    }


def write(name: str, record: dict[str, Any]) -> None:
    path = COST / "collectives" / f"{name}.json"
    path.write_text(compact(record) + "\n")


def main() -> None:
    records = {
        name: record_of(measured, name, Cluster.parse(spelled))
        for measured, (name, spelled) in MEASURED.items()
    }
    for name, origin in BORROWED_KINDS.items():
        for kind, item in records[origin]["kinds"].items():
            kept = {key: value for key, value in item.items() if key != "errors"}
            kept["source"] = f"estimated: not measured; {origin} stands in"
            kept["peak_bytes_per_s"] = records[origin]["peak_bytes_per_s"]
            if records[name]["link"] == "pcie":
                # What goes through the processors is shared whoever asks for it.
                fall = records[name]["kinds"]["all-to-all"]["form"]["fall"]
                kept["form"] = {**kept["form"], "fall": fall}
                kept["source"] += ", with the fall of all-to-alls"
            records[name]["kinds"].setdefault(kind, kept)
    for name, record in records.items():
        write(name, record)
    for name, (other, why) in STAND_INS.items():
        write(
            name,
            {
                "gpu": name,
                "stands_in": other,
                "source": f"not measured; {other} stands in: {why}",
            },
        )


if __name__ == "__main__":
    main()
