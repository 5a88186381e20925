"""Surfaces of times of collectives, fitted to rows of measurements.

Part of `fit_collectives.py`, which says what is fitted, and judges it.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
from fit_scores import LARGE
from never_falling import never_falling
from smooth_corrections import Residuals, Smoothness, smooth, told_apart

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_default import default_of
from lagom_jax.cost.nccl_facts import NcclFacts, nccl_facts, numbers_of
from lagom_jax.cost.peers import default_parts
from lagom_jax.cost.span import Span
from lagom_jax.cost.structure import EXCHANGED_KINDS, Exchanged, Form, Streamed
from lagom_jax.cost.surface import Surface
from lagom_jax.measurements.rows import read_collectives

COST = Path(__file__).parent.parent / "lagom_jax" / "cost"
TABLE_NCCL = "2.27.5"
"""Taken for collectives.csv, which does not say it: it has its jumps there."""
LAUNCHED = {"h100-sxm", "b200"}
"""GPUs whose rows of collectives.csv include the launch. A rack's are as NCCL alone."""
SUMS = ("all-reduce", "reduce-scatter")
# In microseconds: copies that take less tell what a launch adds to rows of 1 MiB and
# more. Of sums those that take less tell that, and the others how many times as long as
# NCCL alone they take.
SHORT, LONG_SUM = 300.0, 150.0
# How far apart, in logs, the two rates of a permute must be to tell which it had.
TOLD = 0.2
TWINS = {"b200": "gb200-nvl72"}
"""GPUs with the same chip and links: hosts of 4 tell what 4 of 8 take."""
# In Simple, rows of more than two GPUs over PCIe jump between two rates, 1.4 to 1.7
# apart, and nothing in a row tells which it had: the fit is to lie between.
PAIR, JUMPS = 2, 0.25
# What each of eight L40S sends in an all-reduce of 1 MiB, and the part of its time that
# it saves beside the all-reduces of 4 MiB and more. Not fitted.
FIRST_BYTES, FIRST_SAVED = 1.8e6, 0.3
LOG2_BYTES = range(8, 37)
PROTOCOLS = ("ll", "ll128", "simple")


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
    launched: np.ndarray
    """Whether the time includes the host's launch."""
    version: np.ndarray
    """A number for each version of NCCL, see `VERSIONS`."""
    own: np.ndarray
    """False for rows of a twin."""

    def __len__(self) -> int:
        return len(self.nbytes)

    def __getitem__(self, chosen: np.ndarray) -> Rows:
        return Rows(*(getattr(self, f.name)[chosen] for f in dataclasses.fields(self)))


VERSIONS: list[str] = []


STREAMED = Smoothness(0.15, 0.15, 5.0, 3.0, 0.5)
EXCHANGED = Smoothness(0.2, 0.2, 4.0, 3.0, 0.5)
# Permutes were measured at every power of two, so more can be told apart. A host has 4
# and 8 pairs, a rack 64 and 72: they have little to tell each other.
PERMUTE = Smoothness(0.2, 0.1, 2.5, 3.0, 0.0)
# Over PCIe eight GPUs are another thing than two, which the forms know.
PCIE_STREAMED = Smoothness(0.1, 0.1, 5.0, 2.0, 0.0)
PCIE_EXCHANGED = Smoothness(0.1, 0.3, 4.0, 2.0, 0.0)


def smoothness(kind: str, cluster: Cluster) -> Smoothness:
    if through_processors(cluster):
        return PCIE_EXCHANGED if kind in EXCHANGED_KINDS else PCIE_STREAMED
    if kind == "collective-permute":
        return PERMUTE
    return EXCHANGED if kind in EXCHANGED_KINDS else STREAMED


# Prior medians of the coefficients and how far, as factors of e, they may be off.
PRIORS = {
    Streamed: (
        (6.0, 0.6, 1.0, 1.0, 3.0, 5.0, 0.8, 0.4, 2.0, 1.0, 1.5),
        (1.0, 1.0, 2.0, 1.5, 1.5, 1.0, 0.3, 0.3, 0.7, 1.0, 0.5),
    ),
    Exchanged: (
        (10.0, 0.3, 3.0, 10.0, 25.0, 1.4, 0.7, 2.0, 2.0, 1.5),
        (1.0, 2.0, 1.0, 1.0, 0.5, 0.3, 0.3, 0.7, 1.0, 0.5),
    ),
}


DOUBLING, SIMPLE_DOUBLING = 2, 4
"""Places among the coefficients of `Streamed` of what each doubling adds."""
PER_RANK, RAMP = 1, 8
"""Places among those of `Exchanged`."""


def read(gpu: str, cluster: Cluster) -> dict[str, Rows]:
    found: dict[str, list[tuple[float, ...]]] = {}
    for name in ("collectives.csv", "nccl_alone.csv"):
        text = (COST / "measured" / name).read_text()
        for row in read_collectives(text).rows:
            own = row.gpu == gpu
            if not own and (row.gpu != TWINS.get(gpu) or name == "collectives.csv"):
                continue
            ranks = row.group_size or row.devices
            job = cluster.gpus_per_host * math.ceil(row.devices / cluster.gpus_per_host)
            launched = name == "collectives.csv" and gpu in LAUNCHED
            values = (row.devices, ranks, job, row.tensor_bytes, row.microseconds)
            found.setdefault(row.op, []).append(
                (*values, launched, numbered(row.nccl or TABLE_NCCL), own)
            )
    return {kind: Rows(*np.array(v, float).T) for kind, v in sorted(found.items())}


def numbered(version: str) -> int:
    if version not in VERSIONS:
        VERSIONS.append(version)
    return VERSIONS.index(version)


def noise(kind: str, rows: Rows, cluster: Cluster) -> np.ndarray:
    """Relative scatter of a measurement: small messages are mostly latency."""
    small = np.where(rows.nbytes >= 1 << 14, 0.12, 0.3)
    launched = np.where(rows.nbytes >= LARGE, 0.08, small)
    rest = np.where(rows.nbytes >= LARGE, 0.04, 0.06)
    scatter = np.where(rows.launched > 0, launched, rest)
    if through_processors(cluster) and kind not in EXCHANGED_KINDS:
        simple = protocols(placed(kind, rows, cluster)) == PROTOCOLS.index("simple")
        return np.where(simple & (rows.ranks > PAIR), JUMPS, scatter)
    return scatter


def through_processors(cluster: Cluster) -> bool:
    """Whether many GPUs reach each other through the processors alone."""
    return cluster.inside.kind == "pcie"


@dataclasses.dataclass(frozen=True)
class Placed:
    """How NCCL runs a row, by its own model."""

    span: Span
    protocol: str
    facts: NcclFacts


def placed(kind: str, rows: Rows, cluster: Cluster) -> list[Placed]:
    found: list[Placed] = []
    for span, nbytes, number in zip(
        spans(kind, rows), rows.nbytes, rows.version, strict=True
    ):
        facts = nccl_facts(cluster, VERSIONS[int(number)])
        protocol = default_of(kind, float(nbytes), span, facts).protocol
        found.append(Placed(span, protocol, facts))
    return found


def protocols(where: list[Placed]) -> np.ndarray:
    return np.array([PROTOCOLS.index(one.protocol) for one in where])


def fit_form(kind: str, rows: Rows, cluster: Cluster) -> Form:
    """Gauss-Newton on the logs of the coefficients, with a prior and Huber weights."""
    form = Exchanged if kind in EXCHANGED_KINDS else Streamed
    fixed: dict[str, float] = {}
    if form is Streamed and through_processors(cluster):
        fixed = {"first_bytes": FIRST_BYTES, "first_saved": FIRST_SAVED}
    median, spread = PRIORS[form]
    start, precision = np.log(median), 1 / np.square(spread)
    if form is Streamed and cluster.inside.kind == "pcie":
        # NCCL's hop of Simple over PCIe is 5 us longer than that of LL. Left free, the
        # eight GPUs of a host, which go through the processors, would have this latency
        # stand for their rate, and two GPUs pay for it.
        start[SIMPLE_DOUBLING], precision[SIMPLE_DOUBLING] = math.log(5.0), 1 / 0.3**2
    if form is Streamed and cluster.system.hosts_per_domain == 1:
        # Inside a host NCCL's trees are chains, as its rings: ranks add, not doublings.
        start[DOUBLING], precision[DOUBLING] = math.log(0.2), 1.0
    if kind == "collective-permute":
        # Each GPU has one peer, however many there are, and channels limit it first.
        for absent in (PER_RANK, RAMP):
            start[absent], precision[absent] = math.log(1e-6), 1e6
    if not through_processors(cluster):
        # The last, by how much more GPUs make a link slower.
        start, precision = start[:-1], precision[:-1]
    scale = np.maximum(noise(kind, rows, cluster), 0.1)
    where = placed(kind, rows, cluster)

    def formed(logs: np.ndarray) -> Form:
        return form(*np.exp(logs), **fixed)

    def predicted(logs: np.ndarray, told: list[Placed]) -> np.ndarray:
        return np.log(form_times(kind, formed(logs), rows, cluster, told))

    logs = start.copy()
    for _ in range(25):
        told = rates_told(kind, formed(logs), rows, cluster, where)
        here = predicted(logs, told)
        step = 1e-4
        slopes = [
            (predicted(logs + step * e, told) - here) / step for e in np.eye(len(logs))
        ]
        jacobian = np.stack(slopes, axis=1)
        off = np.log(rows.microseconds) - here
        # Neighbouring rows err together, so each counts half.
        weights = 0.5 / scale**2 / np.maximum(1, np.abs(off) / scale / 1.5)
        curvature = jacobian.T @ (weights[:, None] * jacobian) + np.diag(precision)
        pull = jacobian.T @ (weights * off) - precision * (logs - start)
        logs = logs + np.clip(np.linalg.solve(curvature, pull), -0.3, 0.3)
    fitted = form(*(float(f"{x:.4g}") for x in np.exp(logs)), **fixed)
    if isinstance(fitted, Exchanged) and kind == "collective-permute":
        share = apart_share(fitted, rows, cluster, where)
        return dataclasses.replace(fitted, apart_share=share)
    return fitted


def apart_share(
    form: Exchanged, rows: Rows, cluster: Cluster, where: list[Placed]
) -> float:
    """A half where both rates were measured, or neither; else the one that was."""
    kind = "collective-permute"
    unknown = np.array([one.span.apart is None for one in where])
    rows, where = rows[unknown], [w for w, u in zip(where, unknown, strict=True) if u]
    both = [
        form_times(kind, form, rows, cluster, [known(one, b) for one in where])
        for b in (True, False)
    ]
    in_step, apart = (np.abs(np.log(rows.microseconds / times)) for times in both)
    told = np.abs(np.log(both[0] / both[1])) > TOLD
    seen = {bool(x) for x in (apart < in_step)[told]}
    return float(seen.pop()) if len(seen) == 1 else 0.5


def known(one: Placed, in_step: bool) -> Placed:
    return dataclasses.replace(one, span=dataclasses.replace(one.span, in_step=in_step))


def rates_told(
    kind: str, form: Form, rows: Rows, cluster: Cluster, where: list[Placed]
) -> list[Placed]:
    """Where nobody wrote the pairs down, the rate that is nearer tells of them."""
    if kind != "collective-permute":
        return where
    choices = [[known(one, b) for one in where] for b in (True, False)]
    off = [
        abs(np.log(form_times(kind, form, rows, cluster, c) / rows.microseconds))
        for c in choices
    ]
    nearer = (off[1] < off[0]).astype(int)
    return [
        one if one.span.apart is not None else choices[which][i]
        for i, (one, which) in enumerate(zip(where, nearer, strict=True))
    ]


def form_times(
    kind: str, form: Form, rows: Rows, cluster: Cluster, where: list[Placed]
) -> np.ndarray:
    peak = cluster.inside.bytes_per_s
    found: list[float] = []
    for nbytes, one in zip(rows.nbytes, where, strict=True):
        size = one.span.size
        if isinstance(form, Streamed):
            parts = form.parted(kind, float(nbytes), size, peak, one.protocol)
        else:
            layout = default_parts(kind, float(nbytes), size, one.facts)
            parts = form.parted(kind, float(nbytes), one.span, peak, layout)
        found.append(sum(parts))
    return np.array(found)


def left(kind: str, form: Form, rows: Rows, cluster: Cluster) -> Residuals:
    """Logs of measured over form, for the correction to follow."""
    where = placed(kind, rows, cluster)
    told = rates_told(kind, form, rows, cluster, where)
    logs = np.log(rows.microseconds / form_times(kind, form, rows, cluster, told))
    scatter = noise(kind, rows, cluster)
    return Residuals(
        rows.nbytes, rows.ranks, logs, scatter, protocols(where), series(rows)
    )


def series(rows: Rows) -> np.ndarray:
    """Rows that share what only they have: a version's, or a twin's."""
    return np.where(rows.own > 0, rows.version, -1 - rows.version)


def spans(kind: str, rows: Rows) -> list[Span]:
    if kind == "collective-permute":
        pairs = zip(rows.job, rows.ranks, strict=True)
        return [Span(int(job), 1, 1, int(n)) for job, n in pairs]
    return [Span(int(n), 1, int(n)) for n in rows.ranks]


@dataclasses.dataclass(frozen=True)
class InTable:
    """Time of a single program beside that of NCCL alone."""

    below: float = 0.0
    """Microseconds that the host's launch adds below 1 MiB."""
    above: float = 0.0
    """The same from 1 MiB on: a longer kernel hides some of it."""
    times: float = 1.0
    """So many times as long the kernel takes from 1 MiB on."""


Launch = dict[int, InTable]
"""The same by ranks of a group."""


def launch_of(kind: str, surface: Surface, rows: Rows, cluster: Cluster) -> Launch:
    """What rows of single programs take longer than NCCL alone."""
    found: Launch = {}
    for ranks in sorted({int(n) for n in rows.ranks[rows.launched > 0]}):
        part = rows[(rows.launched > 0) & (rows.ranks == ranks)]
        times = surface_times(surface, part, cluster)
        large = part.nbytes >= LARGE
        small = ~large & (part.nbytes >= 4096)
        below = _added(part[small], times[small])
        found[ranks] = InTable(below, *_large(kind, part[large], times[large]))
    return found


def _large(kind: str, rows: Rows, times: np.ndarray) -> tuple[float, float]:
    """What the launch adds to large rows, and how many times as long a sum takes."""
    if kind not in SUMS:
        short = times < SHORT
        return _added(rows[short], times[short]), 1.0
    long = times >= LONG_SUM
    added, longer = _added(rows[~long], times[~long]), 1.0
    if long.any():
        # Each is judged without the other, in turn.
        for _ in range(6):
            shares = np.maximum(rows.microseconds - added, 1.0) / times
            longer = round(max(1.0, float(np.median(shares[long]))), 4)
            added = _added(rows[~long], longer * times[~long])
    return added, longer


def _added(rows: Rows, times: np.ndarray) -> float:
    return round(max(0.0, float(np.median(rows.microseconds - times))), 2)


def in_table(launch: Launch, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds that rows have more than NCCL alone, and times its own time."""
    added, longer = np.zeros(len(rows)), np.ones(len(rows))
    for place, (ranks, nbytes, launched) in enumerate(
        zip(rows.ranks, rows.nbytes, rows.launched, strict=True)
    ):
        known = launch.get(int(ranks))
        if known is not None and launched:
            large = nbytes >= LARGE
            added[place] = known.above if large else known.below
            longer[place] = known.times if large else 1.0
    return added, longer


def without_launch(rows: Rows, launch: Launch) -> Rows:
    """The rows as of NCCL alone."""
    added, longer = in_table(launch, rows)
    # Some rows, warm-up aside, are below the median launch: half is left at least.
    alone = np.maximum(rows.microseconds - added, rows.microseconds / 2) / longer
    return dataclasses.replace(rows, microseconds=alone)


def fit(
    kind: str, rows: Rows, cluster: Cluster, how: Smoothness
) -> tuple[Surface, Launch]:
    alone = rows[rows.launched == 0]
    launch: Launch = {}
    if 0 < len(alone) < len(rows):
        launch = launch_of(kind, fit_alone(kind, alone, cluster, how), rows, cluster)
    return fit_alone(kind, without_launch(rows, launch), cluster, how), launch


def fit_alone(kind: str, rows: Rows, cluster: Cluster, how: Smoothness) -> Surface:
    peak = cluster.inside.bytes_per_s
    form = fit_form(kind, rows, cluster)
    correction = smooth(left(kind, form, rows, cluster), how)
    powers = {2**i for i in range(1, 1 + int(math.log2(rows.ranks.max())))}
    knots = sorted(powers | {int(n) for n in rows.ranks})
    sizes = 2.0 ** np.array(LOG2_BYTES)

    def tables(of_series: int) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for number, protocol in enumerate(PROTOCOLS):
            if protocol == "ll128" and kind in EXCHANGED_KINDS:
                continue
            table = []
            for n in knots:
                ranks = np.full(len(sizes), float(n))
                row = correction(sizes, ranks, number, of_series)
                if isinstance(form, Streamed):
                    row = never_falling(kind, form, row, sizes, n, peak, protocol)
                table.append(row)
            found[protocol] = np.array(table, dtype=np.float64)
        return found

    versions = {int(number) for number in rows.version[rows.own > 0]}
    *older, newest = sorted(versions, key=lambda number: numbers_of(VERSIONS[number]))
    if not told_apart(rows.ranks, series(rows)):
        older = []
    return Surface(
        kind,
        form,
        np.log2(np.array(knots, dtype=np.float64)),
        np.array(LOG2_BYTES, dtype=float),
        tables(newest),
        peak,
        {VERSIONS[number]: tables(number) for number in older},
    )


def surface_times(surface: Surface, rows: Rows, cluster: Cluster) -> np.ndarray:
    kind, peak = surface.kind, cluster.inside.bytes_per_s
    return np.array(
        [
            1e6 * sum(surface.parted(float(s), one.span, peak, one.facts, one.protocol))
            for s, one in zip(rows.nbytes, placed(kind, rows, cluster), strict=True)
        ]
    )


def errors(found: tuple[Surface, Launch], rows: Rows, cluster: Cluster) -> np.ndarray:
    surface, launch = found
    times = surface_times(surface, rows, cluster)
    added, longer = in_table(launch, rows)
    return np.abs((longer * times + added) / rows.microseconds - 1)
