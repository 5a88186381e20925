"""The stages of a search: options, costs, another order; and what each may compile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lagom_jax.options import Idea, ideas
from lagom_jax.options.off_rings import off_rings
from lagom_jax.plan.evidence import COSTS
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.sweep import Sweep
from lagom_jax.planner.trial import Trial, memory_of
from xla_flags import Pin


def search(
    sweep: Sweep,
    judge: Judge,
    first: Trial,
    levers: Sequence[str],
    pins: Iterable[Pin],
    jaxlib: str,
    deterministic: bool,
    compiles: int,
) -> None:
    """Compiles what a budget allows; the sweep keeps the candidates.

    Args:
        sweep: Compiles and keeps candidates.
        judge: Looks at them.
        first: The program as it is.
        levers: What may be used.
        pins: What the user has set.
        jaxlib: The version that compiles.
        deterministic: Leaves out what may change the rounding of sums.
        compiles: How often may be compiled.
    """
    best = first
    pinned = {pin.name for pin in pins}
    costs, orders = "costs" in levers and COSTS not in pinned, "order" in levers
    if "options" in levers:

        def derive(trial: Trial) -> tuple[Idea, ...]:
            assert trial.view is not None
            return ideas(
                trial.view.program,
                trial.view.timeline,
                judge.seconds,
                jaxlib=jaxlib,
                pinned=pinned,
                deterministic=deterministic,
                reorders=orders,
                memory=memory_of(trial, sweep.memory_limit),
            )

        reserve = reserved(compiles, costs=costs, orders=orders)
        best = sweep.improve(best, derive, reserve)
    if costs:
        best = sweep.with_costs(best, reserve=int(orders))
    sweep.in_order(best)
    sweep.order_alone()
    if "transports" in levers:

        def ways(view: View) -> tuple[Idea, ...]:
            return off_rings(
                view.timeline,
                judge.model,
                jaxlib=jaxlib,
                pinned=pinned,
                deterministic=deterministic,
            ).ideas

        sweep.off_rings(ways)
    sweep.answer()


def reserved(compiles: int, *, costs: bool, orders: bool) -> int:
    """The compiles of a budget that options must leave to costs and order.

    An order comes first, since it gives more than costs or any options in a single
    compile; then options; costs are for budgets that have room for all three.

    Args:
        compiles: The budget, with the program as it is.
        costs: Whether our costs may be used.
        orders: Whether another order may be used.

    Example:
        >>> [reserved(n, costs=True, orders=True) for n in range(1, 6)]
        [1, 1, 1, 2, 2]
        >>> [reserved(n, costs=True, orders=False) for n in range(1, 6)]
        [0, 0, 1, 1, 1]
    """
    # The program as it is, options, and the order.
    room = compiles - 2 - int(orders)
    return int(orders) + int(costs and room > 0)
