"""Fits what networks between hosts reach, to NCCL's own tests over two hosts.

    python scripts/fit_networks.py

Four constants a network: the share of its nominal rate, what crossing it adds to the
latency, and how slowly the rate is reached, by all-reduces and by others
(`lagom_jax/cost/network.py`). They are fitted to `lagom_jax/cost/measured/network.csv`,
each network to its own rows, and `any` to all of them alike, for networks that nobody
measured. Of each network one kind alone was measured: the ramp of the other is that of
`any`, fitted to the other networks. Prints the errors, those of
`any` for a network that was left out of its fit too, and writes
`lagom_jax/cost/constants/networks.json`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.constants import NetworkConstants, elsewhere, load_constants
from lagom_jax.cost.span import Span
from lagom_jax.cost.spread import TENTH_BEYOND
from lagom_jax.measurements.rows import read_collectives

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
# The network's rows -> systems that have it.
SYSTEMS = {
    ("a100-sxm", 6.25e9): "p4de",
    ("h100-sxm", 50e9): "p5",
    ("h100-sxm", 25e9): "a3-mega",
    ("h200-sxm", 50e9): "a3-ultra",
}
START = np.log([0.9, 4e-5, 3.0, 3.0])
# How far, as factors of e, the constants may be from where they start.
SPREAD = np.array([0.15, 1.0, 1.0, 1.0])
ROBUST = 0.15


@dataclasses.dataclass(frozen=True)
class Row:
    """One all-gather or all-reduce over two hosts of eight."""

    system: str
    kind: str
    nbytes: float
    microseconds: float


def read() -> list[Row]:
    rows = read_collectives((COST / "measured" / "network.csv").read_text()).rows
    return [
        Row(
            SYSTEMS[row.gpu, row.network_bytes_per_s],
            row.op,
            float(row.tensor_bytes),
            row.microseconds,
        )
        for row in rows
    ]


def constants_of(point: np.ndarray) -> NetworkConstants:
    efficiency, crossing, ramp, tree_ramp = np.exp(point)
    return NetworkConstants(min(1.0, efficiency), crossing, ramp, tree_ramp)


def errors(rows: list[Row], point: np.ndarray, any_: bool = True) -> np.ndarray:
    """Logs of predicted over measured; `any_` is of cards of another rate."""
    found: list[float] = []
    for row in rows:
        cluster = Cluster.parse(f"{row.system}:2x8")
        network = constants_of(point)
        if any_:
            network = elsewhere(network, cluster.between.bytes_per_s)
        constants = dataclasses.replace(load_constants(cluster), network=network)
        terms = CollectiveTerms.of(
            row.kind, row.nbytes, Span(16, 2, 8), cluster, constants
        )
        found.append(np.log(terms.price().seconds * 1e6 / row.microseconds))
    return np.array(found)


def fit(rows: list[Row], any_: bool = True, usual: np.ndarray = START) -> np.ndarray:
    """The constants that suit the rows, every system counting alike.

    Args:
        rows: Of one network or several.
        any_: Whether they are of cards of another rate.
        usual: Where the constants stay that the rows say nothing of.
    """
    systems = [row.system for row in rows]
    weights = np.array([1 / np.sqrt(systems.count(name)) for name in systems])

    def misfit(point: np.ndarray) -> np.ndarray:
        prior = 0.1 * (point - usual) / SPREAD
        return np.concatenate([weights * errors(rows, point, any_) / ROBUST, prior])

    return least_squares(misfit, usual, loss="soft_l1", diff_step=1e-3).x


def at_home(point: np.ndarray, system: str) -> np.ndarray:
    """Constants of any network, for the cards of a system."""
    card = Cluster.parse(system).between.bytes_per_s
    crossing = elsewhere(constants_of(point), card).crossing_seconds
    return np.array([point[0], np.log(crossing), *point[2:]])


def words(logs: np.ndarray) -> str:
    off = np.abs(np.expm1(logs))
    return f"median {np.median(off):.1%}, p90 {np.quantile(off, 0.9):.1%}"


FITTED = ("efficiency", "crossing_seconds", "ramp", "tree_ramp")


def record_of(
    point: np.ndarray, source: str, kept_out: list[np.ndarray]
) -> dict[str, Any]:
    """Constants, and what they missed of rows kept out of such fits."""
    found = constants_of(point)
    off = np.abs(np.concatenate(kept_out))
    values = {name: getattr(found, name) for name in FITTED}
    values["spread"] = float(np.quantile(off, 0.9)) / TENTH_BEYOND * unsure(kept_out)
    return {
        name: {
            "value": float(f"{value:.4g}"),
            "source": source
            if name in FITTED
            else f"rows kept out, of what was {source}",
        }
        for name, value in values.items()
    }


def unsure(groups: list[np.ndarray]) -> float:
    """How much wider an interval is that few groups of errors must be enough for.

    Each group errs as a whole, so that there is one degree of freedom less than groups.
    """
    freedom = len(groups) - 1
    return float(t.ppf(0.95, freedom)) / TENTH_BEYOND if freedom else 1.0


def turns_kept_out(rows: list[Row], usual: np.ndarray) -> np.ndarray:
    """The errors of every fourth row, of a fit to the others."""
    turns = np.arange(len(rows)) % 4
    kept = np.zeros(len(rows))
    for turn in range(4):
        inside = [row for row, own in zip(rows, turns, strict=True) if own != turn]
        out = [row for row, own in zip(rows, turns, strict=True) if own == turn]
        kept[turns == turn] = errors(out, fit(inside, False, usual), False)
    return kept


def main() -> None:
    rows = read()
    found = fit(rows)
    print(f"any: {words(errors(rows, found))}")
    record: dict[str, Any] = {}
    left_out: list[np.ndarray] = []
    for name in sorted({row.system for row in rows}):
        own = [row for row in rows if row.system == name]
        others = [row for row in rows if row.system != name]
        without = fit(others)
        left_out.append(errors(own, without))
        usual = at_home(without, name)
        point = fit(own, False, usual)
        kept = turns_kept_out(own, usual)
        print(
            f"{name}: fitted {words(errors(own, point, False))}; "
            f"left out: {words(left_out[-1])}"
        )
        print(f"{name}: every fourth row kept out {words(kept)}")
        source = f"fitted to {len(own)} rows of measured/network.csv"
        record[name] = record_of(point, source, [kept])
    source = "fitted to all rows of measured/network.csv: estimated elsewhere"
    record = {"any": record_of(found, source, left_out), **record}
    path = COST / "constants" / "networks.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
