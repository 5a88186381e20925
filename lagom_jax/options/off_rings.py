"""Ideas that take collectives off the rings, and why others are none.

Where a collective runs the compiler decides by the memory that it gives it, and NCCL by
the process's policy (`cost.transports`). An idea is an option of the compiler; whether
a policy helps with what comes out, the replay says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from lagom_jax.cost.model import CostModel, call_of
from lagom_jax.cost.nccl_facts import numbers_of
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.options.ideas import Idea
from lagom_jax.plan.setting import REDUCING
from lagom_jax.plan.transport import Refusal
from xla_flags import known

SYMMETRIC: Final = "xla_gpu_experimental_enable_nccl_symmetric_buffers"
"""The option that gives all collectives symmetric memory."""
MODES: Final = {
    "all-gather": "xla_gpu_all_gather_mode",
    "collective-permute": "xla_gpu_collective_permute_mode",
    "ragged-all-to-all": "xla_gpu_ragged_all_to_all_mode",
}
"""By kind: the option that lets XLA run it by puts of its own."""
ON: Final = "COLLECTIVES_SYMMETRIC_MEMORY"
_COPIED: Final = ("all-gather", "all-to-all")
# openxla/xla#36462: symmetric buffers were held back, since NCCL before it ran into
# illegal accesses of memory with them.
_KNOWN_BAD_BEFORE: Final = (2, 28)


@dataclasses.dataclass(frozen=True, slots=True)
class OffRings:
    """Collectives that could run off the rings, and those that cannot."""

    ideas: tuple[Idea, ...]
    refusals: tuple[Refusal, ...]
    """Each condition once, of kinds that no other idea takes off the rings."""


def off_rings(
    timeline: Timeline,
    model: CostModel,
    *,
    jaxlib: str,
    pinned: Collection[str] = (),
    deterministic: bool = False,
) -> OffRings:
    """Ideas for a program whose collectives run on rings.

    Args:
        timeline: Its replay.
        model: The cluster, and NCCL's version on it.
        jaxlib: The version, which may lack an option.
        pinned: Options that the user has set; they stay as they are.
        deterministic: Leaves out what may change the rounding of sums.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.timeline import Totals
        >>> model = CostModel.of(Cluster.parse("h100:1x8"))
        >>> off_rings(Timeline(Totals(), {}, {}), model, jaxlib="0.10.2").ideas
        ()
    """
    sites = [
        site
        for site in timeline.collectives()
        if not site.one_shot_kernel and call_of(site, model.cluster).span.size > 1
    ]
    found: list[Idea] = []
    refusals: list[Refusal] = []
    for kind, option in MODES.items():
        here = [site for site in sites if site.kind == kind]
        able, why_not = _told_apart(here, lambda site: _one_sided(site, model))
        refusals += why_not
        if able:
            found.append(
                Idea(
                    f"{kind}s by copy engines",
                    {option: ON},
                    f"{kind}s that XLA puts into the memory of the others take no SM "
                    "from the kernels beside them",
                    _most(timeline, able),
                    first=False,
                )
            )
    able, why_not = _told_apart(sites, lambda site: _symmetric(site, model))
    refusals += why_not
    sums = any(site.kind in ("all-reduce", "reduce-scatter") for site in able)
    if able and not (deterministic and sums):
        found.append(
            Idea(
                "symmetric memory",
                {SYMMETRIC: True},
                "collectives that read and write the others' memory take few SMs, or "
                "with copy engines none, and less latency",
                _most(timeline, able),
                # The switch adds up in an order of its own.
                keeps_order=not sums,
                first=False,
                instead_of=tuple(MODES.values()),
            )
        )
    kept = (
        idea
        for idea in found
        if not any(
            name in pinned or not known()[name].is_known_in(jaxlib)
            for name in idea.options
        )
    )
    return OffRings(tuple(kept), tuple(_each_condition_once(refusals)))


def _told_apart(
    sites: Iterable[Collective], refused: Callable[[Collective], Refusal | None]
) -> tuple[list[Collective], list[Refusal]]:
    able: list[Collective] = []
    why_not: list[Refusal] = []
    for site in sites:
        refusal = refused(site)
        if refusal is None:
            able.append(site)
        else:
            why_not.append(refusal)
    return able, why_not


def _one_sided(site: Collective, model: CostModel) -> Refusal | None:
    constants = model.constants
    call = call_of(site, model.cluster)
    return call.one_sided_refusal(constants.transports, constants.nccl)


def _symmetric(site: Collective, model: CostModel) -> Refusal | None:
    constants = model.constants
    call = call_of(site, model.cluster)
    if hazard := known_hazard(constants.nccl):
        return hazard
    refusal = call.refusal("symmetric kernels", constants.transports, constants.nccl)
    if refusal is not None and site.kind in _COPIED and site.kind not in REDUCING:
        return call.refusal("copy engines", constants.transports, constants.nccl)
    return refusal


def known_hazard(nccl: str) -> Refusal | None:
    """Reason why symmetric memory is off with a version of NCCL; None where it is not.

    Example:
        >>> known_hazard("2.27.3").condition, known_hazard("2.29.7")
        ('known hazard', None)
    """
    if numbers_of(nccl) >= _KNOWN_BAD_BEFORE:
        return None
    return Refusal(
        "symmetric kernels",
        "known hazard",
        f"with NCCL {nccl} XLA's symmetric buffers led to illegal accesses of memory "
        "(openxla/xla#36462)",
        "install NCCL 2.28 or newer",
    )


def _most(timeline: Timeline, sites: Collection[Collective]) -> float:
    """All that their kinds make computation wait, and all that contention costs."""
    figures = timeline.collectives()
    exposed = sum(figures[site].exposed_seconds for site in sites)
    return exposed + timeline.totals.contention_seconds


def _each_condition_once(refusals: Iterable[Refusal]) -> Iterator[Refusal]:
    seen: set[tuple[str, str]] = set()
    for refusal in refusals:
        key = (refusal.transport, refusal.condition)
        if key not in seen:
            seen.add(key)
            yield refusal
