"""Why a collective is exposed, in a sentence."""

from __future__ import annotations

import dataclasses

from lagom_jax.cost.prices import Price
from lagom_jax.cost.timeline import TaskTime
from lagom_jax.hlo.collective import Collective
from lagom_jax.units import in_seconds

# A collective that is at least this much hidden needs no explanation.
_HIDDEN_ENOUGH = 0.95
# Independent work covers a collective if it takes at least this share of its time.
_COVERS = 0.9
_HARDLY = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a collective in its program."""

    synchronous: bool
    independent_seconds: float | None
    """Work per execution that could run beside it; None where nobody looked."""


def cause(
    collective: Collective, times: TaskTime, price: Price, around: Surroundings
) -> str:
    """Why a collective is exposed; empty where most of it is hidden."""
    if not times.seconds or times.hidden_seconds >= _HIDDEN_ENOUGH * times.seconds:
        return ""
    if collective.one_shot_kernel:
        return "runs as XLA's own small all-reduce kernel, on the compute stream"
    each = in_seconds(times.exposed_seconds / times.executions)
    if price.bound == "wan":
        return (
            f"computation stands still for it {each} a run. Its link is a WAN, which "
            "no setting makes faster."
        )
    start = (
        f"synchronous, {each} a run."
        if around.synchronous
        else f"computation stands still for it {each} a run."
    )
    return f"{start} {_blame(price, around)}".strip()


def _blame(price: Price, around: Surroundings) -> str:
    independent = around.independent_seconds
    if independent is None:
        return ""
    if independent < _HARDLY * price.seconds:
        return "Nothing else in its block could run beside it."
    amount = in_seconds(independent)
    if independent >= _COVERS * price.seconds:
        return (
            f"Its block has {amount} of work that does not depend on it: another "
            "schedule could hide it."
        )
    return (
        f"Its block has {amount} of work that does not depend on it, which could hide "
        "a part."
    )
