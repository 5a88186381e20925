"""`lagom tune`: the settings that make a training step shortest, and why."""

from __future__ import annotations

import argparse
from typing import Any

from lagom_jax.commands.arguments import (
    add_compiled,
    add_output,
    add_subject,
    scheduled_step,
)
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.measure import Calibration
from lagom_jax.report.tuning import DEFAULT_ROWS, render_tuning
from lagom_jax.search.controls import COARSE, FINE, PRESETS, named
from lagom_jax.search.tuning import POLICIES, policy_named
from lagom_jax.settings import tune_scheduled

_EXAMPLES = """\
examples:
  lagom tune llama-3-8b --cluster h100:8x8
  lagom tune phi-2 --parallelism tp-sliced --cluster a40-nvlink:2x8 \\
      --policy lagom --policy autoccl --policy exhaustive
  lagom tune train.py:make_step --cluster b200:2x8 --controls caps --json
"""
_GRIDS = {"fine": FINE, "coarse": COARSE}


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "tune",
        help="find the NCCL settings that make a training step shortest",
        description="Compiles a training step for a cluster, or reads a dump of one, "
        "and finds for its collectives the algorithm, protocol, channels and chunk "
        "that make the step shortest, not the collective. Nothing is set anywhere: it "
        "prints what to set, what that gives, and why.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(verb)
    verb.add_argument(
        "--policy",
        action="append",
        choices=tuple(POLICIES),
        help="how to choose (default: lagom); given several times, the first decides "
        "and the others are compared with it",
    )
    verb.add_argument(
        "--controls",
        choices=tuple(PRESETS),
        default="tuner",
        help="what NCCL can be told where the step runs (default: %(default)s): "
        + "; ".join(f"{preset.name}: {preset.meaning}" for preset in PRESETS.values()),
    )
    verb.add_argument(
        "--grid",
        choices=tuple(_GRIDS),
        default="fine",
        help="how many values are tried (default: %(default)s)",
    )
    add_output(verb, page="docs/search.md", rows=DEFAULT_ROWS)
    verb.add_argument(
        "--calibration",
        metavar="FILE",
        help="what `lagom calibrate` wrote of your own measurements",
    )
    add_compiled(verb)
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    # Before the compiler is set to work.
    calibration = arguments.calibration and Calibration.load(arguments.calibration)
    scheduled = scheduled_step(arguments)
    names = dict.fromkeys(arguments.policy or ["lagom"])
    with progress(f"searching settings for {arguments.subject} ..."):
        tuning = tune_scheduled(
            scheduled,
            policies=[policy_named(name) for name in names],
            controls=named(arguments.controls),
            grid=_GRIDS[arguments.grid],
            calibration=calibration,
        )
    with writing():
        if arguments.json:
            print(tuning.to_json())
        else:
            screen = console()
            screen.print(render_tuning(tuning, rows=arguments.rows, width=screen.width))
    return 0
