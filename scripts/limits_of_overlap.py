"""How short a step could become at best, on our model: contention and order included.

    python scripts/limits_of_overlap.py                  # prints a table
    python scripts/limits_of_overlap.py --case moe --json OUT
    python scripts/limits_of_overlap.py --from OUT --docs  # rewrites its page

For each case a plan is made, and every program that was compiled for it is bounded,
whatever the order of its instructions and whatever NCCL is told. Each body of a loop,
and what is around the loops, takes the largest of

- a linear program. Each collective is done in parts, each part under any setting and
  beside any kernel of its body, or beside nothing; kernels and collectives have the
  speeds that the model gives them side by side, and each kernel's work must be done. A
  kernel that takes a value from a collective, or that one takes a value from, by way of
  others or not, has it not beside itself. What is launched around a loop may be done in
  the loop's time, free of charge; a body that leaves something under way counts as what
  is around it. Collectives of a stream run one after another; where a plan would try a
  second stream, each is bounded as if the other had nothing to do, and the larger bound
  counts.
- the longest chain of tasks that take values from each other, or share a stream, each
  at its fastest and with nothing in its way; a loop is one task that takes as long as
  its own bound.
- the busiest link: the time that it needs for the bytes of all collectives, each under
  the setting that needs it least, at the rate that large messages reach.

The least bound of a program is what no plan could have gone below with these programs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from overlap_bounds import BoundKind, seconds_at_least
from planned_cases import (
    ONE_HOST,
    STEPS,
    arguments,
    budget_of,
    gathered,
    made_with,
    milliseconds,
    planner_of,
    versions_of,
    write_page,
)

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import price_of
from lagom_jax.hlo import Module
from lagom_jax.order.streams import inside_domains, is_crowded
from lagom_jax.planner import Budget, Request
from lagom_jax.planner.trial import Trial, captured_module
from lagom_jax.program.build import Builder

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "limits.md"
SUITE = tuple(name for name in STEPS if name not in ONE_HOST)


@dataclasses.dataclass(frozen=True)
class Row:
    """One case."""

    case: str
    default_seconds: float
    simple_bound_seconds: float
    """Computation alone, or the busiest link alone, of the program as it is."""
    overlap_seconds: float
    """The least of the linear programs' bounds."""
    chain_seconds: float
    """The longest chain of that program."""
    link_seconds: float
    """What the busiest link needs for it."""
    limit_seconds: float
    """The least bound of a program."""
    plan_seconds: float
    programs: int
    versions: str
    turn_seconds: float | None = None
    """What the busiest communicator needs for it; None in rows from before there was
    such a bound."""

    def recovered(self, seconds: float) -> float:
        """The share of what the simple bound promises."""
        return (self.default_seconds - seconds) / (
            self.default_seconds - self.simple_bound_seconds
        )

    @property
    def of_possible(self) -> float:
        """What the plan gains, of what could be gained at best."""
        return (self.default_seconds - self.plan_seconds) / (
            self.default_seconds - self.limit_seconds
        )


def _programs(trials: Iterable[Trial]) -> Iterator[Module]:
    """What was compiled for a plan, as XLA's scheduler left it.

    What has nothing to hide in XLA's order is made synchronous afterwards, and need not
    be in another. Our costs count where memory is short: what XLA then makes again
    depends on the order.
    """
    seen: set[tuple[frozenset[str], frozenset[Any]]] = set()
    for trial in trials:
        if not trial.captured:
            continue
        module = captured_module(trial)
        names = frozenset(
            instruction.name
            for computation in module.computations.values()
            for instruction in computation.instructions.values()
        )
        # Off the rings a program is scheduled as it is on them, and placed otherwise.
        known = names, frozenset(module.placed.items())
        if known not in seen:
            seen.add(known)
            yield module


def _with_streams(module: Module, cluster: Cluster, model: CostModel) -> Builder:
    """With a second stream where the search for an order would try one."""
    builder = Builder(module)
    program = builder.program()
    if is_crowded(program, lambda task: price_of(task, model).seconds):
        return Builder(module, inside_domains(program, cluster))
    return builder


def row_of(case: str) -> Row:
    planner = planner_of(case)
    cluster, likeliest = planner.cluster, CostModel.of(planner.cluster)
    said = functools.partial(print, f"{case}:", file=sys.stderr, flush=True)
    plan = planner.plan(Request(budget=budget_of(Budget().compiles), progress=said))
    found: list[tuple[float, ...]] = []
    assert planner.finished is not None
    taken = planner.finished.taken.view
    assert taken is not None
    # A policy of the process changes what collectives cost.
    policies = dict.fromkeys(("default", taken.policy))
    models = [likeliest.with_policy(policy) for policy in policies]
    modules = list(_programs(planner.finished.trials))
    for module, model in itertools.product(modules, models):
        builder = _with_streams(module, cluster, model)
        at_least = functools.partial(seconds_at_least, builder, cluster, model)
        found.append((at_least(BoundKind), *(at_least([kind]) for kind in BoundKind)))
        print(f"{case}: {found[-1]}", file=sys.stderr, flush=True)
    limit, overlap, chain, link, turn = min(found)
    return Row(
        case=case,
        default_seconds=plan.evidence.default.step_seconds,
        simple_bound_seconds=plan.evidence.bound_seconds,
        overlap_seconds=overlap,
        chain_seconds=chain,
        link_seconds=link,
        turn_seconds=turn,
        limit_seconds=limit,
        plan_seconds=plan.evidence.tuned.step_seconds,
        programs=len(modules),
        versions=versions_of(plan),
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| case | default | simple bound | with contention | longest chain "
        "| busiest link | busiest communicator | limit "
        "| recovered at the limit | plan | recovered | of what is possible |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (
            row.case,
            milliseconds(row.default_seconds),
            milliseconds(row.simple_bound_seconds),
            milliseconds(row.overlap_seconds),
            milliseconds(row.chain_seconds),
            milliseconds(row.link_seconds),
            "" if row.turn_seconds is None else milliseconds(row.turn_seconds),
            milliseconds(row.limit_seconds),
            f"{100 * row.recovered(row.limit_seconds):.0f} %",
            milliseconds(row.plan_seconds),
            f"{100 * row.recovered(row.plan_seconds):.0f} %",
            f"{100 * row.of_possible:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    return f"""\
# The limits of overlap

Made by `python scripts/limits_of_overlap.py`: {made_with(rows)}. Everything is \
predicted, on schedules of XLA's real compiler.

The *simple bound* hides all communication free of charge. *With contention* is a linear
program in which each collective is done in parts, each under any setting and beside
any kernel of the loop's body that it is launched in, or none, at the speeds that the
model gives them side by side, in any order, but not beside a kernel that needs its
result, or whose result it needs.
Where a plan would try two streams for collectives, it is the larger bound of the two,
each as if the other had nothing to do. The *longest chain* is of tasks that need each
other, or that share a stream, at their fastest, loop by loop. The *busiest link*
carries the bytes of all collectives, under the settings that need it least, at the rate
that large messages reach; the simple bound has its peak. The *busiest communicator*
runs its collectives one after another, each at its fastest, as NCCL does whatever their
streams. These columns are of one program. The *limit* has for each loop the largest of
the four, and is the least of all programs that were compiled for the plan: with these
programs no order and no settings make the step shorter. *Recovered* is the share of
what the simple bound promises.
Which step each case is: [levers](levers.md).

{table(rows)}
"""


def main() -> None:
    asked = arguments("The limits of overlap.", PAGE).parse_args()
    rows = gathered(asked, Row, SUITE, row_of, table)
    if asked.docs:
        write_page(PAGE, page(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
