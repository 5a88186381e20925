"""Arguments that several verbs take: what a command is about, and how to compile it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lagom_jax.cluster import Cluster
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import Subject, find_subject
from lagom_jax.commands.terminal import progress
from lagom_jax.errors import LagomError
from lagom_jax.scheduled import Scheduled, compile_scheduled, read_scheduled

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler


def add_subject(verb: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declares the subject and the cluster.

    Args:
        verb: The verb.
        required: False where the verb can do without them.
    """
    verb.add_argument(
        "subject",
        nargs=None if required else "?",
        help="a model of the zoo (lagom_models), MODULE:FACTORY or FILE.py:FACTORY, a "
        "dump (*after_optimizations.txt, .hlo.pb, compiled.as_text(), a folder that "
        "--xla_dump_to filled), or - for a dump on standard input",
    )
    verb.add_argument(
        "--cluster", required=required, help="such as h100:8x8; see `lagom clusters`"
    )


def add_compiled(verb: argparse.ArgumentParser) -> None:
    """Declares the options of steps that are compiled, and of models of the zoo."""
    step = verb.add_argument_group("for a step that is compiled")
    step.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an XLA option, such as xla_gpu_enable_pipelined_all_gather=true; may be "
        "given several times",
    )
    step.add_argument(
        "--no-store",
        action="store_true",
        help="compile anew what was compiled before, and keep nothing (see `lagom "
        "doctor` for where it is kept)",
    )
    zoo = verb.add_argument_group("for a model of the zoo")
    zoo.add_argument(
        "--parallelism", help="dp, fsdp, tp, tp-sp, tp-sliced, ep, pp (default: fsdp)"
    )
    zoo.add_argument("--layers", type=positive, help="fewer layers than published")
    zoo.add_argument("--batch", type=positive, help="sequences in a micro batch")
    zoo.add_argument("--sequence", type=positive, help="tokens in a sequence")
    zoo.add_argument("--model-axis", type=positive, help="devices on the model axis")
    zoo.add_argument("--tiny", action="store_true", help="a few layers, small ones")
    zoo.add_argument(
        "--unrolled", action="store_true", help="layers written out instead of a loop"
    )


def zoo_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was said about a model of the zoo, as `lagom_models.build` takes it."""
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


def scheduled_step(
    arguments: argparse.Namespace, subject: Subject | None = None
) -> Scheduled:
    """What the arguments name: a step compiled for the cluster, or a dump of one.

    Args:
        arguments: What was said.
        subject: What it is about, where that has been found already.

    Raises:
        LagomError: There is no such thing, or it cannot be compiled or read.
    """
    cluster = Cluster.parse(arguments.cluster)
    if subject is None:
        subject = find_subject(arguments.subject, cluster, zoo_options(arguments))
    plan = getattr(arguments, "plan", None)
    if subject.dump is not None:
        parse_options(arguments.option, used=False)
        if plan is not None:
            raise LagomError("--plan goes with a step that is compiled, not a dump")
        return read_scheduled(subject.dump, cluster)
    options = parse_options(arguments.option)
    what = f"compiling {subject.name} for {cluster.name} ..."
    with progress(what), compiler_for(arguments) as compiler:
        return compile_scheduled(
            subject.step,
            *subject.arguments,
            cluster=cluster,
            compiler_options=options,
            name=subject.name,
            description=subject.description,
            plan=plan,
            compiler=compiler,
        )


def compiler_for(arguments: argparse.Namespace) -> Compiler:
    """The compiler, with its store unless that is not wanted."""
    # Here and not above: a dump is reported without the compiler.
    from lagom_jax.compile import Compiler

    return Compiler(store=not arguments.no_store)


def add_output(verb: argparse.ArgumentParser, *, page: str, rows: int) -> None:
    """Declares JSON, and how much of the table is shown.

    Args:
        verb: The verb.
        page: Where its JSON is described.
        rows: How many rows are shown if nothing is said.
    """
    verb.add_argument("--json", action="store_true", help=f"print JSON, see {page}")
    verb.add_argument(
        "--rows",
        type=_rows,
        default=rows,
        metavar="N|all",
        help="how many rows to list (default: %(default)s)",
    )


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _rows(text: str) -> int | None:
    return None if text == "all" else positive(text)
