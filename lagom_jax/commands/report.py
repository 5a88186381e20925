"""`lagom report`: the overlap report of a model, a step of one's own, or a dump."""

from __future__ import annotations

import argparse
from typing import Any

from lagom_jax.api import report_scheduled
from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import (
    add_compiled,
    add_kernels,
    add_output,
    add_subject,
    add_views,
    check_views,
    scheduled_step,
    wants_views,
    write_views,
    zoo_options,
    zoo_words,
)
from lagom_jax.commands.subjects import Subject, find_subject
from lagom_jax.commands.terminal import console, writing
from lagom_jax.plan import load
from lagom_jax.report import Report
from lagom_jax.report.story import Story
from lagom_jax.report.text import DEFAULT_ROWS, render

_EXAMPLES = """\
examples:
  lagom report llama-3-8b --cluster h100:8x8
  lagom report olmoe-1b-7b --parallelism ep --cluster b200:2x8 --rows all
  lagom report train.py:make_step --cluster a40-nvlink:2x8
  lagom report llama-3-8b --cluster h100:8x8 --plan plan.json
  lagom report llama-3-8b --cluster h100:8x8 --html report.html --trace trace.json
  lagom report dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.txt \\
      --cluster h100:1x8 --json
"""


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "report",
        help=VERBS["report"],
        description="Compiles a training step for a cluster with XLA's GPU compiler, "
        "or reads what XLA dumped of one, and reports what its communication costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(verb)
    add_views(verb)
    add_output(verb, page="docs/reference/report.md", rows=DEFAULT_ROWS)
    verb.add_argument(
        "--plan",
        metavar="FILE",
        help="compile the step as a plan says, with NCCL told what it says; see "
        "`lagom tune --output`",
    )
    own = verb.add_argument_group(
        "your own measurements, see docs/how-to/calibration.md"
    )
    own.add_argument(
        "--calibration", metavar="FILE", help="what `lagom calibrate` wrote"
    )
    own.add_argument(
        "--profile",
        metavar="DIR",
        help="what jax.profiler.trace wrote while this very program ran",
    )
    add_kernels(verb)
    add_compiled(verb)
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    check_views(arguments)
    subject = find_subject(
        arguments.subject, Cluster.parse(arguments.cluster), zoo_options(arguments)
    )
    report = _reported(arguments, subject, planned=True)
    told = zoo_words(arguments)
    story = Story(report, subject=arguments.subject, options=told)
    if arguments.plan and wants_views(arguments):
        before = _reported(arguments, subject, planned=False)
        story = Story(before, report, load(arguments.plan), arguments.subject, told)
    written = write_views(arguments, story)
    with writing():
        if arguments.json:
            print(report.to_json())
        else:
            screen = console()
            screen.print(render(report, rows=arguments.rows, width=screen.width))
            for line in written:
                screen.print(line, style="dim", soft_wrap=True)
    return 0


def _reported(
    arguments: argparse.Namespace, subject: Subject, *, planned: bool
) -> Report:
    return report_scheduled(
        scheduled_step(arguments, subject, planned=planned),
        calibration=arguments.calibration,
        profile=arguments.profile if planned == bool(arguments.plan) else None,
    )
