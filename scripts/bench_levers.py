"""How much of the time that communication costs a plan wins back, lever by lever.

    python scripts/bench_levers.py                       # prints the tables
    python scripts/bench_levers.py --json OUT            # and writes the rows as JSON
    python scripts/bench_levers.py --docs  # rewrites its page
    python scripts/bench_levers.py --unseen --policy lagom --policy recipes
    python scripts/bench_levers.py --case fsdp --policy lagom --controls sequence
    python scripts/bench_levers.py --from A --from B --docs  # from rows made before

Whole it takes about an hour on two cores.

For each case XLA's default with NCCL's default settings stands beside the whole plan,
beside each lever alone, beside NCCL's settings alone, and beside what others recommend.
The recovered share is (default - tuned) / (default - bound), where the bound is the
larger of computation alone and of the busiest link alone. Everything is predicted, on
real schedules; nothing runs on a GPU.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from planned_cases import (
    CASES,
    STEPS,
    arguments,
    budget_of,
    made_with,
    milliseconds,
    planner_of,
    read_rows,
    rewritten_of,
    versions_of,
    write_page,
    write_rows,
)
from unseen_steps import UNSEEN

from lagom_jax.options import bound_of
from lagom_jax.options.off_rings import MODES, SYMMETRIC
from lagom_jax.plan import Plan
from lagom_jax.planner import LEVERS, Budget, Planner, Request
from lagom_jax.planner.rewrite_ways import RewriteWay, Rewritten, ways_of
from lagom_jax.planner.rewrites import with_rewrites
from lagom_jax.planner.run import Finished
from lagom_jax.settings.controls import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "levers.md"
WHOLE, REWRITTEN, RECIPES = "lagom", "lagom, rewritten", "recipes"
RECIPE = "recipe "
"""How the name of a recipe's candidate begins."""
WITHOUT = "without transports"
ALONE = {
    WITHOUT: tuple(one for one in LEVERS if one != "transports"),
    "options alone": ("options", "settings"),
    "transports alone": ("transports", "settings"),
    "costs alone": ("costs", "settings"),
    "order alone": ("order", "settings"),
    "order and streams": ("order", "streams", "settings"),
    "settings alone": ("settings",),
}
"""Each lever by itself, and all without one; settings are always among them, since a
lever is judged by what it makes of the step with settings of its own. Streams need an
order."""
POLICIES = (WHOLE, REWRITTEN, *ALONE, RECIPES)
FINER = (WHOLE, "settings alone")
"""For all but the first kind of controls."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy on one case."""

    case: str
    policy: str
    step_seconds: float
    default_seconds: float
    bound_seconds: float
    recovered: float | None
    peak_bytes: int | None
    compiles: int
    budget: int
    """Compiles that a plan might use."""
    versions: str
    controls: str
    """Which settings a plan might choose."""
    behind: int | None = None
    """Models of the ensemble by which a step is longer than without transports, or for
    a rewritten one, than as it is written; None where that was not planned."""
    rewrite: str = ""
    """How the program was rewritten."""
    limit_seconds: float | None = None
    """The bound of the program that was taken."""
    off_rings: str = ""
    """The options and the policy that take collectives off the rings."""


def rows(
    case: str, planner: Planner, controls: str, budget: int, policies: Collection[str]
) -> Iterator[Row]:
    def say(what: str) -> None:
        print(f"{case}: {what}", file=sys.stderr, flush=True)

    request = Request(controls=controls, budget=budget_of(budget), progress=say)

    def planned(levers: Iterable[str], *, recipes: bool = False) -> Plan:
        return planner.plan(
            dataclasses.replace(request, levers=tuple(levers), compare_recipes=recipes)
        )

    def rewritten(whole: Plan) -> tuple[Planner, Plan]:
        def other(way: RewriteWay) -> Rewritten:
            return rewritten_of(case, way)

        ways = ways_of(planner.finished)
        return with_rewrites((planner, whole), other, request, ways)

    def row(
        policy: str, plan: Plan, seconds: float, peak: int | None, compiles: int
    ) -> Row:
        evidence = plan.evidence
        default, bound = evidence.default.step_seconds, evidence.bound_seconds
        could = default - bound
        recovered = (default - seconds) / could if could > 0 else None
        return Row(
            *(case, policy, seconds, default, bound, recovered, peak, compiles),
            budget=budget,
            versions=versions_of(plan),
            controls=controls,
        )

    def row_of(policy: str, plan: Plan, made: Finished) -> Row:
        found = plan.evidence
        seconds = found.tuned.step_seconds
        plain = row(policy, plan, seconds, found.tuned_peak, found.compiles)
        view = made.taken.view
        assert view is not None
        off = [n for n in (SYMMETRIC, *MODES.values()) if n in made.taken.asked.options]
        return dataclasses.replace(
            plain,
            rewrite=plan.rewrite.call if plan.rewrite else "",
            limit_seconds=bound_of(view.timeline).seconds,
            off_rings=", ".join([*off, *{view.policy} - {"default"}]),
        )

    def last() -> Finished:
        assert planner.finished is not None
        return planner.finished

    usual: Finished | None = None
    for policy, levers in ALONE.items():
        if policy in policies:
            plan = planned(levers)
            if policy == WITHOUT:
                usual = last()
            yield row_of(policy, plan, last())
    if WHOLE in policies or REWRITTEN in policies:
        whole = planned(LEVERS)
        own = last()
        if WHOLE in policies:
            one = row_of(WHOLE, whole, own)
            yield dataclasses.replace(one, behind=usual and behind(own, usual))
        if REWRITTEN in policies:
            chosen, plan = rewritten(whole)
            assert chosen.finished is not None
            one = row_of(REWRITTEN, plan, chosen.finished)
            yield dataclasses.replace(one, behind=behind(chosen.finished, own))
    if RECIPES in policies:
        compared = planned(["settings"], recipes=True)
        for candidate in compared.evidence.candidates:
            title = candidate.name.partition(" ")[2]
            if title.startswith(RECIPE) and candidate.step_seconds is not None:
                peak = candidate.peak_bytes
                yield row(title, compared, candidate.step_seconds, peak, 1)


def behind(one: Finished, other: Finished) -> int:
    """Models by which one plan's step is longer than the other's."""
    assert one.scored is not None
    assert other.scored is not None
    pairs = zip(one.scored.by_model, other.scored.by_model, strict=True)
    return sum(own > theirs for own, theirs in pairs)


def table(found: list[Row]) -> str:
    """Tables of plans, of levers alone and of recipes, a row for each case."""
    by = {(row.case, row.policy): row for row in found}
    cases = list(dict.fromkeys(row.case for row in found))
    policies = dict.fromkeys(row.policy for row in found)
    recipes = [name for name in policies if name.startswith(RECIPE)]
    parts = [
        *_plans(cases, by, recipes),
        *_cells("lever", cases, by, list(ALONE)),
        *_cells("recipe", cases, by, recipes),
        *_rewrites(found),
    ]
    return "\n".join(parts)


def _plans(
    cases: Sequence[str], by: Mapping[tuple[str, str], Row], recipes: Sequence[str]
) -> Iterator[str]:
    """Whole plans: as the program is written, rewritten, and beside the best recipe."""
    plan = ("plan", "recovered", "its bound", "off the rings")
    other = ("rewritten", "recovered", "its bound")
    recipe = ("best recipe", "recovered")
    yield _line("case", "default", "bound", *plan, *other, *recipe, "peak memory")
    yield "|---|" + "--:|" * 5 + "---|" + "--:|" * 3 + "---|" + "--:|" * 2
    for case in cases:
        one = next(row for (name, _), row in by.items() if name == case)
        whole, rewritten = by.get((case, WHOLE)), by.get((case, REWRITTEN))
        known = [by[case, name] for name in recipes if (case, name) in by]
        best = min(known, key=lambda row: row.step_seconds, default=None)
        yield _line(
            *(case, milliseconds(one.default_seconds), milliseconds(one.bound_seconds)),
            *_found(whole),
            _off_rings(whole) if whole else "",
            *_found(rewritten),
            best.policy.removeprefix(RECIPE) if best else "",
            _share(best),
            _gb(whole.peak_bytes) if whole else "",
        )
    yield ""


def _found(row: Row | None) -> tuple[str, str, str]:
    """Step, recovered share and the program's own bound, of a plan."""
    if row is None:
        return ("", "", "")
    bound = "" if row.limit_seconds is None else milliseconds(row.limit_seconds)
    return milliseconds(row.step_seconds), _share(row), bound


def _off_rings(row: Row) -> str:
    short = row.off_rings.replace("xla_gpu_", "").replace("experimental_enable_", "")
    return short or "nothing"


def _cells(
    kind: str,
    cases: Iterable[str],
    by: Mapping[tuple[str, str], Row],
    policies: Sequence[str],
) -> Iterator[str]:
    """A table of speedups, a column for each policy that some case has."""
    used = [name for name in policies if any((case, name) in by for case in cases)]
    if not used:
        return
    yield _line(f"case, {kind}", *(name.removeprefix(RECIPE) for name in used))
    yield "|---|" + "--:|" * len(used)
    for case in cases:
        if any((case, name) in by for name in used):
            yield _line(case, *(_cell(by.get((case, name))) for name in used))
    yield ""


def _rewrites(found: Iterable[Row]) -> Iterator[str]:
    """The form that each rewritten plan took, and how sure it is."""
    for row in found:
        if row.policy in (WHOLE, REWRITTEN) and (row.rewrite or row.behind):
            words = f"`{row.rewrite}`" if row.rewrite else "as it is written"
            sure = "" if row.behind is None else f"; behind by {row.behind} models"
            yield f"- {row.case}, {row.policy}: {words}{sure}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row.default_seconds / row.step_seconds:.3f} ({_share(row)})"


def _share(row: Row | None) -> str:
    if row is None or row.recovered is None:
        return ""
    return f"{100 * row.recovered:.0f} %"


def _gb(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e9:.2f} GB"


def page(every: list[Row]) -> str:
    budgets = " or ".join(dict.fromkeys(str(row.budget) for row in every))
    cases = dict.fromkeys(row.case for row in every)
    chosen = shlex.join(part for case in cases for part in ("--case", case))
    parts = [
        "# Levers",
        "",
        f"Made by `python scripts/bench_levers.py {chosen}`: "
        f"{made_with(every)}; at most {budgets} compiles for "
        "each plan. All times are predicted, on schedules of XLA's real compiler. "
        "*Default* is XLA's, with NCCL's default settings, and *recovered* what of its "
        "time above the bound is gone. The bound is computation alone, or the busiest "
        "link alone, of the program as it is; *its bound* is the same of the program "
        "that was taken. Levers and recipes have speedups over the default, and in "
        "brackets what they recover. A lever *alone* has settings of its own; recipes "
        "leave settings to NCCL, as their authors do. "
        "[What the figures say](../../explanation/planning.md#what-it-gives).",
        "",
        "| case | step |",
        "|---|---|",
    ]
    for case in cases:
        model, cluster, asked = STEPS[case]
        words = ", ".join(f"{name} {value}" for name, value in asked.items())
        parts.append(f"| {case} | {model} on {cluster}: {words} |")
    return "\n".join(parts) + f"\n\n{tables(every)}\n"


def tables(every: list[Row]) -> str:
    """A table for each kind of controls."""
    by_controls: dict[str, list[Row]] = {}
    for row in every:
        by_controls.setdefault(row.controls, []).append(row)
    return "\n\n".join(
        f"## {controls}: {PRESETS[controls].meaning}\n\n{table(listed)}"
        for controls, listed in by_controls.items()
    )


def main() -> None:
    parser = arguments("Levers, alone and together.", PAGE)
    parser.add_argument("--controls", action="append", choices=tuple(PRESETS))
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="the steps drawn by lot (unseen_steps.py) instead of the others",
    )
    parser.add_argument("--compiles", type=int, default=Budget().compiles)
    parser.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        help=f"for all but the first kind of controls only {' and '.join(FINER)}",
    )
    asked = parser.parse_args()
    kinds = asked.controls or ["tuner", "sequence"]
    chosen = asked.policy or POLICIES
    suite = UNSEEN if asked.unseen else CASES
    found = list(read_rows(asked.made or (), Row))
    for case in () if asked.made else asked.case or suite:
        # What is compiled for one kind of controls need not be again for another.
        planner = planner_of(case)
        for number, controls in enumerate(kinds):
            policies = [p for p in chosen if number == 0 or p in FINER]
            for row in rows(case, planner, controls, asked.compiles, policies):
                found.append(row)
                words = f"{row.case:15} {controls:8} {row.policy:30} {_cell(row)}"
                print(words, flush=True)
        # After each case, so that nothing is lost where the time runs out.
        write_rows(asked.json, found)
    if asked.docs:
        write_page(PAGE, page(found))
    print(tables(found))


if __name__ == "__main__":
    main()
