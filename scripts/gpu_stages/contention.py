"""How much NCCL and kernels slow each other on one GPU, beside the model.

Several ranks of one communicator share the GPU, steered by the tuner plugin, so that
one set of communicators serves all settings. docs/validation/README.md has the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpu_stages.beside.bench import MOST_BYTES
from gpu_stages.beside.fitting import (
    NAMES,
    Floats,
    Measured,
    Predictor,
    fitted,
    worth_keeping,
)
from gpu_stages.beside.measuring import Found, Measuring
from gpu_stages.clusters import cluster_of
from gpu_stages.cuda import nccl
from gpu_stages.cuda.libraries import load
from gpu_stages.cuda.runtime import Gpu, HungError
from gpu_stages.nccl_sharing import ON_ONE_HOST, check_release, in_words
from gpu_stages.opening import patience, places
from gpu_stages.records import measured_before
from gpu_stages.stage import (
    Clock,
    Outcome,
    Request,
    Row,
    Score,
    Update,
)
from gpu_stages.steering import (
    RANKS,
    Steering,
    all_ranks_here,
    alone,
)
from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.sharing import SharingConstants, load_sharing_constants

# For the fit, and for writing it all down.
_SECONDS_AFTER: Final = 20.0
_MEDIAN_GOAL: Final = 0.05
_NINTH_GOAL: Final = 0.10
# Fewer rows on either side say nothing about constants.
_LEAST_ROWS: Final = 12
_WORST: Final = 3
_UNIT: Final = "x"


def run(request: Request) -> Outcome:
    """Measures, predicts, fits, and scores what was kept out of the fit."""
    clock = Clock.of(request)
    steering = Steering(request.folder / "nccl.log", ON_ONE_HOST, alone)
    libraries = load(places(request))
    release = nccl.release(libraries.nccl)
    check_release(release)
    gpu = Gpu(libraries, patience(request))
    found = _measured(gpu, steering, clock, patience(request))
    cluster = cluster_of(request.gpu)
    if gpu.sm_count != cluster.gpu.sm_count:
        found.findings.append(
            f"The GPU has {gpu.sm_count} SMs, and its record {request.gpu} "
            f"{cluster.gpu.sm_count}; predictions are for the record."
        )
    return _judged(found, cluster, in_words(release))


def _measured(gpu: Gpu, steering: Steering, clock: Clock, patience: float) -> Found:
    try:
        with all_ranks_here(gpu, MOST_BYTES, patience) as ranks:
            return Measuring(gpu, ranks, steering).run(clock, _SECONDS_AFTER)
    except HungError as error:
        raise HungError(
            f"{error}; NCCL's communicators were aborted. Ranks that share a GPU wait "
            "for each other: see that nothing else runs on it"
        ) from error


def _judged(found: Found, cluster: Cluster, release: str) -> Outcome:
    predictor = Predictor(cluster, load_constants(cluster))
    old = load_sharing_constants(cluster.gpu)
    used = [row for row in found.rows if not row.kept_out]
    apart = [row for row in found.rows if row.kept_out]
    new = old
    if min(len(used), len(apart)) < _LEAST_ROWS:
        found.left_out.append(
            f"Constants were not fitted: {len(used)} rows for a fit and {len(apart)} "
            f"kept out are too few, it takes {_LEAST_ROWS} of each."
        )
    else:
        best = fitted(used, predictor, old)
        new = worth_keeping(apart, predictor, old, best)
    return Outcome(
        rows=[
            *(_kernel_row(row, predictor, old, new) for row in found.rows),
            *(_collective_row(row, predictor, old, new) for row in found.rows),
        ],
        scores=list(_scores(apart, predictor, old, new)) if apart else [],
        findings=[
            *measured_before(cluster.gpu.name, "sharing"),
            *found.findings,
            *_findings(apart, predictor, new),
        ],
        left_out=found.left_out,
        updates=list(_updates(used, apart, old, new)),
        versions={"NCCL that was measured": release},
    )


def _kernel_row(
    row: Measured, predictor: Predictor, old: SharingConstants, new: SharingConstants
) -> Row:
    load = predictor.kernel_load(row)
    return Row(
        "kernels beside collectives",
        f"{row.kernel.name} beside {row.setting}",
        row.kernel_slowdown,
        predictor.kernel(row, old),
        unit=_UNIT,
        kept_out=row.kept_out,
        fitted=predictor.kernel(row, new),
        details={
            "us alone": _us(row.pair.kernel_alone),
            "us of the collective alone": _us(row.pair.collective_alone),
            "bytes of the collective": row.nbytes,
            "share of memory": round(load.memory_share, 3),
            "tiles": load.tiles,
        },
    )


def _collective_row(
    row: Measured, predictor: Predictor, old: SharingConstants, new: SharingConstants
) -> Row:
    return Row(
        "collectives beside kernels",
        f"{row.setting} beside {row.kernel.name}",
        row.collective_slowdown,
        predictor.collective(row, old),
        unit=_UNIT,
        kept_out=row.kept_out,
        fitted=predictor.collective(row, new),
        details={
            "us alone": _us(row.pair.collective_alone),
            "us of the kernel alone": _us(row.pair.kernel_alone),
            "bytes": row.nbytes,
        },
    )


def _us(seconds: Sequence[float]) -> float:
    return round(1e6 * float(np.median(seconds)), 2)


def _scores(
    apart: Sequence[Measured],
    predictor: Predictor,
    old: SharingConstants,
    new: SharingConstants,
) -> Iterator[Score]:
    def scores(
        what: str, errors: Floats, goals: tuple[float | None, float | None]
    ) -> Iterator[Score]:
        parts = (("median", 50, goals[0]), ("90th percentile", 90, goals[1]))
        for name, share, goal in parts:
            # In points: parts of the time that the task takes alone.
            value = float(np.percentile(np.abs(errors), share))
            text = f"{what}, {name} of the error"
            yield Score(text, value, most=goal, unit="%", kept_out=True)

    for when, sharing, goals in (
        ("before the fit", old, (None, None)),
        ("after the fit", new, (_MEDIAN_GOAL, _NINTH_GOAL)),
    ):
        kernels = predictor.errors(apart, sharing)
        collectives = np.array(
            [
                predictor.collective(row, sharing) - row.collective_slowdown.median
                for row in apart
            ]
        )
        yield from scores(f"slowdown of kernels {when}", kernels, goals)
        yield from scores(f"slowdown of collectives {when}", collectives, (None, None))


def _findings(
    apart: Sequence[Measured], predictor: Predictor, new: SharingConstants
) -> Iterator[str]:
    """The worst of what was kept out."""
    errors = predictor.errors(apart, new)
    for number in np.argsort(-np.abs(errors))[:_WORST]:
        row, error = apart[number], errors[number]
        if abs(error) > _NINTH_GOAL:
            yield (
                f"{row.kernel.name} beside {row.setting} takes "
                f"{row.kernel_slowdown.median:.2f} times as long as alone; after the "
                f"fit the model says {row.kernel_slowdown.median + error:.2f}."
            )


def _updates(
    used: Sequence[Measured],
    apart: Sequence[Measured],
    old: SharingConstants,
    new: SharingConstants,
) -> Iterator[Update]:
    for name in NAMES:
        value = getattr(new, name)
        if value != getattr(old, name):
            yield Update(
                "sharing",
                name,
                value if isinstance(value, bool) else round(value, 4),
                f"fitted to {len(used)} slowdowns of kernels beside collectives of "
                f"{RANKS} ranks that share the GPU, better for {len(apart)} others of "
                "other shapes and settings that were kept out",
            )
