"""`lagom plan`: what a plan says, how two differ, and whether one holds here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from rich.text import Text

from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.findings import as_rows, print_findings
from lagom_jax.commands.terminal import console, writing
from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import load, to_json
from lagom_jax.plan.check import check
from lagom_jax.plan.compare import differences
from lagom_jax.plan.pinned import stated
from lagom_jax.plan.shell import shell_lines
from lagom_jax.report.plan import render_plan
from xla_flags import pinned_here

DIFFERS = 1
"""Exit code when two plans differ, and when a plan does not hold here."""
_FORMAT = "Format: docs/reference/plan.md."


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "plan",
        help=VERBS["plan"],
        description="A plan is a file with what a tuning decided for a step, and why. "
        f"{_FORMAT}",
    )
    kinds = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    show = kinds.add_parser(
        "show",
        help="what it decided, what that gives, and what it rests on",
        description=f"Shows a plan. {_FORMAT}",
    )
    show.add_argument("file", metavar="FILE")
    show.add_argument("--json", action="store_true", help="print the file's own format")
    show.add_argument("--html", metavar="FILE", help="write it as a page, too")
    show.set_defaults(run=_show)
    diff = kinds.add_parser(
        "diff",
        help="where two plans differ",
        description="Prints every place where two plans differ; how long the work "
        "took does not count. Exits with 1 if there are any.",
    )
    diff.add_argument("one", metavar="ONE")
    diff.add_argument("other", metavar="OTHER")
    diff.add_argument("--json", action="store_true", help="print JSON")
    diff.set_defaults(run=_diff)
    env = kinds.add_parser(
        "env",
        help="the plan as lines for a shell, as far as variables can say it",
        description="Prints lines for a POSIX shell that add the plan's options to "
        "XLA_FLAGS, and as comments what no variable can say.",
    )
    env.add_argument("file", metavar="FILE")
    env.set_defaults(run=_env)
    held = kinds.add_parser(
        "check",
        help="whether it holds for what is installed and set here",
        description="Compares what the plan was made for with the installed versions, "
        "and with XLA_FLAGS, NCCL's variables and nccl.conf. Exits with 1 if the plan "
        "cannot be trusted here.",
    )
    held.add_argument("file", metavar="FILE")
    held.add_argument("--cluster", help="what the step will run on, such as h100:8x8")
    held.add_argument("--json", action="store_true", help="print JSON")
    held.set_defaults(run=_check)


def _show(arguments: argparse.Namespace) -> int:
    plan = load(arguments.file)
    if arguments.html:
        # A page can show a step, too, and knows all that there is to say of one.
        from lagom_jax.report.page import write_page
        from lagom_jax.report.story import Story

        write_page(Story(plan=plan), arguments.html)
    with writing():
        if arguments.json:
            print(to_json(plan), end="")
        else:
            screen = console()
            screen.print(render_plan(plan, width=screen.width))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    found = differences(load(arguments.one), load(arguments.other))
    with writing():
        if arguments.json:
            _print_json([dataclasses.asdict(one) for one in found])
        else:
            screen = console()
            for difference in found:
                screen.print(Text(str(difference)), soft_wrap=True)
    return DIFFERS if found else 0


def _env(arguments: argparse.Namespace) -> int:
    plan = load(arguments.file)
    with writing():
        for line in shell_lines(plan):
            print(line)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    plan = load(arguments.file)
    cluster = arguments.cluster and Cluster.parse(arguments.cluster)
    findings = check(
        plan,
        cluster=cluster,
        versions=Toolchain.probe().versions,
        pinned=stated(pinned_here()),
        process=ProcessHere.probe() if plan.needs or plan.variables else None,
    )
    holds = all(finding.severity != "error" for finding in findings)
    with writing():
        if arguments.json:
            _print_json({"holds": holds, "findings": as_rows(findings)})
        else:
            screen = console()
            print_findings(screen, findings)
            verdict = "holds" if holds else "does not hold"
            parts = "installed versions and flags" + ", cluster" * bool(cluster)
            screen.print(
                f"The plan {verdict} here ({parts}). Whether the program is the same "
                "shows where it is compiled.",
                style="bold green" if holds else "bold red",
                soft_wrap=True,
            )
    return 0 if holds else DIFFERS


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2))
