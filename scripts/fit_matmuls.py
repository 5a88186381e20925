"""Fits the constants of matmul kernels to the measurements that ship with the package.

Prints what was fitted to what and how far the model is from rows that were kept out of
the fit, and writes `lagom_jax/cost/constants/kernels/*.json`. Run it again after adding
measurements:

    python scripts/fit_matmuls.py

For every GPU and number type, in turn and a few times: the constants of the formula
that minimise the errors, and the correction that minimises what remains. Errors are
logarithms of predicted over measured time; beyond 10 % they count linearly, so that a
shape for which the library chose badly does not bend the rest.

Rows are kept out in four ways: a fifth of the shapes at a time, and every row with one
value of m, of n, of k. Everything is fitted anew without them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lagom_jax.cluster import Cluster, Gpu
from lagom_jax.cost.kernel_constants import Correction, MatmulConstants, hat_weights
from lagom_jax.cost.matmul import Problems, formula, predicted, rate_of
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.measure.rows import read_matmuls

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
MEASURED = {"h100-sxm": "h100", "b200": "b200"}
# The fp8 rows of h100-sxm exceed the chip's dense peak by up to 30 %.
DISTRUSTED = {("h100", "f8")}
# GPU without measurements -> the one whose constants it borrows, and why.
BORROWED = {
    "h200": ("h100", "which has the same chip with faster memory"),
    "gb200": ("b200", "which has the same chip"),
    "a100": ("h100", "the nearest measured GPU"),
    "a40": ("h100", "the nearest measured GPU"),
}
BATCHES, SIZES = (1.0, 4.0), (256.0, 1024.0, 4096.0)
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
SHARES = {"arithmetic_efficiency", "memory_efficiency"}


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

    def where(self, chosen: np.ndarray) -> Rows:
        """Some of the rows."""
        fields = dataclasses.fields(Problems)
        kept = Problems(*(getattr(self.problems, f.name)[chosen] for f in fields))
        return dataclasses.replace(
            self, problems=kept, log_seconds=self.log_seconds[chosen]
        )


def read_rows() -> Iterator[Rows]:
    found: dict[tuple[str, str], list[tuple[Matmul, float]]] = {}
    for row in read_matmuls((COST / "measured" / "matmuls.csv").read_text()).rows:
        gpu = Cluster.parse(MEASURED[row.gpu]).gpu
        key = (gpu.name, rate_of(row.matmul.lhs, gpu)[0])
        found.setdefault(key, []).append((row.matmul, row.microseconds * 1e-6))
    for (name, rate), pairs in sorted(found.items()):
        gpu = Cluster.parse(name).gpu
        matmuls, seconds = zip(*pairs, strict=True)
        peak = rate_of(matmuls[0].lhs, gpu)[1]
        yield Rows(gpu, rate, peak, Problems.of(list(matmuls)), np.log(seconds))


def fit(rows: Rows) -> MatmulConstants:
    """The formula's constants and the correction, fitted in turn."""
    p = rows.problems
    weights = hat_weights(KNOTS, (p.batch, p.m, p.n, p.k))
    start = np.log(list(START.values()))
    found, log_factors = start, np.zeros(weights.shape[1])
    for _ in range(ROUNDS):
        corrected = weights @ log_factors

        def errors(logs: np.ndarray, corrected: np.ndarray = corrected) -> np.ndarray:
            bare = formula(p, rows.gpu, rows.peak, _constants(logs))
            return np.log(bare) + corrected - rows.log_seconds

        found = _robust_least_squares(errors, found, start)
        bare = formula(p, rows.gpu, rows.peak, _constants(found))
        log_factors = _rising(weights, rows.log_seconds - np.log(bare))
    correction = Correction(*KNOTS, log_factors.reshape(NO_CORRECTION.shape))
    return dataclasses.replace(_constants(found), correction=correction)


def _constants(logs: np.ndarray) -> MatmulConstants:
    values = dict(zip(START, np.exp(logs).tolist(), strict=True))
    values.update({name: min(1.0, values[name]) for name in SHARES})
    flat = Correction(*KNOTS, NO_CORRECTION)
    return MatmulConstants(**values, correction=flat, calibrated=True, source="")


def _robust_least_squares(
    errors: Callable[[np.ndarray], np.ndarray], at: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Levenberg and Marquardt's method with Huber's weights."""

    def cost(found: np.ndarray, at: np.ndarray) -> float:
        size, edge = abs(found), LINEAR_BEYOND
        each = np.where(size < edge, size**2 / 2, edge * (size - edge / 2))
        return float(each.sum() + TRUST_IN_START * ((at - start) ** 2).sum())

    damping, step, unit = 1e-2, 1e-3, np.eye(len(at))
    left = errors(at)
    best = cost(left, at)
    for _ in range(40):
        slopes = np.stack([(errors(at + step * e) - left) / step for e in unit], axis=1)
        weights = LINEAR_BEYOND / np.maximum(abs(left), LINEAR_BEYOND)
        curve = slopes.T @ (weights[:, None] * slopes) + 2 * TRUST_IN_START * unit
        pull = slopes.T @ (weights * left) + 2 * TRUST_IN_START * (at - start)
        for _ in range(8):
            damped = curve + damping * np.diag(np.diag(curve) + 1e-3)
            there = at + np.clip(np.linalg.solve(damped, -pull), -0.5, 0.5)
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
        yield name, getattr(p, name)


def kept_out_errors(rows: Rows, part: np.ndarray) -> np.ndarray:
    errors = np.zeros(len(rows))
    for out in np.unique(part):
        there = rows.where(part == out)
        constants = fit(rows.where(part != out))
        found = predicted(there.problems, rows.gpu, rows.peak, constants)
        errors[part == out] = abs(found / np.exp(there.log_seconds) - 1)
    return errors


def _spread(errors: np.ndarray) -> str:
    median, high = np.median(errors), np.percentile(errors, 90)
    return f"median {median:.1%}, 90th percentile {high:.1%}"


def fit_and_score(rows: Rows) -> dict[str, Any]:
    constants = fit(rows)
    found = predicted(rows.problems, rows.gpu, rows.peak, constants)
    fitted = _spread(abs(found / np.exp(rows.log_seconds) - 1))
    print(f"{rows.gpu.name} {rows.rate}: {len(rows)} rows, error of the fit {fitted}")
    words = ""
    for name, part in kept_out(rows):
        spread = _spread(kept_out_errors(rows, part))
        print(f"    kept out by {name:7} {spread}")
        words = words or spread
    record = _record(constants)
    record["source"] = (
        f"fitted to {len(rows)} rows of measured/matmuls.csv; error on rows of shapes "
        f"kept out of the fit: {words}"
    )
    return record


def _record(constants: MatmulConstants) -> dict[str, Any]:
    grid = np.round(np.asarray(constants.correction.log_factors), 4)
    return {
        "value": {name: _rounded(getattr(constants, name)) for name in START},
        "correction": {
            **dict(zip(("batch", "m", "n", "k"), KNOTS, strict=True)),
            "log_factors": grid.tolist(),
        },
        "calibrated": True,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def borrowed(record: dict[str, Any], why: str) -> dict[str, Any]:
    """The same constants for something else, as an estimate."""
    return {**record, "calibrated": False, "source": f"estimated: {why}"}


def all_rates(fitted: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Fitted rates, and those that borrow from bf16: the same kernels, other units."""
    bf16 = fitted["bf16"]
    found = dict(fitted)
    found["f16"] = borrowed(bf16, "as bf16, whose units it runs on")
    if "f8" not in found:
        why = "constants of bf16 at the peak of fp8; the measured rows exceed that peak"
        found["f8"] = borrowed(bf16, why)
    found["s8"] = borrowed(found["f8"], "as fp8, whose rate it has")
    found["other"] = borrowed(bf16, "constants of bf16 at the type's own peak")
    return found


def main() -> None:
    fitted: dict[str, dict[str, dict[str, Any]]] = {}
    for rows in read_rows():
        if (rows.gpu.name, rows.rate) in DISTRUSTED:
            print(f"{rows.gpu.name} {rows.rate}: {len(rows)} rows not used, see above")
            continue
        fitted.setdefault(rows.gpu.name, {})[rows.rate] = fit_and_score(rows)
    rates = {gpu: all_rates(found) for gpu, found in fitted.items()}
    for gpu, (origin, why) in BORROWED.items():
        rates[gpu] = {
            rate: borrowed(item, f"{rate} as on {origin}, {why}")
            for rate, item in rates[origin].items()
        }
    for gpu, found in rates.items():
        path = COST / "constants" / "kernels" / f"{gpu}.json"
        record = {"gpu": gpu, "matmuls": found}
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
