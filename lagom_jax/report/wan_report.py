"""Communication between regions: the part that nothing in a step can hide."""

from __future__ import annotations

from collections.abc import Iterable

from lagom_jax.cluster import Cluster
from lagom_jax.cost.timeline import Timeline
from lagom_jax.units import in_seconds


def wan_seconds(timeline: Timeline) -> float:
    """Seconds of the collectives whose link is a WAN, over all their executions."""
    return sum(
        times.seconds
        for collective, times in timeline.collectives().items()
        if timeline.prices[collective].bound == "wan"
    )


def between_regions(
    over_wan: float, compute_seconds: float, cluster: Cluster
) -> Iterable[str]:
    """A note where a step cannot hide what it sends to other regions.

    Args:
        over_wan: Seconds of what is sent between regions in a step.
        compute_seconds: Seconds of computation in a step.
        cluster: Has the link.

    Example:
        >>> cluster = Cluster.parse("2*h100:8x8@10gbps,80ms")
        >>> list(between_regions(0.1, 0.2, cluster))
        []
    """
    if cluster.wan is None or over_wan <= compute_seconds:
        return
    times = over_wan / compute_seconds if compute_seconds else float("inf")
    yield (
        f"collectives between the {cluster.regions} regions take "
        f"{in_seconds(over_wan)} over a WAN ({cluster.wan.name}), and a step has "
        f"{in_seconds(compute_seconds)} of computation: no setting, option or order "
        f"can hide them. At least {times:.3g} times less must be sent in a step; "
        "`lagom regions plan` says which strategy of lagom_jax.regions does"
    )
