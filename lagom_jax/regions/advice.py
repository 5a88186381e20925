"""RegionAdvice on strategies: what each makes of a model, a step and the links.

All figures are predicted by `utilisation.py`'s replay.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Final

from lagom_jax.errors import RegionError
from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.links import Wan
from lagom_jax.regions.utilisation import RegionModel, Training
from lagom_jax.regions.volume import BITS, kept_bytes

PERIODS: Final = (25, 50, 100, 200, 500)
TARGETS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclasses.dataclass(frozen=True, slots=True)
class RegionChoice:
    """A strategy with its numbers, and what it makes of the link."""

    strategy: str
    """`data parallel`, `diloco`, `streaming` or `cocodc`."""
    period: int
    fragments: int
    delay: int
    """Inner steps, derived from the link."""
    interval: int
    bits: int
    utilisation: float
    """The share of the time in which a region computes."""
    link_use: float
    """The share of the time in which the link is in use."""
    bytes_per_step: float
    """On one link, each way."""
    kept_bytes: int
    """Memory of the outer optimiser, for a whole model."""
    needed_bytes_per_s: float
    """The least bandwidth for the utilisation that is aimed at."""


@dataclasses.dataclass(frozen=True, slots=True)
class RegionAdvice:
    """Every strategy that was looked at, and the one to take."""

    workload: RegionModel
    wan: Wan
    target: float
    choices: tuple[RegionChoice, ...]
    best: RegionChoice | None
    """The one to take; None where none reaches the target."""


def advise(
    workload: RegionModel,
    wan: Wan,
    *,
    periods: Iterable[int] = PERIODS,
    fragments: int = 4,
    link_use: float = 0.4,
    target: float = 0.95,
) -> RegionAdvice:
    """Looks at all strategies.

    The one to take reaches the target with the shortest period, since regions differ
    least then; of those the simplest (DiLoCo before Streaming DiLoCo before CoCoDC),
    with the most bits.

    Args:
        workload: The model on one region.
        wan: The links.
        periods: Inner steps in which everything is to be exchanged once.
        fragments: How many parts the model is cut into, where it is.
        link_use: The share of the time that CoCoDC may use the link.
        target: The utilisation to reach, below 1.

    Example:
        >>> found = advise(RegionModel(1e9, 24, 0.1), Wan.shared(2, "10gbps,80ms"))
        >>> found.best.strategy, found.best.period
        ('streaming', 25)
    """
    if not 0 < target < 1:
        raise RegionError(f"a utilisation of {target:g} cannot be aimed at")
    found = [_data_parallel(workload, wan, target)]
    for period in periods:
        for bits in BITS:
            found += _with(workload, wan, period, bits, fragments, link_use, target)
    enough = [one for one in found if one.utilisation >= target]
    return RegionAdvice(
        workload, wan, target, tuple(found), enough[0] if enough else None
    )


def _with(
    workload: RegionModel,
    wan: Wan,
    period: int,
    bits: int,
    fragments: int,
    link_use: float,
    target: float,
) -> Iterator[RegionChoice]:
    yield _choice(
        "diloco", workload, wan, Cadence(period, 1, 0, period, False), bits, target
    )
    part = -(-workload.layers // fragments) / workload.layers
    size = math.ceil(workload.parameters * part)
    carried = wan.carried_bytes(size, bits) / wan.bytes_per_s / workload.step_seconds
    delay = math.ceil(carried + wan.latency_s / workload.step_seconds)
    for strategy in ("streaming", "cocodc"):
        try:
            cadence = (
                Cadence.round_robin(period, fragments, delay)
                if strategy == "streaming"
                else Cadence.adaptive_within(
                    period, fragments, delay, link_use, max(carried, 1e-9)
                )
            )
        except RegionError:
            # Too slow a link for this period: a longer one comes next.
            continue
        if carried <= cadence.interval:
            yield _choice(strategy, workload, wan, cadence, bits, target)


def _data_parallel(workload: RegionModel, wan: Wan, target: float) -> RegionChoice:
    cadence = Cadence(1, 1, 0, 1, adaptive=False)
    # Gradients in bfloat16 around a ring, as they are inside a region.
    count = len(wan.regions)
    bits = 16 * 2 * (count - 1) / count
    return _filled("data parallel", workload, wan, cadence, 16, bits, 0, target)


def _choice(
    strategy: str,
    workload: RegionModel,
    wan: Wan,
    cadence: Cadence,
    bits: int,
    target: float,
) -> RegionChoice:
    carried = 8 * wan.carried_bytes(10**6, bits) / 10**6
    size = math.ceil(
        workload.parameters * -(-workload.layers // cadence.fragments) / workload.layers
    )
    kept = kept_bytes(
        int(workload.parameters),
        bits=bits,
        fragment=size,
        in_flight=cadence.in_flight,
        compensated=strategy == "cocodc",
    )
    return _filled(strategy, workload, wan, cadence, bits, carried, kept, target)


def _filled(
    strategy: str,
    workload: RegionModel,
    wan: Wan,
    cadence: Cadence,
    bits: int,
    carried_bits: float,
    kept: int,
    target: float,
) -> RegionChoice:
    sends = cadence.period // cadence.interval if cadence.adaptive else 0
    training = Training(
        workload,
        carried_bits,
        cadence.period,
        cadence.fragments,
        cadence.delay,
        sends,
    )
    utilisation = training.utilisation(wan.bytes_per_s, wan.latency_s)
    per_step = training.bytes_per_step
    return RegionChoice(
        strategy=strategy,
        period=cadence.period,
        fragments=cadence.fragments,
        delay=cadence.delay,
        interval=cadence.interval,
        bits=bits,
        utilisation=utilisation,
        link_use=min(
            1.0, per_step / wan.bytes_per_s / workload.step_seconds * utilisation
        ),
        bytes_per_step=per_step,
        kept_bytes=kept,
        needed_bytes_per_s=training.needed(target, wan.latency_s),
    )
