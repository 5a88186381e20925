"""Fits the constants of matmul kernels to the measurements that ship with the package.

Prints what was fitted to what and how far the model is from rows that were kept out of
the fit, and writes `lagom_jax/cost/constants/kernels/*.json`. Run it again after adding
measurements:

    python scripts/fit_matmuls.py

For every GPU and number type, in turn and a few times: the constants of the formula
that minimise the errors, and the correction that minimises what remains. Errors are
logarithms of predicted over measured time; beyond 10 % they count linearly, so that a
shape for which the library chose badly does not bend the rest.

Two tables say how long kernels take: `matmuls_alone.csv` on the GPU itself, and
`matmuls.csv` with a part of each launch, a time per GPU that is fitted where both have
bf16 rows and taken off. Rows are kept out in four ways: a fifth of the shapes at a
time, and every row with one value of m, of n, of k, to the half octave. Everything is
fitted anew without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fit_scores import compact

from lagom_jax.cluster import Cluster, Gpu
from lagom_jax.cluster.records import read_system, system_names
from lagom_jax.cost.kernel_constants import (
    Correction,
    MatmulConstants,
    hat_weights,
    load_kernel_constants,
)
from lagom_jax.cost.matmul import (
    NOT_CACHED,
    SHORT_SECONDS,
    Problems,
    formula,
    predicted,
    rate_of,
)
from lagom_jax.cost.matmul_loop import found_in_cache
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.measurements.rows import read_matmuls

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
MEASURED = {
    "a100-sxm": "a100",
    "b200": "b200",
    "gb200-nvl72": "gb200-nvl72",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
    "l40s": "l40s",
}
# The fp8 rows of h100-sxm exceed the chip's dense peak by up to 30 %.
DISTRUSTED = {("h100", "f8")}
# GPU without measurements -> the one whose constants it borrows, and why.
BORROWED = {
    "a100-40gb": ("a100", "the same chip with slower memory"),
    "a40": ("a100", "the nearest measured GPU of its generation"),
    "b300": ("b200", "the chip before it"),
    "gb300": ("gb200", "the chip before it"),
    "rtx-pro-6000": ("l40s", "the card before it"),
}
# GPU of which only bf16 was measured -> the one whose constants other types borrow.
OTHER_TYPES = {"h200": "h100", "gb200": "b200"}
# Constants that only some GPUs have, and where their fit begins; a 0 stays. With the
# cache's the table's rows are priced as a loop leaves them there.
OWN_START = {
    "l40s": {
        "cache_bytes_per_cycle": 5.0,
        "small_tile_share": 0.9,
        "area_seconds": 5e-7,
        "sustained_share": 0.57,
        "settle_seconds": 3e-3,
        "tile_seconds": 0.0,
    }
}
BATCHES, SIZES = (1.0, 4.0), (32.0, 256.0, 2048.0, 16384.0)
KNOTS = (BATCHES, SIZES, SIZES, SIZES)
NO_CORRECTION = np.zeros([len(axis) for axis in KNOTS])
ROUNDS = 4
LINEAR_BEYOND = 0.1
# Weight of the starting values and of an uncorrected formula, in rows.
TRUST_IN_START = 0.02
TRUST_IN_FORMULA = 0.3
START = {
    "launch_seconds": 4.5e-6,
    "arithmetic_efficiency": 0.75,
    "feed_bytes_per_cycle": 40.0,
    "tile_seconds": 5e-7,
    "memory_efficiency": 0.8,
    "join_seconds": 1e-6,
    "join_share": 1.2,
}
SHARES = {
    "arithmetic_efficiency",
    "memory_efficiency",
    "small_tile_share",
    "sustained_share",
}


@dataclasses.dataclass(frozen=True)
class Rows:
    """Measurements of one number type on one GPU."""

    gpu: Gpu
    rate: str
    peak: float
    problems: Problems
    log_seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.log_seconds)

    @property
    def start(self) -> dict[str, float]:
        """The constants to fit, and where to begin."""
        every = START | OWN_START.get(self.gpu.name, {})
        return {name: at for name, at in every.items() if at}

    def constants(self, logs: np.ndarray) -> MatmulConstants:
        """The constants with these logarithms, in the order of `start`."""
        values: dict[str, Any] = dict.fromkeys(START, 0.0)
        fitted = dict(zip(self.start, np.exp(logs).tolist(), strict=True))
        values |= fitted | {n: min(1.0, fitted[n]) for n in SHARES & fitted.keys()}
        flat = Correction(*KNOTS, NO_CORRECTION)
        return MatmulConstants(**values, correction=flat, calibrated=True, source="")

    @property
    def cached(self) -> np.ndarray:
        """The share of each row's bytes that the benchmark left in the cache."""
        if "cache_bytes_per_cycle" not in self.start:
            return NOT_CACHED
        return found_in_cache(self.problems, self.gpu)

    def where(self, chosen: np.ndarray) -> Rows:
        """Some of the rows."""
        fields = dataclasses.fields(Problems)
        kept = Problems(*(getattr(self.problems, f.name)[chosen] for f in fields))
        return dataclasses.replace(
            self, problems=kept, log_seconds=self.log_seconds[chosen]
        )

    def and_also(self, other: Rows) -> Rows:
        """Both."""
        pairs = [
            (getattr(self.problems, f.name), getattr(other.problems, f.name))
            for f in dataclasses.fields(Problems)
        ]
        return dataclasses.replace(
            self,
            problems=Problems(*(np.concatenate(pair) for pair in pairs)),
            log_seconds=np.concatenate([self.log_seconds, other.log_seconds]),
        )


def read_rows(name: str) -> dict[tuple[str, str], Rows]:
    """The rows of a table, by GPU and rate."""
    found: dict[tuple[str, str], list[tuple[Matmul, float]]] = {}
    for row in read_matmuls((COST / "measured" / name).read_text()).rows:
        gpu = Cluster.parse(MEASURED[row.gpu]).gpu
        key = (gpu.name, rate_of(row.matmul.lhs, gpu)[0])
        found.setdefault(key, []).append((row.matmul, row.microseconds * 1e-6))
    gpus = {gpu.name: gpu for gpu in (Cluster.parse(n).gpu for n in MEASURED.values())}
    result: dict[tuple[str, str], Rows] = {}
    for (name, rate), pairs in sorted(found.items()):
        matmuls, seconds = zip(*pairs, strict=True)
        peak = rate_of(matmuls[0].lhs, gpus[name])[1]
        problems = Problems.of(list(matmuls))
        result[name, rate] = Rows(gpus[name], rate, peak, problems, np.log(seconds))
    return result


def times(rows: Rows, constants: MatmulConstants) -> np.ndarray:
    """Seconds that the model says, of products repeated as the table's are."""
    return predicted(rows.problems, rows.gpu, rows.peak, constants, rows.cached)


def launch_in(rows: Rows, alone: MatmulConstants) -> float:
    """Seconds that short kernels of a table take longer than kernels alone."""
    found = times(rows, alone)
    short = found < SHORT_SECONDS
    return max(0.0, float(np.median((np.exp(rows.log_seconds) - found)[short])))


def all_rows() -> tuple[list[Rows], dict[str, float]]:
    """All rows as of kernels alone, and the launch that each GPU's table has."""
    alone, launched = read_rows("matmuls_alone.csv"), read_rows("matmuls.csv")
    launches = {
        name: launch_in(rows, fit(alone[name, rate]))
        for (name, rate), rows in launched.items()
        if (name, rate) in alone
    }
    for (name, rate), rows in launched.items():
        less = np.log(np.exp(rows.log_seconds) - launches[name])
        same = dataclasses.replace(rows, log_seconds=less)
        known = alone.get((name, rate))
        alone[name, rate] = same if known is None else known.and_also(same)
    return list(alone.values()), launches


def fit(rows: Rows) -> MatmulConstants:
    """The formula's constants and the correction, fitted in turn."""
    p = rows.problems
    weights = hat_weights(KNOTS, (p.batch, p.m, p.n, p.k))
    start, cached = np.log(list(rows.start.values())), rows.cached
    found, log_factors = start, np.zeros(weights.shape[1])
    for _ in range(ROUNDS):
        corrected = weights @ log_factors

        def errors(logs: np.ndarray, corrected: np.ndarray = corrected) -> np.ndarray:
            bare = formula(p, rows.gpu, rows.peak, rows.constants(logs), cached)
            return np.log(bare) + corrected - rows.log_seconds

        found = _robust_least_squares(errors, found, start)
        bare = formula(p, rows.gpu, rows.peak, rows.constants(found), cached)
        log_factors = _rising(weights, rows.log_seconds - np.log(bare))
    correction = Correction(*KNOTS, log_factors.reshape(NO_CORRECTION.shape))
    return dataclasses.replace(rows.constants(found), correction=correction)


def _robust_least_squares(
    errors: Callable[[np.ndarray], np.ndarray], at: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Levenberg and Marquardt's method with Huber's weights."""

    def cost(found: np.ndarray, at: np.ndarray) -> float:
        size, edge = abs(found), LINEAR_BEYOND
        each = np.where(size < edge, size**2 / 2, edge * (size - edge / 2))
        return float(each.sum() + TRUST_IN_START * ((at - start) ** 2).sum())

    def around(at: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        step, unit = 1e-3, np.eye(len(at))
        slopes = np.stack([(errors(at + step * e) - left) / step for e in unit], axis=1)
        weights = LINEAR_BEYOND / np.maximum(abs(left), LINEAR_BEYOND)
        curve = slopes.T @ (weights[:, None] * slopes) + 2 * TRUST_IN_START * unit
        return curve, slopes.T @ (weights * left) + 2 * TRUST_IN_START * (at - start)

    damping, left = 1e-2, errors(at)
    best = cost(left, at)
    for _ in range(40):
        curve, slope = around(at, left)
        for _ in range(8):
            damped = curve + damping * np.diag(np.diag(curve) + 1e-3)
            there = at + np.clip(np.linalg.solve(damped, -slope), -0.5, 0.5)
            then = errors(there)
            if cost(then, there) < best:
                break
            damping *= 4
        else:
            return at
        gained = best - cost(then, there)
        at, left, best, damping = there, then, best - gained, damping / 3
        if gained < 1e-6 * best:
            return at
    return at


def _rising(weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Ridge regression on the knots that never falls along an axis.

    Pairs of neighbouring knots that fall are pulled together and the rest is solved
    again; what is left of a fall after that is levelled.
    """
    steps = _neighbours(NO_CORRECTION.shape)
    middle = np.median(wanted)
    pulled, trust = np.zeros(len(steps)), np.ones(len(wanted))
    found = np.zeros(weights.shape[1])
    for _ in range(30):
        curve = weights.T @ (trust[:, None] * weights) + TRUST_IN_FORMULA * np.eye(
            len(found)
        )
        curve += 1e4 * steps.T @ (pulled[:, None] * steps)
        found = np.linalg.solve(curve, weights.T @ (trust * (wanted - middle)))
        left = abs(wanted - middle - weights @ found)
        edge = max(3 * float(np.median(left)), 0.04)
        trust = edge / np.maximum(left, edge)
        pulled = (steps @ found < 1e-6).astype(float)
    grid = found.reshape(NO_CORRECTION.shape)
    for axis in range(grid.ndim):
        grid = np.maximum.accumulate(grid, axis)
    return grid.reshape(-1) + middle


def _neighbours(shape: tuple[int, ...]) -> np.ndarray:
    places = np.arange(np.prod(shape)).reshape(shape)
    steps: list[np.ndarray] = []
    for axis, size in enumerate(shape):
        low = places.take(range(size - 1), axis).ravel()
        high = places.take(range(1, size), axis).ravel()
        unit = np.eye(places.size)
        steps.append(unit[high] - unit[low])
    return np.concatenate(steps)


def kept_out(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """For each way of keeping rows out, the number of the part each row is in."""
    p = rows.problems
    shapes = np.stack([p.m, p.n, p.k], axis=1)
    _, which = np.unique(shapes, axis=0, return_inverse=True)
    part = np.random.default_rng(0).permutation(which.max() + 1) % 5
    yield "shapes", part[which.ravel()]
    for name in ("m", "n", "k"):
        # All rows of one size together, to the half octave; five turns.
        yield name, np.round(2 * np.log2(getattr(p, name))) % 5


def kept_out_errors(rows: Rows, part: np.ndarray) -> np.ndarray:
    errors = np.zeros(len(rows))
    for out in np.unique(part):
        there = rows.where(part == out)
        constants = fit(rows.where(part != out))
        found = times(there, constants)
        errors[part == out] = abs(found / np.exp(there.log_seconds) - 1)
    return errors


def by_length(errors: np.ndarray, rows: Rows) -> dict[str, dict[str, float]]:
    short = np.exp(rows.log_seconds) < SHORT_SECONDS
    parts = {"20 us and more": errors[~short], "below 20 us": errors[short]}
    return {
        name: {
            "rows": len(part),
            "median": round(float(np.median(part)), 4),
            "p90": round(float(np.quantile(part, 0.9)), 4),
        }
        for name, part in parts.items()
        if len(part)
    }


def _words(judged: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{name}: median {figures['median']:.1%}, p90 {figures['p90']:.1%}"
        for name, figures in judged.items()
    )


def fit_and_score(rows: Rows) -> dict[str, Any]:
    constants = fit(rows)
    found = times(rows, constants)
    errors = {"fitted": by_length(abs(found / np.exp(rows.log_seconds) - 1), rows)}
    for name, part in kept_out(rows):
        errors[f"kept out: {name}"] = by_length(kept_out_errors(rows, part), rows)
    for name, judged in errors.items():
        print(f"{rows.gpu.name} {rows.rate} {name:18} {_words(judged)}", flush=True)
    record = _record(constants, [*(START | rows.start)])
    record["source"] = f"fitted to {len(rows)} rows of measured/matmuls*.csv"
    record["errors"] = errors
    return record


def _record(constants: MatmulConstants, names: list[str]) -> dict[str, Any]:
    grid = np.round(np.asarray(constants.correction.log_factors), 4)
    return {
        "value": {name: _rounded(getattr(constants, name)) for name in names},
        "correction": {
            **dict(zip(("batch", "m", "n", "k"), KNOTS, strict=True)),
            "log_factors": grid.tolist(),
        },
        "calibrated": True,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def borrowed(record: dict[str, Any], why: str) -> dict[str, Any]:
    """Constants for something else, as an estimate."""
    kept = {name: item for name, item in record.items() if name != "errors"}
    return {**kept, "calibrated": False, "source": f"estimated: {why}"}


def on_other_memory(record: dict[str, Any], origin: str, gpu: str) -> dict[str, Any]:
    """Borrowed constants where the chip is the same and its memory slower.

    What the chip takes in a second stays, as far as slower memory can stream at all.
    """
    gpus = {system.gpu.name: system.gpu for system in map(read_system, system_names())}
    here, there = gpus[gpu], gpus[origin]
    if (here.sm_count, here.l2_bytes) != (there.sm_count, there.l2_bytes):
        return record
    if here.memory_bytes_per_s >= there.memory_bytes_per_s:
        return record
    value = record["value"]
    taken = value["memory_efficiency"] * there.memory_bytes_per_s
    streams = load_kernel_constants(origin).memory_shares["copy"]
    share = min(streams, taken / here.memory_bytes_per_s)
    return {**record, "value": {**value, "memory_efficiency": _rounded(share)}}


def all_rates(fitted: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Fitted rates, and those that borrow from bf16: the same kernels, other units."""
    bf16 = fitted["bf16"]
    found = dict(fitted)
    if "tf32" not in found:
        why = "constants of bf16 at the peak of TensorFloat-32"
        found["tf32"] = borrowed(bf16, why)
    found["f16"] = borrowed(bf16, "as bf16, whose units it runs on")
    if "f8" not in found:
        why = "constants of bf16 at the peak of fp8; no measured row can be used"
        found["f8"] = borrowed(bf16, why)
    found["s8"] = borrowed(found["f8"], "as fp8, whose rate it has")
    found["other"] = borrowed(bf16, "constants of bf16 at the type's own peak")
    return found


def main() -> None:
    fitted: dict[str, dict[str, dict[str, Any]]] = {}
    everything, launches = all_rows()
    print(
        "launch in matmuls.csv, us:", {n: f"{1e6 * s:.2f}" for n, s in launches.items()}
    )
    for rows in everything:
        if (rows.gpu.name, rows.rate) in DISTRUSTED:
            print(f"{rows.gpu.name} {rows.rate}: {len(rows)} rows not used, see above")
            continue
        fitted.setdefault(rows.gpu.name, {})[rows.rate] = fit_and_score(rows)
    for gpu, origin in OTHER_TYPES.items():
        for rate, item in fitted[origin].items():
            why = f"{rate} as on {origin}, which has the same chip"
            fitted[gpu].setdefault(rate, borrowed(item, why))
    rates = {gpu: all_rates(found) for gpu, found in fitted.items()}
    for gpu, (origin, why) in BORROWED.items():
        rates[gpu] = {
            rate: on_other_memory(
                borrowed(item, f"{rate} as on {origin}, {why}"), origin, gpu
            )
            for rate, item in rates[origin].items()
        }
    for gpu, found in rates.items():
        record: dict[str, Any] = {"gpu": gpu, "matmuls": found}
        if gpu in launches:
            record["launch_in_table_seconds"] = {
                "value": _rounded(launches[gpu]),
                "source": "median of what short bf16 rows of measured/matmuls.csv "
                "take longer than kernels alone of measured/matmuls_alone.csv",
            }
        path = COST / "constants" / "kernels" / f"{gpu}.json"
        path.write_text(compact(record) + "\n")


if __name__ == "__main__":
    main()
