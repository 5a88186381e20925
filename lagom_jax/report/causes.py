"""Reasons of exposed collectives, in sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from lagom_jax.cost.prices import Price
from lagom_jax.cost.timeline import TaskTime
from lagom_jax.hlo.collective import Collective
from lagom_jax.report.figures import Beside
from lagom_jax.units import in_percent, in_seconds

# A collective that is at least this much hidden needs no explanation.
_HIDDEN_ENOUGH = 0.95
# Independent work covers a collective if it takes at least this share of its time.
_COVERS = 0.9
_HARDLY = 0.1
_MOST = 0.9
_WORTH_A_WORD = 0.005
PLURALS: Final[Mapping[str, str]] = {
    "matmul": "matmuls",
    "convolution": "convolutions",
    "reduction": "reductions",
    "fusion": "fusions",
    "transpose": "transposes",
    "copy": "copies",
    "host-copy": "copies to and from the host",
    "custom": "custom calls",
    "stated": "stated kernels",
    "solve": "solves",
    "sort": "sorts",
    "scatter": "scatters",
    "gather": "gathers",
    "fft": "transforms",
}
"""Kinds of kernel, of several."""


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a collective in its program."""

    synchronous: bool
    independent_seconds: float | None
    """Work per execution that could run beside it; None where nobody looked."""


def cause(
    collective: Collective, times: TaskTime, price: Price, around: Surroundings
) -> str:
    """Reason why a collective is exposed; empty where most of it is hidden."""
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


def verdict(
    collective: Collective,
    times: TaskTime,
    price: Price,
    around: Surroundings,
    beside: Sequence[Beside],
) -> str:
    """Hidden or exposed, behind what or why, in a few words.

    Args:
        collective: The collective.
        times: Its times in the step.
        price: Its time alone.
        around: Its surroundings in the program.
        beside: What it overlapped with, the most first.
    """
    if not times.seconds:
        return "takes no time"
    hidden = times.hidden_seconds / times.seconds
    behind = _behind(beside)
    if hidden >= _HIDDEN_ENOUGH:
        return f"hidden {behind}".strip()
    if collective.one_shot_kernel:
        return "exposed: XLA's own kernel on the compute stream"
    if around.synchronous:
        return "exposed: on the compute stream, where nothing can hide it"
    start = "exposed"
    if hidden >= _HARDLY:
        start = f"{in_percent(hidden, 1)} hidden {behind}; the rest exposed"
    if price.bound == "wan":
        return f"{start}: its link is a WAN"
    independent = around.independent_seconds
    if independent is None:
        return start
    if independent < _HARDLY * price.seconds:
        return f"{start}: nothing independent to hide behind"
    if independent >= _COVERS * price.seconds:
        return f"{start}: another schedule could hide it"
    return f"{start}: another schedule could hide a part"


def _behind(beside: Sequence[Beside]) -> str:
    """Computation that hides a collective, and by how much it is slower for it."""
    if not beside:
        return ""
    most, total = beside[0], sum(one.seconds for one in beside)
    words = f"behind {PLURALS.get(most.what, most.what)}"
    if most.where:
        words += f" of {most.where}"
    if most.seconds < _MOST * total:
        words += " and others"
    slower = sum(one.slowed_seconds for one in beside)
    if slower < _WORTH_A_WORD * total:
        return words
    return f"{words}, which take {in_percent(slower, total - slower)} longer for it"


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
