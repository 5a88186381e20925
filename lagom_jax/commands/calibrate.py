"""`lagom calibrate`: corrections to the model from the user's own measurements."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.subjects import find_subject
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.cost.model import CostModel
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo import Module, read_module
from lagom_jax.measurements.calibration import Calibration, MeasurementFile
from lagom_jax.measurements.fit import Error, FittedCurve
from lagom_jax.measurements.nccl_tests import read_nccl_tests
from lagom_jax.measurements.profiled import samples_of_run
from lagom_jax.measurements.rows import (
    CollectiveRow,
    of_cluster,
    read_collectives,
    read_matmuls,
)
from lagom_jax.measurements.samples import (
    Sample,
    samples_of_collectives,
    samples_of_matmuls,
)
from lagom_jax.measurements.table import load_text
from lagom_jax.measurements.xplane import read_profile
from lagom_jax.program.build import build_program
from lagom_jax.scheduled import read_scheduled
from lagom_jax.units import counted, in_bytes

_EXAMPLES = """\
examples:
  lagom calibrate --cluster h100:1x8 --nccl-tests all_gather_perf.txt \\
      --nccl-tests all_reduce_perf.txt --date 2026-01-31 --output my.json
  lagom calibrate --cluster h100:1x8 --collectives mine.csv --matmuls mine2.csv \\
      --output my.json
  lagom calibrate --cluster h100:8x8 --profile trace --dump dump --output my.json
  lagom report train.py:make_step --cluster h100:8x8 --calibration my.json
"""
_SHOWN = 5


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Samples and remarks of one file."""

    source: MeasurementFile
    samples: list[Sample]
    remarks: tuple[str, ...] = ()


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "calibrate",
        help=VERBS["calibrate"],
        description="Compares the model with what was measured on your cluster, prints "
        "how far it is off before and after fitting, and writes the corrections for "
        "`lagom report --calibration`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument(
        "--cluster", required=True, help="where it was measured, such as h100:1x8"
    )
    verb.add_argument(
        "--nccl-tests",
        action="append",
        default=[],
        metavar="FILE",
        help="what all_gather_perf and its like printed; may be given several times",
    )
    verb.add_argument(
        "--ranks", type=int, help="GPUs of those runs, where the output does not tell"
    )
    verb.add_argument("--collectives", metavar="CSV", help="measured collectives")
    verb.add_argument("--matmuls", metavar="CSV", help="measured matrix products")
    verb.add_argument(
        "--profile", metavar="DIR", help="what jax.profiler.trace wrote of a run"
    )
    program = verb.add_mutually_exclusive_group()
    program.add_argument("--dump", metavar="FILE", help="the program of that run")
    program.add_argument(
        "--model",
        metavar="STEP",
        help="that program as `lagom report` compiles it: a model of the zoo, or "
        "MODULE:FACTORY; a dump is surer to be the same",
    )
    verb.add_argument("--date", default="", help="when it was measured, for the record")
    verb.add_argument("--output", required=True, metavar="FILE", help="where to write")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    cluster = Cluster.parse(arguments.cluster)
    model = CostModel.of(cluster)
    parts = list(_parts(arguments, cluster, model))
    if not parts:
        raise MeasurementError(
            "there is nothing to calibrate with; give --nccl-tests, --collectives, "
            "--matmuls or --profile"
        )
    calibration = Calibration.fit(
        [sample for part in parts for sample in part.samples],
        cluster,
        model=model.digest,
        date=arguments.date,
        sources=[part.source for part in parts],
    )
    output = Path(arguments.output)
    try:
        output.write_text(calibration.to_json(), encoding="utf-8")
    except OSError as error:
        raise MeasurementError(f"cannot write {output}: {error}") from None
    with writing():
        _show(calibration, parts, output)
    return 0


def _parts(
    arguments: argparse.Namespace, cluster: Cluster, model: CostModel
) -> Iterator[_Part]:
    if arguments.ranks is not None and arguments.ranks < 2:
        raise MeasurementError(f"--ranks {arguments.ranks}: it takes two at least")
    for path in arguments.nccl_tests:
        found = read_nccl_tests(
            load_text(path), gpu=cluster.gpu.name, ranks=arguments.ranks, origin=path
        )
        yield _collectives(
            path, "nccl-tests", found.rows, found.skipped, cluster, model
        )
    if arguments.collectives:
        table = read_collectives(
            load_text(arguments.collectives), arguments.collectives
        )
        rows = tuple(row for row in table.rows if of_cluster(row.gpu, cluster))
        remarks = (*table.skipped, *_other(len(table.rows) - len(rows)))
        yield _collectives(
            arguments.collectives, "collectives", rows, remarks, cluster, model
        )
    if arguments.matmuls:
        products = read_matmuls(load_text(arguments.matmuls), arguments.matmuls)
        mine = [row for row in products.rows if of_cluster(row.gpu, cluster)]
        remarks = (*products.skipped, *_other(len(products.rows) - len(mine)))
        samples = samples_of_matmuls(mine, cluster, model)
        source = MeasurementFile(arguments.matmuls, "matmuls", len(samples))
        yield _Part(source, samples, remarks)
    if arguments.profile:
        yield _profile(arguments, cluster, model)
    elif arguments.dump or arguments.model:
        raise MeasurementError("--dump and --model go with --profile")


def _other(rows: int) -> tuple[str, ...]:
    return (f"{counted(rows, 'row')} of other GPUs",) if rows else ()


def _collectives(
    path: str,
    kind: str,
    rows: tuple[CollectiveRow, ...],
    remarks: tuple[str, ...],
    cluster: Cluster,
    model: CostModel,
) -> _Part:
    samples, too_big = samples_of_collectives(rows, cluster, model)
    if too_big:
        remarks = (
            *remarks,
            f"{counted(too_big, 'row')} of more GPUs than {cluster.name} has",
        )
    return _Part(MeasurementFile(path, kind, len(samples)), samples, remarks)


def _profile(
    arguments: argparse.Namespace, cluster: Cluster, model: CostModel
) -> _Part:
    step = read_profile(arguments.profile)
    program = build_program(_module(arguments, cluster))
    samples, found = samples_of_run(program, step, cluster, model)
    remark = f"{counted(step.steps, 'step')} of {step.module}, {found.words()}"
    return _Part(
        MeasurementFile(arguments.profile, "profile", len(samples)), samples, (remark,)
    )


def _module(arguments: argparse.Namespace, cluster: Cluster) -> Module:
    if arguments.dump:
        return read_scheduled(arguments.dump, cluster).module
    if not arguments.model:
        raise MeasurementError(
            "--profile needs the program that was run: give its --dump (--xla_dump_to, "
            "or the text of compiled.as_text()), or --model"
        )
    from lagom_jax.compile import compile_step, lower

    subject = find_subject(arguments.model, cluster, {})
    if subject.dump is not None:
        return read_scheduled(subject.dump, cluster).module
    with progress(f"compiling {subject.name} for {cluster.name} ..."):
        lowered = lower(subject.step, *subject.arguments)
        return read_module(compile_step(lowered, cluster).module_bytes)


def _show(calibration: Calibration, parts: list[_Part], output: Path) -> None:
    screen = console()
    for part in parts:
        source = part.source
        screen.print(f"{source.path}: {source.rows} measurements ({source.kind})")
        for remark in part.remarks[:_SHOWN]:
            screen.print(Text(f"  {remark}", "dim"))
        if len(part.remarks) > _SHOWN:
            screen.print(Text(f"  and {len(part.remarks) - _SHOWN} more", "dim"))
    table = Table(
        title="\nError of the model: median (90th percentile)",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    for column in ("what", "rows", "sizes", "before", "after", "kept out", "factor"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for correction in calibration.corrections:
        table.add_row(*_row(correction))
    screen.print(table)
    screen.print(
        Text(
            "\n'after' is on the rows fitted to; 'kept out' on sizes that the fit had "
            "not seen. What would not have helped there is left as it was.",
            "dim",
        ),
        soft_wrap=True,
    )
    screen.print(f"wrote {output}", soft_wrap=True)


def _row(correction: FittedCurve) -> list[str]:
    least, greatest = correction.sizes
    if correction.unit == "bytes":
        sizes = f"{in_bytes(least)} to {in_bytes(greatest)}"
    else:
        sizes = f"{least:.1e} to {greatest:.1e} operations"
    low, high = correction.curve.range
    key = correction.key
    ranks = f" of {key.ranks}" if key.ranks else ""
    scope = f" ({key.scope})" if key.scope else ""
    return [
        key.kind + ranks + scope,
        str(correction.rows),
        sizes,
        _error(correction.before),
        _error(correction.after),
        _error(correction.kept_out) if correction.kept_out else "not known",
        f"{low:.2f} to {high:.2f}" if correction.curve.knots else "none",
    ]


def _error(error: Error) -> str:
    return f"{error.median:.1%} ({error.worst_tenth:.0%})"
