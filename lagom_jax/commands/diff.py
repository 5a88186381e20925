"""`lagom diff`: two dumps, reports or plans, and what changed from one to the other."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.text import Text

from lagom_jax.api import analyze_dump
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import rows_or_all, share
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.errors import LagomError
from lagom_jax.plan import Plan, load
from lagom_jax.plan.compare import differences
from lagom_jax.report import Report
from lagom_jax.report.difference import (
    compare_reports,
    render_difference,
    to_markdown,
)
from lagom_jax.report.document import from_json
from lagom_jax.typed_json import FormError, parse_object

SLOWER = 1
"""Exit code when the step is longer than it may be, and when two plans differ."""
_EXAMPLES = """\
examples:
  lagom diff before.json after.json
  lagom diff dump/main.txt dump/branch.txt --cluster h100:1x8 --max-slower 2%
  lagom diff main.json branch.json --markdown
"""


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "diff",
        help=VERBS["diff"],
        description="Compares two dumps (with --cluster), two reports (what `lagom "
        "report --json` printed), or one of each; or two plans.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("one", metavar="ONE", help="a dump, a report or a plan")
    verb.add_argument("other", metavar="OTHER", help="what came of it")
    verb.add_argument("--cluster", help="what the dumps are for, such as h100:1x8")
    verb.add_argument(
        "--max-slower",
        type=share,
        metavar="SHARE",
        help="exit with 1 if the step is longer by more than this, such as 2%%",
    )
    shown = verb.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument(
        "--markdown", action="store_true", help="print Markdown, for a comment"
    )
    verb.add_argument(
        "--rows",
        type=rows_or_all,
        default=15,
        metavar="N|all",
        help="how many collectives to list (default: %(default)s)",
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    one, other = (
        _read(path, arguments.cluster) for path in (arguments.one, arguments.other)
    )
    if isinstance(one, Plan) and isinstance(other, Plan):
        return _plans(one, other, arguments)
    if isinstance(one, Plan) or isinstance(other, Plan):
        raise LagomError(
            "one of them is a plan and the other is not; compare two plans, or reports "
            "and dumps: `lagom report STEP --plan FILE --json` makes a report of a plan"
        )
    found = compare_reports(one, other)
    with writing():
        if arguments.json:
            print(json.dumps(dataclasses.asdict(found), indent=2))
        elif arguments.markdown:
            print(to_markdown(found, arguments.rows), end="")
        else:
            console().print(render_difference(found, arguments.rows))
    limit = arguments.max_slower
    return SLOWER if limit is not None and found.slower > limit else 0


def _read(path: str, cluster: str | None) -> Report | Plan:
    text = _json_text(path)
    if text is not None:
        try:
            document = parse_object(text) or {}
        except FormError as error:
            raise LagomError(f"{path}: {error}") from None
        return load(path) if "levers" in document else from_json(text, path)
    if cluster is None:
        raise LagomError(f"{path} is a dump: name what it is for with --cluster")
    with progress(f"reading {path} ..."):
        return analyze_dump(path, cluster)


def _json_text(path: str) -> str | None:
    """The text of a file of JSON; None for a dump."""
    file = Path(path)
    if path == "-" or not file.is_file():
        return None
    try:
        with file.open(encoding="utf-8") as opened:
            start = opened.read(256)
            return start + opened.read() if start.lstrip()[:1] == "{" else None
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise LagomError(f"cannot read {path}: {error.strerror}") from None


def _plans(one: Plan, other: Plan, arguments: argparse.Namespace) -> int:
    if arguments.markdown or arguments.max_slower is not None:
        raise LagomError("--markdown and --max-slower are for reports, not for plans")
    found = differences(one, other)
    with writing():
        if arguments.json:
            print(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        else:
            screen = console()
            for difference in found:
                screen.print(Text(str(difference)), soft_wrap=True)
    return SLOWER if found else 0
