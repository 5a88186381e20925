"""`lagom assert-overlap`: a dump, and an exit code that says if it exposes too much."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from lagom_jax.api import analyze_dump
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import share
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.errors import LagomError
from lagom_jax.markup import printable
from lagom_jax.report.alike import alike
from lagom_jax.report.difference import exposed_share, share_in_words
from lagom_jax.units import in_bytes, in_percent, in_seconds

TOO_MUCH = 1
"""Exit code when more is exposed than may be."""
_WORST = 3
_LONGEST = 60


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "assert-overlap",
        help=VERBS["assert-overlap"],
        description="Reads a dump, predicts its step, and exits with 1 if more of the "
        "step stands still for communication than it may. For continuous integration; "
        "see docs/how-to/ci.md.",
    )
    verb.add_argument("dump", metavar="DUMP", help="as `lagom report` takes it")
    verb.add_argument(
        "--cluster", required=True, help="such as h100:8x8; see `lagom clusters`"
    )
    verb.add_argument(
        "--max-exposed",
        type=share,
        required=True,
        metavar="SHARE",
        help="the part of the step that may be exposed, such as 5%% or 0.05",
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    with progress(f"reading {arguments.dump} ..."):
        report = analyze_dump(arguments.dump, arguments.cluster)
    if not report.step_seconds:
        raise LagomError(f"{arguments.dump}: nothing runs in it")
    limit = arguments.max_exposed
    good = exposed_share(report) <= limit
    verdict = "within" if good else "MORE THAN"
    with writing():
        screen = console()
        screen.print(
            Text(
                f"exposed communication: {share_in_words(report)}, {verdict} the "
                f"{in_percent(limit, 1)} allowed (predicted)",
                "green" if good else "bold red",
            ),
            soft_wrap=True,
        )
        for group in alike(report.collectives)[:_WORST]:
            one = report.collectives[group.members[0]]
            if group.exposed_seconds:
                words = (
                    f"  {in_seconds(group.exposed_seconds)}: {len(group.members)} × "
                    f"{one.kind} of {in_bytes(one.bytes)} "
                    f"{printable(group.place, _LONGEST)}: {one.verdict}"
                )
                screen.print(Text(words), soft_wrap=True)
    return 0 if good else TOO_MUCH
