"""The process's share of a plan: variables that it needs, versions, memory, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from lagom_jax.cost.model import CostModel
from lagom_jax.cost.nccl_facts import numbers_of
from lagom_jax.cost.symmetric_kernels import Carried
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.options.off_rings import MODES, SYMMETRIC
from lagom_jax.plan import Needs, ProcessVariable
from lagom_jax.plan.process_needs import MEMORY_FRACTION
from lagom_jax.plan.transport import CTA_POLICY, POLICY_VALUES, Transport
from lagom_jax.planner.judge import View
from lagom_jax.units import in_bytes, in_seconds
from xla_flags import known

_RESERVE: Final = 0.02
"""The part of a GPU's memory that is left to drivers and to NCCL's own buffers."""


def variables_of(view: View, memory_bytes: int, pool: float) -> list[ProcessVariable]:
    """Variables that a process has to have for a program to run as planned.

    Args:
        view: The program.
        memory_bytes: Of a device.
        pool: The part of it that jax sets aside by default.
    """
    found: list[ProcessVariable] = []
    if view.policy != "default":
        found.append(
            ProcessVariable(
                CTA_POLICY,
                POLICY_VALUES[view.policy],
                "collectives in symmetric memory run by copy engines under this policy "
                "only; without it by symmetric kernels",
                view.without_policy,
            )
        )
    symmetric = view.scheduled.symmetric_bytes
    if symmetric > (1 - pool - _RESERVE) * memory_bytes:
        share = int(100 * (1 - symmetric / memory_bytes - _RESERVE)) / 100
        found.append(
            ProcessVariable(
                MEMORY_FRACTION,
                f"{share:.2f}",
                f"{in_bytes(symmetric)} of symmetric memory lie beside what jax sets "
                "aside",
                None,
            )
        )
    return found


def needs_of(view: View, model: CostModel) -> Needs:
    """Needs of a program off the rings for the installation.

    Args:
        view: The program.
        model: That of the policy it was looked at under.
    """
    constants = model.constants.transports
    since: set[str] = set()
    copied = False
    for site, carried in _carried(view, model).items():
        if carried.transport == "copy engines":
            copied = True
            since.add(
                constants.one_sided_since
                if site.one_sided
                else constants.copy_engines_since
            )
        elif site.operand_count > 1:
            since.add(constants.several_at_once_since)
        else:
            since.add(constants.symmetric_since)
    return Needs(
        nccl=max(since, key=numbers_of, default=""),
        cuda_driver=constants.cuda_driver if copied else "",
        bytes_outside_pool=view.scheduled.symmetric_bytes,
    )


def reasons(first: View, best: View, model: CostModel) -> Iterator[str]:
    """Words about what runs off the rings, what that costs and what it gives.

    Args:
        first: The program as it is.
        best: The one that was chosen.
        model: That of the policy it was looked at under.
    """
    carried = _carried(best, model)
    if not carried:
        return
    kinds: dict[str, Counter[Transport]] = {}
    figures = best.timeline.collectives()
    for site, found in carried.items():
        by = kinds.setdefault(site.kind, Counter())
        by[found.transport] += round(figures[site].executions)
    for kind, by in kinds.items():
        words = ", ".join(f"{count} by {name}" for name, count in by.most_common())
        yield f"{kind}s: {words}" + _times(first.timeline, best.timeline, kind)
    now = best.timeline.totals.contention_seconds
    lost = first.timeline.totals.contention_seconds
    yield (
        f"kernels lose {in_seconds(now)} beside collectives, with all on rings "
        f"{in_seconds(lost)}"
    )


def hazards(options: Collection[str]) -> Iterator[str]:
    """Words about the risks of options that take collectives off the rings.

    Args:
        options: Names of those in a plan.

    Example:
        >>> any("illegal accesses" in one.lower() for one in hazards([SYMMETRIC]))
        True
    """
    for name in (SYMMETRIC, *MODES.values()):
        if name in options:
            yield from (f"{name}: {hazard}" for hazard in known()[name].hazards)


def _times(first: Timeline, best: Timeline, kind: str) -> str:
    """All of a kind alone, and beside that on rings."""
    usual, now = (
        sum(
            figures.alone_seconds
            for site, figures in timeline.collectives().items()
            if site.kind == kind
        )
        for timeline in (first, best)
    )
    if not usual:
        return f": {in_seconds(now)} alone"
    change = 100 * (now / usual - 1)
    word = "slower" if change > 0 else "faster"
    return f": {in_seconds(now)} alone, {abs(change):.0f} % {word} than on rings"


def _carried(view: View, model: CostModel) -> dict[Collective, Carried]:
    found: dict[Collective, Carried] = {}
    for site, _, _ in view.program.collectives():
        carried = model.carried(site)
        if carried is not None:
            found[site] = carried
    return found
