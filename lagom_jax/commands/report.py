"""`lagom report`: the overlap report of a model, a step of one's own, or a dump."""

from __future__ import annotations

import argparse
from typing import Any

from lagom_jax.analysis import analyze, analyze_dump
from lagom_jax.cluster import Cluster
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import Subject, find_subject
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.report import Report
from lagom_jax.report.text import DEFAULT_ROWS, render

_EXAMPLES = """\
examples:
  lagom report llama-3-8b --cluster h100:8x8
  lagom report olmoe-1b-7b --parallelism ep --cluster b200:2x8 --rows all
  lagom report train.py:make_step --cluster a40-nvlink:2x8
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
    verb.add_argument(
        "subject",
        help="a model of the zoo (lagom_models), MODULE:FACTORY or FILE.py:FACTORY, a "
        "dump (*after_optimizations.txt, .hlo.pb, compiled.as_text(), a folder that "
        "--xla_dump_to filled), or - for a dump on standard input",
    )
    verb.add_argument(
        "--cluster", required=True, help="such as h100:8x8; see `lagom clusters`"
    )
    verb.add_argument(
        "--json", action="store_true", help="print JSON, see docs/report.md"
    )
    verb.add_argument(
        "--rows",
        type=_rows,
        default=DEFAULT_ROWS,
        metavar="N|all",
        help="how many collectives to list (default: %(default)s)",
    )
    own = verb.add_argument_group("your own measurements, see docs/calibration.md")
    own.add_argument(
        "--calibration", metavar="FILE", help="what `lagom calibrate` wrote"
    )
    own.add_argument(
        "--profile",
        metavar="DIR",
        help="what jax.profiler.trace wrote while this very program ran",
    )
    step = verb.add_argument_group("for a step that is compiled")
    step.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an XLA option, such as xla_gpu_enable_pipelined_all_gather=true; may be "
        "given several times",
    )
    zoo = verb.add_argument_group("for a model of the zoo")
    zoo.add_argument(
        "--parallelism", help="dp, fsdp, tp, tp-sp, tp-sliced, ep, pp (default: fsdp)"
    )
    zoo.add_argument("--layers", type=_positive, help="fewer layers than published")
    zoo.add_argument("--batch", type=_positive, help="sequences in a micro batch")
    zoo.add_argument("--sequence", type=_positive, help="tokens in a sequence")
    zoo.add_argument("--model-axis", type=_positive, help="devices on the model axis")
    zoo.add_argument("--tiny", action="store_true", help="a few layers, small ones")
    zoo.add_argument(
        "--unrolled", action="store_true", help="layers written out instead of a loop"
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    cluster = Cluster.parse(arguments.cluster)
    subject = find_subject(arguments.subject, cluster, _zoo_options(arguments))
    report = _report(subject, cluster, arguments)
    with writing():
        if arguments.json:
            print(report.to_json())
        else:
            screen = console()
            screen.print(render(report, rows=arguments.rows, width=screen.width))
    return 0


def _report(
    subject: Subject, cluster: Cluster, arguments: argparse.Namespace
) -> Report:
    measured = {"calibration": arguments.calibration, "profile": arguments.profile}
    if subject.dump is not None:
        parse_options(arguments.option, used=False)
        return analyze_dump(subject.dump, cluster, **measured)
    options = parse_options(arguments.option)
    with progress(f"compiling {subject.name} for {cluster.name} ..."):
        return analyze(
            subject.step,
            *subject.arguments,
            cluster=cluster,
            compiler_options=options,
            name=subject.name,
            description=subject.description,
            **measured,
        )


def _zoo_options(arguments: argparse.Namespace) -> dict[str, Any]:
    wanted = {
        "parallelism": arguments.parallelism,
        "layers": arguments.layers,
        "batch": arguments.batch,
        "sequence": arguments.sequence,
        "model_axis": arguments.model_axis,
        "tiny": arguments.tiny or None,
        "scan": False if arguments.unrolled else None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _rows(text: str) -> int | None:
    return None if text == "all" else _positive(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
