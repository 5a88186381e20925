"""`lagom mesh`: the mesh to train on, before a GPU is rented."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lagom_jax.cluster import Cluster
from lagom_jax.commands.arguments import compiler_for, positive
from lagom_jax.commands.subjects import named_factory
from lagom_jax.commands.terminal import console, import_jax, reporting, writing
from lagom_jax.errors import LagomError
from lagom_jax.measurements.table import load_text, parse_table
from lagom_jax.mesh.candidates import Asks
from lagom_jax.mesh.choose import MeshAdvice, MeshChoice, choose
from lagom_jax.mesh.frameworks import frameworks
from lagom_jax.mesh.infeasible import Infeasible, infeasible
from lagom_jax.mesh.model_shape import published_names
from lagom_jax.mesh.pictures import axes_words, chart_svg, matrix_svg
from lagom_jax.mesh.published_runs import RUN_COLUMNS, RunPrediction, predicted_run
from lagom_jax.mesh.sizes import AXES, REMATS
from lagom_jax.mesh.verify import verified
from lagom_jax.report.layout import table as empty_table
from lagom_jax.units import counted, in_bytes, in_percent, in_seconds

_PAGE = "docs/how-to/mesh.md"
NOTHING_FITS = 1
"""Exit code when no mesh fits."""
BAD_ROWS = 5
"""Exit code when some rows could not be predicted."""
_PREDICTED = (
    "predicted_step_seconds",
    "predicted_memory_bytes",
    "predicted_fits",
)


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "mesh",
        help="which mesh to train a model on, before a GPU is rented",
        description="Predicts a step on every mesh of a cluster from the model's "
        "dimensions alone, and names the best: sizes of all axes, micro batch, remat "
        f"and order of ranks. Exits with {NOTHING_FITS} if none fits. {_PAGE}",
    )
    verb.add_argument(
        "model",
        nargs="?",
        help=f"{', '.join(published_names())}, or a JSON file with dimensions",
    )
    verb.add_argument("--cluster", help="such as h100:8x8; see `lagom clusters`")
    verb.add_argument(
        "--clusters",
        metavar="ONE,OTHER",
        help="compare clusters, such as a3-ultra:8x8,p5:8x8",
    )
    verb.add_argument(
        "--price",
        metavar="DOLLARS[,DOLLARS]",
        help="of a GPU for an hour, for each of --clusters: compare by price per token",
    )
    verb.add_argument("--tokens", type=positive, help="in a step, over all devices")
    verb.add_argument("--sequence", type=positive, help="tokens in a sequence")
    verb.add_argument(
        "--framework",
        choices=sorted(frameworks()),
        default="xla",
        help="how the step is built (default: %(default)s)",
    )
    verb.add_argument(
        "--verify",
        type=positive,
        metavar="N",
        help="compile the best N without a GPU, replay each with its plan, rank anew",
    )
    verb.add_argument(
        "--step",
        metavar="MODULE:FACTORY",
        help="of --verify: a function that takes sizes (data, fsdp, tensor, ...) and "
        "returns a step and its arguments; by default the model of the zoo",
    )
    verb.add_argument("--no-store", action="store_true", help="compile anew")
    verb.add_argument("--remat", choices=REMATS, help="what is computed again")
    verb.add_argument("--micro-batch", type=positive, help="sequences of a replica")
    verb.add_argument(
        "--memory-fraction",
        type=_share,
        default=Asks().memory_fraction,
        help="of the GPU's memory that a step may take (default: %(default)s)",
    )
    verb.add_argument(
        "--score",
        metavar="RUNS.csv",
        help="predict published runs instead: the rows again, with "
        f"{', '.join(_PREDICTED)}",
    )
    verb.add_argument(
        "--output", metavar="FILE", help="of --score, instead of printing"
    )
    verb.add_argument(
        "--pictures",
        metavar="FOLDER",
        help="write the communication matrix and the chart of choices there, as SVG",
    )
    verb.add_argument("--json", action="store_true", help=f"print JSON, see {_PAGE}")
    verb.add_argument(
        "--rows",
        type=positive,
        default=8,
        help="choices to list (default: %(default)s)",
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    if arguments.score:
        return _score(arguments)
    names = _clusters(arguments)
    if not (arguments.model and arguments.tokens and arguments.sequence):
        raise LagomError(
            "say what to train: lagom mesh llama-3-8b --cluster h100:8x8 --tokens "
            "4194304 --sequence 4096"
        )
    asks = Asks(
        remats=(arguments.remat,) if arguments.remat else REMATS,
        micro_batch=arguments.micro_batch,
        memory_fraction=arguments.memory_fraction,
        simple=bool(arguments.verify) and not arguments.step,
    )
    prices = _prices(arguments, len(names))
    found: list[tuple[MeshAdvice, Infeasible | None, float | None]] = []
    for name, price in zip(names, prices, strict=True):
        advice = choose(
            arguments.model,
            cluster=Cluster.parse(name),
            tokens=arguments.tokens,
            sequence=arguments.sequence,
            framework=arguments.framework,
            asks=asks,
            keep=max(arguments.rows, arguments.verify or 0, 8),
        )
        if arguments.verify and advice.choices:
            advice = _verified(arguments, advice)
        why = infeasible(
            *(advice.shape, advice.cluster, advice.batch, advice.framework, asks),
            advice.candidates,
        )
        found.append((advice, why, price))
    if arguments.pictures:
        _draw(Path(arguments.pictures), [advice for advice, _, _ in found])
    with writing():
        if arguments.json:
            documents = [_document(*one) for one in found]
            whole = (
                documents[0]
                if len(found) == 1
                else {"clusters": _best_first(documents)}
            )
            print(json.dumps(whole, indent=2))
        else:
            screen = console()
            for advice, why, _ in found:
                screen.print(_shown(advice, why, arguments.rows))
            if len(found) > 1:
                screen.print(_comparison(found))
    return 0 if any(advice.choices for advice, _, _ in found) else NOTHING_FITS


def _draw(folder: Path, advices: list[MeshAdvice]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for advice in advices:
            if advice.choices:
                name = f"{advice.shape.name}-{advice.cluster.name}".replace(":", "-")
                name = name.replace("/", "-")
                matrix = matrix_svg(advice, advice.best)
                (folder / f"{name}-matrix.svg").write_text(matrix, encoding="utf-8")
                chart = chart_svg(advice)
                (folder / f"{name}-chart.svg").write_text(chart, encoding="utf-8")
    except OSError as error:
        raise LagomError(f"cannot write to {folder}: {error.strerror}") from None


def _verified(arguments: argparse.Namespace, advice: MeshAdvice) -> MeshAdvice:
    import_jax()
    if arguments.step:
        module, colon, name = arguments.step.rpartition(":")
        factory = named_factory(module, name) if colon else None
        if not callable(factory):
            raise LagomError(
                f"--step={arguments.step} names no function: write MODULE:FACTORY"
            )
    else:
        try:
            zoo = importlib.import_module("lagom_models")
        except ImportError as error:
            raise LagomError(str(error)) from None
        if arguments.model not in zoo.names():
            raise LagomError(
                f"--verify compiles models of the zoo ({', '.join(zoo.names())}); for "
                "another name the function that makes its step with --step"
            )
        factory = functools.partial(zoo.build_on, arguments.model)
    with reporting() as say, compiler_for(arguments) as compiler:
        return verified(
            advice, factory, arguments.verify, compiler=compiler, progress=say
        )


def _clusters(arguments: argparse.Namespace) -> list[str]:
    if bool(arguments.cluster) == bool(arguments.clusters):
        raise LagomError("name one cluster with --cluster, or several with --clusters")
    if arguments.cluster:
        return [arguments.cluster]
    return [name for name in arguments.clusters.split(",") if name.strip()]


def _prices(arguments: argparse.Namespace, count: int) -> list[float | None]:
    if not arguments.price:
        return [None] * count
    try:
        prices = [float(text) for text in arguments.price.split(",")]
    except ValueError:
        prices = []
    if len(prices) != count or min(prices) <= 0:
        raise LagomError(
            f"--price={arguments.price}: one price above 0 for each of "
            f"{counted(count, 'cluster')}, separated by commas"
        )
    return list(prices)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, above 0, at most 1")
    return value


def _price_per_token(advice: MeshAdvice, price: float | None) -> float | None:
    """Dollars for a million tokens."""
    if price is None or not advice.choices:
        return None
    a_second = price * advice.cluster.devices / 3600
    return 1e6 * a_second / advice.best.tokens_per_second


def _best_first(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def worth(document: dict[str, Any]) -> tuple[bool, float]:
        price = document["dollars_per_million_tokens"]
        if price is None and document["choices"]:
            price = -document["choices"][0]["tokens_per_second"]
        return not document["choices"], price or 0.0

    return sorted(documents, key=worth)


def _document(
    advice: MeshAdvice, why: Infeasible | None, price: float | None
) -> dict[str, Any]:
    return {
        "model": advice.shape.name,
        "cluster": advice.cluster.name,
        "framework": advice.framework.name,
        "tokens": advice.batch.tokens,
        "sequence_tokens": advice.batch.length,
        "choices": [_row(advice, choice) for choice in advice.choices],
        "evaluated": advice.evaluated,
        "seconds": advice.seconds,
        "candidates": len(advice.candidates.found),
        "dropped": dict(advice.candidates.dropped),
        "infeasible": dataclasses.asdict(why) if why else None,
        "dollars_per_million_tokens": _price_per_token(advice, price),
    }


def _row(advice: MeshAdvice, choice: MeshChoice) -> dict[str, Any]:
    sizes, found = choice.sizes, choice.estimate
    return {
        **{axis: sizes.of(axis) for axis in AXES},
        "micro_batch": sizes.micro_batch,
        "micro_batches": advice.batch.micro_batches(sizes),
        "remat": sizes.remat,
        "tensor_sequence": sizes.tensor_sequence,
        "interleave": sizes.interleave,
        "rank_order": list(sizes.order),
        "step_seconds": choice.step_seconds,
        "step_low": choice.step_low,
        "step_high": choice.step_high,
        "tokens_per_second": choice.tokens_per_second,
        "mfu": choice.mfu,
        "memory_bytes": found.memory.total,
        "communication_share": found.communication_share,
        "compute_seconds": found.compute_seconds,
        "bubble_seconds": found.bubble_seconds,
        "exposed_seconds": dict(found.exposed),
        "communication_seconds": dict(found.sent),
        "loses_by": dataclasses.asdict(choice.loses_by) if choice.loses_by else None,
        "verified_step_seconds": choice.verified_step_seconds,
        "verified_memory_bytes": choice.verified_memory_bytes,
        "refused": choice.refused or None,
    }


def _shown(advice: MeshAdvice, why: Infeasible | None, rows: int) -> Group:
    head = Text(
        f"{advice.shape.name} ({advice.shape.parameters / 1e9:.3g} billion weights) on "
        f"{advice.cluster.name}, {advice.batch.sequences} sequences of "
        f"{advice.batch.length} tokens a step. {advice.framework.title}. "
        f"Meshes that fit: {len(advice.candidates.found)}; priced: {advice.evaluated}, "
        f"in {in_seconds(advice.seconds)}. All figures are predicted.\n"
    )
    if why is not None:
        return Group(head, _refusal(why))
    return Group(head, _table(advice, rows), Text(), _advice(advice))


def _table(advice: MeshAdvice, rows: int) -> Table:
    shown = empty_table(
        "Meshes, best first",
        *("mesh", "step", "interval", "MFU"),
        *("memory", "waits", "loses by"),
        *(("compiled",) if any(_compiled(one) for one in advice.choices) else ()),
    )
    for choice in advice.choices[:rows]:
        loss = choice.loses_by
        shown.add_row(
            axes_words(choice.sizes),
            in_seconds(choice.step_seconds),
            f"{in_signed_percent(choice.step_low, choice.step_seconds)} to "
            f"{in_signed_percent(choice.step_high, choice.step_seconds)}",
            in_percent(choice.mfu, 1),
            in_bytes(choice.estimate.memory.total),
            in_percent(choice.estimate.communication_share, 1),
            f"{loss.part} {in_seconds(loss.seconds)}" if loss else "",
            *((_compiled(choice),) if len(shown.columns) > 7 else ()),
        )
    return shown


def in_signed_percent(value: float, of: float) -> str:
    """A figure's distance from another.

    Example:
        >>> in_signed_percent(1.2, 1.0)
        '+20 %'
    """
    return f"{100 * (value / of - 1):+.0f} %"


def _compiled(choice: MeshChoice) -> str:
    """Seconds of the compiled step, or that it was refused."""
    if choice.verified_step_seconds is not None:
        return in_seconds(choice.verified_step_seconds)
    return "refused" if choice.refused else ""


def _advice(advice: MeshAdvice) -> Text:
    return Text(
        f"Take {axes_words(advice.best.sizes)}: "
        f"{advice.best.tokens_per_second:,.0f} tokens/s. {_PAGE}",
        "bold green",
    )


def _refusal(why: Infeasible) -> Text:
    words = {
        "memory": f"No mesh fits into memory: the smallest step takes "
        f"{in_bytes(why.least_memory_bytes or 0)} of {in_bytes(why.memory_bytes)}",
        "batch": "No mesh fits the batch: its sequences do not divide",
        "model": "No mesh divides the model: heads, layers, experts or widths",
        "host": "No mesh keeps tensor parallelism where links are fast",
    }[why.limit]
    ways = [f"{remedy.what} {remedy.value}" for remedy in why.remedies]
    also = f"; what would do: {', or '.join(ways)}" if ways else ""
    return Text(f"{words}{also}.", "bold red")


def _comparison(
    found: list[tuple[MeshAdvice, Infeasible | None, float | None]],
) -> Table:
    shown = empty_table(
        "Clusters, each with its best mesh",
        *("cluster", "mesh", "step", "tokens/s", "$ for a million tokens"),
    )
    order = sorted(
        (one for one in found if one[0].choices),
        key=lambda one: (
            _price_per_token(one[0], one[2]) or -one[0].best.tokens_per_second
        ),
    )
    for advice, _, price in order:
        dollars = _price_per_token(advice, price)
        shown.add_row(
            advice.cluster.name,
            axes_words(advice.best.sizes),
            in_seconds(advice.best.step_seconds),
            f"{advice.best.tokens_per_second:,.0f}",
            "-" if dollars is None else f"{dollars:.3g}",
        )
    return shown


def _score(arguments: argparse.Namespace) -> int:
    table = parse_table(load_text(arguments.score), RUN_COLUMNS, arguments.score)
    outcomes = table.each(predicted_run)
    kept = [name for name in table.columns if name not in _PREDICTED]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*kept, *_PREDICTED])
    for (_, row), outcome in zip(table.rows, outcomes, strict=True):
        cells = outcome.cells or dict(zip(table.columns, row, strict=False))
        known = outcome.result
        writer.writerow([*(cells.get(name, "") for name in kept), *_cells(known)])
    if arguments.output:
        try:
            Path(arguments.output).write_text(out.getvalue(), encoding="utf-8")
        except OSError as error:
            raise LagomError(
                f"cannot write {arguments.output}: {error.strerror}"
            ) from None
    else:
        sys.stdout.write(out.getvalue())
    bad = [outcome for outcome in outcomes if outcome.problem]
    for outcome in bad:
        print(
            f"lagom: {arguments.score}, line {outcome.line}: {outcome.problem}",
            file=sys.stderr,
        )
    return BAD_ROWS if bad else 0


def _cells(known: RunPrediction | None) -> tuple[str, str, str]:
    if known is None:
        return "", "", ""
    return (
        f"{known.seconds:.6g}",
        str(known.memory_bytes),
        "true" if known.fits else "false",
    )
