"""`lagom report`: the overlap report of a model, a step of one's own, or a dump."""

from __future__ import annotations

import argparse
from typing import Any

from lagom_jax.analysis import report_scheduled
from lagom_jax.commands.arguments import (
    add_compiled,
    add_output,
    add_subject,
    scheduled_step,
)
from lagom_jax.commands.terminal import console, writing
from lagom_jax.report.text import DEFAULT_ROWS, render

_EXAMPLES = """\
examples:
  lagom report llama-3-8b --cluster h100:8x8
  lagom report olmoe-1b-7b --parallelism ep --cluster b200:2x8 --rows all
  lagom report train.py:make_step --cluster a40-nvlink:2x8
  lagom report llama-3-8b --cluster h100:8x8 --plan plan.json
  lagom report dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.txt \\
      --cluster h100:1x8 --json
"""


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "report",
        help="report the overlaps of a training step",
        description="Compiles a training step for a cluster with XLA's GPU compiler, "
        "or reads what XLA dumped of one, and reports what its communication costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(verb)
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
    add_compiled(verb)
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    report = report_scheduled(
        scheduled_step(arguments),
        calibration=arguments.calibration,
        profile=arguments.profile,
    )
    with writing():
        if arguments.json:
            print(report.to_json())
        else:
            screen = console()
            screen.print(render(report, rows=arguments.rows, width=screen.width))
    return 0
