"""`lagom tune`: what makes a training step shortest, and why."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lagom_jax.api import tune_scheduled
from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import (
    add_compiled,
    add_kernels,
    add_output,
    add_subject,
    add_views,
    check_views,
    check_writable,
    compiler_for,
    kernels_in,
    positive,
    scheduled_step,
    wants_views,
    write_views,
    zoo_options,
)
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import Subject, find_subject
from lagom_jax.commands.terminal import console, progress, reporting, writing
from lagom_jax.errors import LagomError, PlanError
from lagom_jax.measurements import Calibration
from lagom_jax.plan import Plan, save, to_json
from lagom_jax.planner import LEVERS, Budget, Planner, Request
from lagom_jax.planner.allowed import allowed
from lagom_jax.planner.compared import compared
from lagom_jax.planner.make import plan_step
from lagom_jax.report.plan import render_plan
from lagom_jax.report.story import Story
from lagom_jax.report.tuning import DEFAULT_ROWS, render_tuning
from lagom_jax.settings.controls import COARSE, FINE, PRESETS, named
from lagom_jax.settings.tuning import POLICIES, policy_named
from xla_flags import pinned_here

_EXAMPLES = """\
examples:
  lagom tune llama-3-8b --cluster h100:8x8 --output plan.json --html tuned.html
  lagom tune train.py:make_step --cluster b200:2x8 --deterministic --compiles 12
  lagom tune olmoe-1b-7b --parallelism ep --cluster h100:8x8 --compare recipes
  lagom tune phi-2 --parallelism tp-sliced --cluster a40-nvlink:2x8 \\
      --policy lagom --policy autoccl --policy exhaustive
  lagom tune dump/module_0042.txt --cluster h100:1x8 --controls caps --json
"""
_GRIDS = {"fine": FINE, "coarse": COARSE}
_SETTINGS_ONLY = ("settings",)
_BUDGET = ("compiles", "seconds", "memory_fraction")


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "tune",
        help=VERBS["tune"],
        description="Compiles a training step for a cluster in several ways, and "
        "decides for the options, the order of instructions and the settings of NCCL "
        "that make the step shortest, not the collective. Of a dump, which is compiled "
        "already, only the settings. Nothing is set anywhere: it prints what to set, "
        "what that gives, and why, and writes it down as a plan.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(verb)
    verb.add_argument(
        "--output", metavar="FILE", help="write the plan there; see `lagom plan`"
    )
    verb.add_argument(
        "--controls",
        choices=tuple(PRESETS),
        default="tuner",
        help="what NCCL can be told where the step runs (default: %(default)s): "
        + "; ".join(f"{preset.name}: {preset.meaning}" for preset in PRESETS.values()),
    )
    add_views(verb)
    add_output(
        verb,
        page="docs/reference/plan.md and docs/explanation/search.md",
        rows=DEFAULT_ROWS,
    )
    verb.add_argument(
        "--calibration",
        metavar="FILE",
        help="what `lagom calibrate` wrote of your own measurements",
    )
    add_kernels(verb)
    _add_plan(verb)
    settings = verb.add_argument_group("for settings of NCCL alone (--levers settings)")
    settings.add_argument(
        "--policy",
        action="append",
        choices=tuple(POLICIES),
        help="how to choose (default: lagom); given several times, the first decides "
        "and the others are compared with it; implies --levers settings",
    )
    settings.add_argument(
        "--grid",
        choices=tuple(_GRIDS),
        help="how many values are tried (default: fine); implies --levers settings",
    )
    add_compiled(verb)
    verb.set_defaults(run=run)


def _add_plan(verb: argparse.ArgumentParser) -> None:
    usual = Budget()
    group = verb.add_argument_group("for a plan")
    group.add_argument(
        "--levers",
        type=_levers,
        metavar="NAME,...",
        help=f"what may be used (default: all): {', '.join(LEVERS)}",
    )
    group.add_argument(
        "--compiles",
        type=positive,
        metavar="N",
        help=f"how often to compile (default: {usual.compiles}); transports off NCCL's "
        "rings have half as many more, three at most, and --rewrite eight times",
    )
    group.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help=f"begin nothing new after so long (default: {usual.seconds:.0f})",
    )
    group.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="the part of a GPU's memory that the step may take (default: "
        f"{usual.memory_fraction}, which is jax's own)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="leave out what may change the rounding of sums",
    )
    group.add_argument(
        "--rewrite",
        action="store_true",
        help="try the step with its collectives and the matmuls next to them in slices "
        "as well; the plan then names the line to write",
    )
    group.add_argument(
        "--compare",
        choices=("recipes",),
        help="compile what others recommend, too, and list it beside the candidates",
    )


def _levers(text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.split(",")))
    unknown = set(chosen) - set(LEVERS)
    if unknown or not chosen:
        what = min(unknown, default="")
        raise argparse.ArgumentTypeError(
            f"no lever {what!r}; known are {', '.join(LEVERS)}"
        )
    return chosen


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    # Before the compiler is set to work.
    if arguments.output:
        check_writable(Path(arguments.output), "plan")
    check_views(arguments)
    calibration = arguments.calibration and Calibration.load(arguments.calibration)
    cluster = Cluster.parse(arguments.cluster)
    subject = find_subject(arguments.subject, cluster, zoo_options(arguments))
    levers = arguments.levers or LEVERS
    if arguments.policy or arguments.grid or subject.dump is not None:
        if arguments.levers and arguments.levers != _SETTINGS_ONLY:
            raise LagomError(
                "--levers names more than settings, but a dump is compiled already, "
                "and --policy and --grid are about settings alone"
            )
        levers = _SETTINGS_ONLY
    if levers == _SETTINGS_ONLY:
        _refuse_plan(arguments)
        return _settings(arguments, subject, calibration)
    return _plan(arguments, subject, cluster, levers, calibration)


def _refuse_plan(arguments: argparse.Namespace) -> None:
    for option in ("output", "html", "trace", "figure", "compare", *_BUDGET):
        if getattr(arguments, option) is not None:
            raise LagomError(
                f"--{option.replace('_', '-')} goes with a plan, and settings alone "
                "are none: leave out --policy, --grid and --levers settings, and name "
                "a step, not a dump"
            )
    if arguments.rewrite:
        raise LagomError(
            "--rewrite goes with a plan, and settings alone are none: leave out "
            "--policy, --grid and --levers settings, and name a step, not a dump"
        )


def _settings(
    arguments: argparse.Namespace, subject: Subject, calibration: Calibration | None
) -> int:
    scheduled = scheduled_step(arguments, subject)
    names = dict.fromkeys(arguments.policy or ["lagom"])
    pins = pinned_here(parse_options(arguments.option))
    controls = allowed(
        named(arguments.controls),
        pinned={pin.name for pin in pins},
        deterministic=arguments.deterministic,
    )
    with progress(f"searching settings for {arguments.subject} ..."):
        tuning = tune_scheduled(
            scheduled,
            policies=[policy_named(name) for name in names],
            controls=controls,
            grid=_GRIDS[arguments.grid or "fine"],
            calibration=calibration,
        )
    with writing():
        if arguments.json:
            print(tuning.to_json())
        else:
            screen = console()
            screen.print(render_tuning(tuning, rows=arguments.rows, width=screen.width))
    return 0


def _plan(
    arguments: argparse.Namespace,
    subject: Subject,
    cluster: Cluster,
    levers: tuple[str, ...],
    calibration: Calibration | None,
) -> int:
    given = {name: getattr(arguments, name) for name in _BUDGET}
    budget = Budget(**{n: value for n, value in given.items() if value is not None})
    options, kernels = parse_options(arguments.option), kernels_in(arguments)
    with reporting() as say, compiler_for(arguments) as compiler:
        request = Request(
            levers,
            arguments.controls,
            budget,
            deterministic=arguments.deterministic,
            compare_recipes=arguments.compare == "recipes",
            progress=lambda what: say(f"{subject.name} for {cluster.name}: {what} ..."),
            keep=functools.partial(_keep, arguments.output),
        )

        def planner_of(step: Callable[..., Any]) -> Planner:
            return Planner(
                step,
                *subject.arguments,
                cluster=cluster,
                compiler_options=options,
                calibration=calibration,
                kernels=kernels,
                name=subject.name,
                description=subject.description,
                cautions=subject.cautions,
                compiler=compiler,
                **subject.named_arguments,
            )

        planner, plan = plan_step(
            planner_of, subject.step, request, rewrite=arguments.rewrite
        )
        story = Story(plan=plan, subject=arguments.subject)
        if wants_views(arguments):
            before, after = compared(planner, plan, calibration)
            story = Story(before, after, plan, arguments.subject)
    unsaved: PlanError | None = None
    if arguments.output:
        try:
            save(plan, arguments.output)
        except PlanError as error:
            unsaved = error
    written: list[str] = []
    if arguments.output and unsaved is None:
        written.append(
            f"written to {arguments.output}. To train with it: "
            f"lagom_jax.tune(step, plan={arguments.output!r}); what must be set for "
            f"it: lagom plan env {arguments.output}"
        )
    written += write_views(arguments, story)
    # What took so long to find is shown even where it cannot be kept.
    with writing():
        _print(plan, arguments, written)
    if unsaved is not None:
        raise unsaved
    return 0


def _keep(output: str | None, plan: Plan) -> None:
    """Writes the best so far, so that planning that is ended leaves something."""
    if output:
        # What is wrong with the place is said in the end.
        with contextlib.suppress(PlanError):
            save(plan, output)


def _print(plan: Plan, arguments: argparse.Namespace, written: list[str]) -> None:
    if arguments.json:
        print(to_json(plan), end="")
        return
    screen = console()
    screen.print(render_plan(plan, rows=arguments.rows, width=screen.width))
    for line in written:
        screen.print(line, style="dim", soft_wrap=True)
