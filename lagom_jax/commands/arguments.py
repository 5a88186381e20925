"""Arguments that several verbs take: what a command is about, and how to compile it."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lagom_jax.cluster import Cluster
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import Subject, find_subject
from lagom_jax.commands.terminal import progress
from lagom_jax.errors import LagomError
from lagom_jax.hlo.stated_kernels import StatedKernel, load_kernels
from lagom_jax.report.story import Story
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
        help="compile anew what was compiled before, look anew for orders that were "
        "found, and keep nothing (see `lagom doctor` for where it is kept)",
    )
    zoo = verb.add_argument_group("for a model of the zoo")
    zoo.add_argument(
        "--parallelism",
        help="dp, fsdp, tp, tp-sp, tp-sliced, cp, ep, pp (default: fsdp)",
    )
    for option, way in (("--tp", "tp"), ("--sp", "tp-sp")):
        zoo.add_argument(
            option,
            choices=("plain", "commfuse"),
            help=f"commfuse: the collectives of {way} in slices, fused with matmuls",
        )
    zoo.add_argument("--layers", type=positive, help="fewer layers than published")
    zoo.add_argument(
        "--batch",
        type=positive_or_auto,
        help="sequences in a micro batch; auto: the most that is estimated to fit in a "
        "GPU's memory, by powers of two",
    )
    zoo.add_argument("--sequence", type=positive, help="tokens in a sequence")
    zoo.add_argument(
        "--attention",
        choices=("plain", "cudnn"),
        help="cudnn: one kernel of the library instead of scores in memory",
    )
    zoo.add_argument("--model-axis", type=positive, help="devices on the model axis")
    zoo.add_argument("--tiny", action="store_true", help="a few layers, small ones")
    zoo.add_argument(
        "--unrolled", action="store_true", help="layers written out instead of a loop"
    )


def zoo_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options for a model of the zoo, as `lagom_models.build` takes them."""
    wanted = {
        "parallelism": arguments.parallelism,
        "tp": arguments.tp,
        "sp": arguments.sp,
        "layers": arguments.layers,
        "batch": arguments.batch,
        "sequence": arguments.sequence,
        "attention": arguments.attention,
        "model_axis": arguments.model_axis,
        "tiny": arguments.tiny or None,
        "scan": False if arguments.unrolled else None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def zoo_words(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The same options, as the command line spells them."""
    words: list[str] = []
    for name, value in zoo_options(arguments).items():
        if name == "scan":
            words.append("--unrolled")
        else:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return tuple(words)


def scheduled_step(
    arguments: argparse.Namespace,
    subject: Subject | None = None,
    *,
    planned: bool = True,
) -> Scheduled:
    """The step that the arguments name, compiled for the cluster or read from a dump.

    Args:
        arguments: The parsed command line.
        subject: The subject, where it has been found already.
        planned: Whether a plan that was given is used.

    Raises:
        LagomError: There is no such thing, or it cannot be compiled or read.
    """
    cluster = Cluster.parse(arguments.cluster)
    if subject is None:
        subject = find_subject(arguments.subject, cluster, zoo_options(arguments))
    plan = getattr(arguments, "plan", None) if planned else None
    kernels = kernels_in(arguments)
    if subject.dump is not None:
        parse_options(arguments.option, used=False)
        if plan is not None:
            raise LagomError("--plan goes with a step that is compiled, not a dump")
        return read_scheduled(subject.dump, cluster).stating(kernels)
    options = parse_options(arguments.option)
    what = f"compiling {subject.name} for {cluster.name} ..."
    with progress(what), compiler_for(arguments) as compiler:
        scheduled = compile_scheduled(
            subject.step,
            *subject.arguments,
            cluster=cluster,
            compiler_options=options,
            name=subject.name,
            description=subject.description,
            plan=plan,
            compiler=compiler,
            **subject.named_arguments,
        )
    cautions = (*subject.cautions, *scheduled.cautions)
    return dataclasses.replace(scheduled, cautions=cautions).stating(kernels)


def add_kernels(verb: argparse.ArgumentParser) -> None:
    """Declares the option for kernels that nothing is known of.

    Args:
        verb: The verb that has it.
    """
    verb.add_argument(
        "--kernels",
        metavar="FILE",
        help="the time, or flops and bytes, of kernels of other libraries; see "
        "docs/how-to/libraries.md",
    )


def kernels_in(arguments: argparse.Namespace) -> tuple[StatedKernel, ...]:
    """The stated kernels that the arguments name.

    Args:
        arguments: The parsed command line.

    Raises:
        KernelTableError: They cannot be read.
    """
    path = getattr(arguments, "kernels", None)
    return load_kernels(path) if path else ()


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
        rows: The number of rows shown by default.
    """
    verb.add_argument("--json", action="store_true", help=f"print JSON, see {page}")
    verb.add_argument(
        "--rows",
        type=rows_or_all,
        default=rows,
        metavar="N|all",
        help="how many rows to list (default: %(default)s)",
    )


_VIEWS: Final = {"html": "page", "trace": "trace", "figure": "figure"}


def add_views(verb: argparse.ArgumentParser) -> None:
    """Declares the files to look at.

    Args:
        verb: The verb.
    """
    views = verb.add_argument_group("to look at, see docs/how-to/look.md")
    views.add_argument(
        "--html", metavar="FILE", help="write a page that needs nothing else"
    )
    views.add_argument(
        "--trace",
        metavar="FILE",
        help="write a trace for ui.perfetto.dev or chrome://tracing (.json, .json.gz)",
    )
    views.add_argument(
        "--figure",
        metavar="FILE",
        help="draw the timeline for a paper (.pdf, .svg, .png); needs matplotlib",
    )


def check_views(arguments: argparse.Namespace) -> None:
    """Refuses files that cannot be written, before anything takes long.

    Args:
        arguments: The parsed command line.

    Raises:
        LagomError: One of them cannot be written.
    """
    for what in _VIEWS:
        if file := getattr(arguments, what):
            check_writable(Path(file), _VIEWS[what])


def wants_views(arguments: argparse.Namespace) -> bool:
    """True if any file to look at was asked for.

    Args:
        arguments: The parsed command line.
    """
    return any(getattr(arguments, what) for what in _VIEWS)


def write_views(arguments: argparse.Namespace, story: Story) -> list[str]:
    """Writes the files that were asked for.

    Args:
        arguments: The parsed command line.
        story: What they tell.

    Returns:
        What was written, in a line each.
    """
    written: list[str] = []
    if arguments.html:
        from lagom_jax.report.page import write_page

        write_page(story, arguments.html)
        written.append(f"page written to {arguments.html}")
    if arguments.trace:
        from lagom_jax.report.perfetto import write_trace

        write_trace(arguments.trace, story.before, story.after)
        written.append(f"trace written to {arguments.trace}, for ui.perfetto.dev")
    if arguments.figure:
        from lagom_jax.report.paper import write_figure

        write_figure(story, arguments.figure)
        written.append(f"figure written to {arguments.figure}")
    return written


def check_writable(file: Path, what: str) -> None:
    """Refuses a file that cannot be written.

    Args:
        file: The file.
        what: What it is to hold.

    Raises:
        LagomError: It cannot be written, and why.
    """
    folder = file.resolve().parent
    if file.is_dir():
        why = "it is a folder; name a file in it"
    elif not folder.is_dir():
        why = f"there is no folder {folder}; make it first"
    elif not os.access(folder, os.W_OK):
        why = f"nothing can be written to {folder}; name another place"
    else:
        return
    raise LagomError(f"cannot write the {what} {file}: {why}")


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positive_or_auto(text: str) -> int | str:
    """A whole number above 0, or `auto`."""
    return text if text == "auto" else positive(text)


def share(text: str) -> float:
    """A part of a whole: `5%` or `0.05`.

    Example:
        >>> share("5%"), share("0.05"), share("0.5 %")
        (0.05, 0.05, 0.005)
    """
    number = text.strip().removesuffix("%").strip()
    try:
        found = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no part of a whole; write 5% or 0.05"
        )
    return found


def rows_or_all(text: str) -> int | None:
    """A number of rows; None for `all`."""
    return None if text == "all" else positive(text)
