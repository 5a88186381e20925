"""Fits the times of collectives at NCCL's default setting to the measurements.

    python scripts/fit_collectives.py

Per GPU and kind: the coefficients of a form (`lagom_jax/cost/structure.py`), then a
smooth correction over log2(bytes) and log2(ranks), a Gaussian process with a Matern
kernel. Both are robust: a row far from its neighbours counts less, so that warm-up
outliers do not bend the fit. All GPUs have one NCCL, so the correction also heeds what
the forms leave of the other GPUs' large rows. Prints the errors on the rows that were
fitted and on rows kept out in turn, and writes `lagom_jax/cost/collectives/*.json`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fit_scores import LARGE, compact, scores, show

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_facts import NcclFacts, nccl_facts
from lagom_jax.cost.span import Span
from lagom_jax.cost.structure import EXCHANGED_KINDS, Exchanged, Form, Streamed
from lagom_jax.cost.surface import Surface
from lagom_jax.measure.rows import read_collectives

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
# GPU in the measurements -> (record to write, a cluster of it)
MEASURED = {
    "h100-sxm": ("h100", "h100:1x8"),
    "b200": ("b200", "b200:1x8"),
    "gb200-nvl72": ("gb200", "gb200-nvl72:18x4"),
}
# GPU that nobody measured -> the one that stands in, and why
STAND_INS = {
    "h200": ("h100", "the same chip and links with more memory"),
    "a100": ("h100", "the nearest measured; scaled to the rate of the link"),
    "a40": ("h100", "the nearest measured; scaled to the rate of the link"),
}
# How far apart, in logs, the two rates of a permute must be to tell which it had.
TOLD = 0.2
LOG2_BYTES = range(8, 37)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Measurements of one kind on one GPU."""

    devices: np.ndarray
    ranks: np.ndarray
    """Of a group; for a permute the pairs, whose communicator has `job` ranks."""
    job: np.ndarray
    """Devices of the hosts in use."""
    nbytes: np.ndarray
    microseconds: np.ndarray

    def __len__(self) -> int:
        return len(self.nbytes)

    def __getitem__(self, chosen: np.ndarray) -> Rows:
        return Rows(*(getattr(self, f.name)[chosen] for f in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Smoothness:
    """Of the correction: how much it varies, and over how many octaves."""

    together: float
    """Standard deviation of the part that all group sizes share."""
    apart: float
    """Standard deviation of the part that may differ between them."""
    octaves_of_bytes: float
    octaves_of_ranks: float
    slant: float
    """0: similar where the bytes are, 1: where the bytes per rank are."""
    shared: float
    """Correlation between GPUs, where the bytes take as long at the links' peaks."""


STREAMED = Smoothness(0.15, 0.15, 10.0, 3.0, 0.5, 0.7)
EXCHANGED = Smoothness(0.2, 0.2, 4.0, 3.0, 0.5, 0.7)
# Permutes were measured at every power of two, so more can be told apart. A host has 4
# and 8 pairs, a rack 64 and 72: they have little to tell each other.
PERMUTE = Smoothness(0.2, 0.1, 2.5, 3.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Residuals:
    """What a form leaves: logs of measured over form."""

    nbytes: np.ndarray
    ranks: np.ndarray
    logs: np.ndarray
    noise: np.ndarray
    gpu: np.ndarray
    """0 where it is the GPU that is fitted; the others have other numbers."""

    def __getitem__(self, chosen: np.ndarray) -> Residuals:
        fields = dataclasses.fields(self)
        return Residuals(*(getattr(self, f.name)[chosen] for f in fields))

    def __add__(self, other: Residuals) -> Residuals:
        pairs = [
            (getattr(self, f.name), getattr(other, f.name))
            for f in dataclasses.fields(self)
        ]
        return Residuals(*(np.concatenate(pair) for pair in pairs))


def residuals(rows: Rows, logs: np.ndarray, gpu: int = 0) -> Residuals:
    labels = np.full(len(rows), gpu)
    return Residuals(rows.nbytes, rows.ranks, logs, noise(rows.nbytes), labels)


def smoothness(kind: str) -> Smoothness:
    if kind == "collective-permute":
        return PERMUTE
    return EXCHANGED if kind in EXCHANGED_KINDS else STREAMED


# Prior medians of the coefficients and how far, as factors of e, they may be off.
PRIORS = {
    Streamed: (
        (6.0, 0.3, 2.0, 8.0, 0.75, 2.0, 2.0),
        (1.0, 2.0, 2.0, 1.0, 0.3, 0.7, 1.0),
    ),
    Exchanged: (
        (10.0, 0.3, 3.0, 10.0, 25.0, 1.4, 0.7, 2.0, 2.0),
        (1.0, 2.0, 1.0, 1.0, 0.5, 0.3, 0.3, 0.7, 1.0),
    ),
}


def read(gpu: str, cluster: Cluster) -> dict[str, Rows]:
    found: dict[str, list[tuple[float, ...]]] = {}
    text = (COST / "measured" / "collectives.csv").read_text()
    for row in read_collectives(text).rows:
        if row.gpu == gpu:
            ranks = row.group_size or row.devices
            job = cluster.gpus_per_host * math.ceil(row.devices / cluster.gpus_per_host)
            values = (row.devices, ranks, job, row.tensor_bytes, row.microseconds)
            found.setdefault(row.op, []).append(values)
    return {kind: Rows(*np.array(v).T) for kind, v in sorted(found.items())}


def noise(nbytes: np.ndarray) -> np.ndarray:
    """Relative scatter of a measurement: small messages are mostly launch latency."""
    return np.where(nbytes >= LARGE, 0.05, np.where(nbytes >= 1 << 14, 0.12, 0.3))


def fit_form(kind: str, rows: Rows, peak: float, facts: NcclFacts) -> Form:
    """Gauss-Newton on the logs of the coefficients, with a prior and Huber weights."""
    form = Exchanged if kind in EXCHANGED_KINDS else Streamed
    median, spread = PRIORS[form]
    start, precision = np.log(median), 1 / np.square(spread)
    if kind == "collective-permute":
        # Each GPU has one peer, however many there are, and channels limit it first.
        for absent in (1, -1):
            start[absent], precision[absent] = math.log(1e-6), 1e6
    scale = np.maximum(noise(rows.nbytes), 0.1)

    def predicted(logs: np.ndarray, placed: list[Span]) -> np.ndarray:
        times = form_times(kind, form(*np.exp(logs)), rows, peak, facts, placed)
        return np.log(times)

    logs = start.copy()
    for _ in range(40):
        placed = spans_told(kind, form(*np.exp(logs)), rows, peak, facts)
        here = predicted(logs, placed)
        step = 1e-4
        slopes = [
            (predicted(logs + step * e, placed) - here) / step
            for e in np.eye(len(logs))
        ]
        jacobian = np.stack(slopes, axis=1)
        off = np.log(rows.microseconds) - here
        # Neighbouring rows err together, so each counts half.
        weights = 0.5 / scale**2 / np.maximum(1, np.abs(off) / scale / 1.5)
        curvature = jacobian.T @ (weights[:, None] * jacobian) + np.diag(precision)
        pull = jacobian.T @ (weights * off) - precision * (logs - start)
        logs = logs + np.clip(np.linalg.solve(curvature, pull), -0.3, 0.3)
    fitted = form(*(float(f"{x:.4g}") for x in np.exp(logs)))
    if isinstance(fitted, Exchanged) and kind == "collective-permute":
        share = apart_share(fitted, rows, peak, facts)
        return dataclasses.replace(fitted, apart_share=share)
    return fitted


def apart_share(form: Exchanged, rows: Rows, peak: float, facts: NcclFacts) -> float:
    """A half where both rates were measured, or neither; else the one that was."""
    kind = "collective-permute"
    unknown = [span.apart is None for span in spans(kind, rows)]
    rows = rows[np.array(unknown)]
    both = [
        form_times(
            kind, form, rows, peak, facts, [known(s, b) for s in spans(kind, rows)]
        )
        for b in (True, False)
    ]
    in_step, apart = (np.abs(np.log(rows.microseconds / times)) for times in both)
    told = np.abs(np.log(both[0] / both[1])) > TOLD
    seen = {bool(x) for x in (apart < in_step)[told]}
    return float(seen.pop()) if len(seen) == 1 else 0.5


def known(span: Span, in_step: bool) -> Span:
    return dataclasses.replace(span, in_step=in_step)


def spans_told(
    kind: str, form: Form, rows: Rows, peak: float, facts: NcclFacts
) -> list[Span]:
    """Where nobody wrote the pairs down, the rate that is nearer tells of them."""

    def nearer(span: Span, nbytes: float, measured: float) -> Span:
        if span.apart is not None:
            return span
        choices = [known(span, True), known(span, False)]
        off = [
            abs(
                math.log(
                    form.microseconds(kind, nbytes, choice, peak, facts) / measured
                )
            )
            for choice in choices
        ]
        return choices[int(off[1] < off[0])]

    placed = zip(spans(kind, rows), rows.nbytes, rows.microseconds, strict=True)
    return [nearer(*one) for one in placed]


def form_times(
    kind: str, form: Form, rows: Rows, peak: float, facts: NcclFacts, placed: list[Span]
) -> np.ndarray:
    sized = zip(rows.nbytes, placed, strict=True)
    return np.array(
        [form.microseconds(kind, s, span, peak, facts) for s, span in sized]
    )


def left(
    kind: str, form: Form, rows: Rows, peak: float, facts: NcclFacts
) -> np.ndarray:
    """Logs of measured over form, for the correction to follow."""
    placed = spans_told(kind, form, rows, peak, facts)
    times = form_times(kind, form, rows, peak, facts, placed)
    return np.log(rows.microseconds / times)


def spans(kind: str, rows: Rows) -> list[Span]:
    if kind == "collective-permute":
        pairs = zip(rows.job, rows.ranks, strict=True)
        return [Span(int(job), 1, 1, int(n)) for job, n in pairs]
    return [Span(int(n), 1, int(n)) for n in rows.ranks]


def _matern(distance: np.ndarray) -> np.ndarray:
    scaled = math.sqrt(3) * np.abs(distance)
    return (1 + scaled) * np.exp(-scaled)


def smooth(
    seen: Residuals, how: Smoothness
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A smooth function of bytes and ranks through what is left, for GPU 0."""

    def place(nbytes: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.log2(nbytes) - how.slant * np.log2(ranks), np.log2(ranks)

    here = place(seen.nbytes, seen.ranks)

    def kernel(there: tuple[np.ndarray, np.ndarray], gpu: np.ndarray) -> np.ndarray:
        along = _matern((there[0][:, None] - here[0]) / how.octaves_of_bytes)
        across = _matern((there[1][:, None] - here[1]) / how.octaves_of_ranks)
        between = np.where(gpu[:, None] == seen.gpu, 1.0, how.shared)
        return between * along * (how.together**2 + how.apart**2 * across)

    base = seen.noise
    scale, among = base, kernel(here, seen.gpu)
    weights = np.zeros(len(base))
    for _ in range(10):
        weights = np.linalg.solve(among + np.diag(scale**2), seen.logs)
        off = np.abs(seen.logs - among @ weights)
        scale = np.minimum(base * np.sqrt(np.maximum(1, off / base / 1.5)), base * 10)
    own = np.zeros(1, dtype=int)
    return lambda nbytes, ranks: kernel(place(nbytes, ranks), own) @ weights


def elsewhere(kind: str, gpu: str, without: np.ndarray | None = None) -> Residuals:
    """What the forms leave of the other GPUs' large rows, without rows of some sizes.

    Small ones are mostly launch latency, which is the host's and the driver's.
    """
    peak = Cluster.parse(MEASURED[gpu][1]).inside.bytes_per_s
    found: list[Residuals] = []
    for number, (other, (_, spelled)) in enumerate(MEASURED.items(), start=1):
        if other != gpu:
            cluster = Cluster.parse(spelled)
            link, facts = cluster.inside.bytes_per_s, nccl_facts(cluster)
            rows = read(other, cluster)[kind]
            if without is not None:
                rows = rows[~np.isin(np.round(np.log2(rows.nbytes)), without)]
            form = fit_form(kind, rows, link, facts)
            logs = left(kind, form, rows, link, facts)
            part = residuals(rows, logs, number)[rows.nbytes >= LARGE]
            found.append(dataclasses.replace(part, nbytes=part.nbytes * peak / link))
    return functools.reduce(operator.add, found)


def fit(
    kind: str, rows: Rows, cluster: Cluster, how: Smoothness, others: Residuals
) -> Surface:
    peak, facts = cluster.inside.bytes_per_s, nccl_facts(cluster)
    form = fit_form(kind, rows, peak, facts)
    seen = residuals(rows, left(kind, form, rows, peak, facts))
    correction = smooth(seen + others, how)
    powers = {2**i for i in range(1, 1 + int(math.log2(rows.ranks.max())))}
    knots = sorted(powers | {int(n) for n in rows.ranks})
    sizes = 2.0 ** np.array(LOG2_BYTES)
    table = []
    for n in knots:
        row = correction(sizes, np.full(len(sizes), float(n)))
        if isinstance(form, Streamed):
            row = _monotone(kind, form, row, sizes, n, peak, facts)
        table.append(row)
    return Surface(
        kind,
        form,
        np.log2(np.array(knots, dtype=np.float64)),
        np.array(LOG2_BYTES, dtype=float),
        np.array(table, dtype=np.float64),
        peak,
    )


def _monotone(
    kind: str,
    form: Streamed,
    row: np.ndarray,
    sizes: np.ndarray,
    ranks: int,
    peak: float,
    facts: NcclFacts,
) -> np.ndarray:
    """Keeps the correction from falling faster than the form rises.

    The nearest such correction: knots that fall too fast meet at their mean, in which
    those that are known better count more.
    """
    span = Span(ranks, 1, ranks)
    # It rises least if the Simple protocol's latency is there from the start.
    doubling = form.latency_per_doubling + form.simple_per_doubling
    flat = dataclasses.replace(
        form, latency_per_doubling=doubling, simple_per_doubling=0.0
    )
    rise = [
        math.log(
            flat.microseconds(kind, s * 1.001, span, peak, facts)
            / flat.microseconds(kind, s, span, peak, facts)
        )
        / math.log2(1.001)
        for s in sizes[:-1]
    ]
    # The form's slope grows with the bytes, so its least is at the left knot; a little
    # is left for the rounding of the table.
    risen = np.concatenate([[0.0], np.cumsum(np.maximum(0.0, np.array(rise) - 2e-4))])
    return _rising(row + risen, 1 / np.square(noise(sizes))) - risen


def _rising(heights: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest heights that nowhere fall: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []
    for height, weight in zip(heights, weights, strict=True):
        mean, total, number = float(height), float(weight), 1
        while pools and pools[-1][0] > mean:
            other, heavy, more = pools.pop()
            mean = (mean * total + other * heavy) / (total + heavy)
            total, number = total + heavy, number + more
        pools.append((mean, total, number))
    return np.concatenate([np.full(number, mean) for mean, _, number in pools])


def errors(surface: Surface, rows: Rows, facts: NcclFacts) -> np.ndarray:
    times = [
        surface.seconds(s, span, surface.peak, facts) * 1e6
        for s, span in zip(rows.nbytes, spans(surface.kind, rows), strict=True)
    ]
    return np.abs(np.array(times) / rows.microseconds - 1)


def folds(rows: Rows) -> dict[str, list[np.ndarray]]:
    """What is kept out together: every seventh row, a size, a group size, a job size.

    Sizes and group sizes at the ends of the measured range are fitted always: leaving
    them out asks for extrapolation, which the others do not.
    """
    sizes = np.round(np.log2(rows.nbytes))
    inner = sorted(set(sizes))[1:-1]
    ranks = sorted(set(rows.ranks))
    jobs = sorted(set(rows.devices))
    return {
        "rows": [np.arange(len(rows)) % 7 == i for i in range(7)],
        "sizes": [sizes == size for size in inner],
        "group sizes": [rows.ranks == n for n in ranks[1:-1]],
        "job sizes": [rows.devices == n for n in jobs] if len(jobs) > 1 else [],
    }


def judge(
    gpu: str, kind: str, rows: Rows, cluster: Cluster, how: Smoothness
) -> tuple[Surface, dict[str, list[tuple[float, float]]]]:
    """The fit to all rows, and the errors on fitted rows and on rows kept out."""
    facts = nccl_facts(cluster)
    others = elsewhere(kind, gpu)
    surface = fit(kind, rows, cluster, how, others)
    found = {"fitted": [*zip(rows.nbytes, errors(surface, rows, facts), strict=True)]}
    for name, parts in folds(rows).items():
        found[f"kept out: {name}"] = []
        for out in parts:
            seen = others
            if name == "sizes":
                # A size that nobody measured is measured on no GPU.
                seen = elsewhere(kind, gpu, np.round(np.log2(rows.nbytes[out])))
            off = errors(fit(kind, rows[~out], cluster, how, seen), rows[out], facts)
            found[f"kept out: {name}"] += zip(rows.nbytes[out], off, strict=True)
    return surface, found


def record_of(measured: str, name: str, cluster: Cluster) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    total: dict[str, list[tuple[float, float]]] = {}
    for kind, rows in read(measured, cluster).items():
        surface, found = judge(measured, kind, rows, cluster, smoothness(kind))
        judged = {key: scores(pairs) for key, pairs in found.items() if pairs}
        show(measured, kind, judged)
        for key, pairs in found.items():
            total.setdefault(key, []).extend(pairs)
        kinds[kind] = {
            "source": f"fitted to {len(rows)} rows of measured/collectives.csv by "
            "scripts/fit_collectives.py",
            "form": dataclasses.asdict(surface.form),
            "correction": {
                "ranks": [round(2**x) for x in surface.log2_ranks],
                "log2_bytes": [int(x) for x in surface.log2_bytes],
                "factors": np.exp(surface.factors).round(4).tolist(),
            },
            "errors": judged,
        }
    judged = {key: scores(pairs) for key, pairs in total.items() if pairs}
    show(measured, "all", judged)
    return {
        "gpu": name,
        "measured": measured,
        "source": f"fitted to published measurements of {measured}",
        "peak_bytes_per_s": cluster.inside.bytes_per_s,
        "errors": judged,
        "kinds": kinds,
    }


def write(name: str, record: dict[str, Any]) -> None:
    path = COST / "collectives" / f"{name}.json"
    path.write_text(compact(record) + "\n")


def main() -> None:
    for measured, (name, spelled) in MEASURED.items():
        write(name, record_of(measured, name, Cluster.parse(spelled)))
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
