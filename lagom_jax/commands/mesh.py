"""`lagom mesh`: the mesh to train on, before a GPU is rented."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import compiler_for, positive
from lagom_jax.commands.mesh_score import PREDICTED, score
from lagom_jax.commands.mesh_tables import offer_shown, offers_shown
from lagom_jax.commands.subjects import named_factory
from lagom_jax.commands.terminal import console, import_jax, reporting, writing
from lagom_jax.errors import LagomError
from lagom_jax.files import write_whole
from lagom_jax.mesh.candidates import Asks
from lagom_jax.mesh.choosing import MeshAdvice, choose
from lagom_jax.mesh.frameworks import frameworks
from lagom_jax.mesh.infeasible import infeasible
from lagom_jax.mesh.mesh_document import Offer, mesh_document
from lagom_jax.mesh.mesh_page import mesh_page
from lagom_jax.mesh.model_shape import published_names
from lagom_jax.mesh.pictures import chart_svg, matrix_svg
from lagom_jax.mesh.sizes import REMATS
from lagom_jax.mesh.verify import verified
from lagom_jax.planner import Budget
from lagom_jax.units import counted

_PAGE = "docs/how-to/mesh.md"
NOTHING_FITS = 1
"""Exit code when no mesh fits."""


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "mesh",
        help=VERBS["mesh"],
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
        "--compiles",
        type=positive,
        default=1,
        metavar="M",
        help="of --verify: so many runs of the compiler for each mesh that may still "
        "become the best, to try XLA's options (default: %(default)s)",
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
        f"{', '.join(PREDICTED)}",
    )
    verb.add_argument(
        "--output", metavar="FILE", help="of --score, instead of printing"
    )
    verb.add_argument(
        "--pictures",
        metavar="FOLDER",
        help="write the communication matrix and the chart of choices there, as SVG",
    )
    verb.add_argument(
        "--html", metavar="FILE", help="write a page that needs nothing else"
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
        return score(arguments.score, arguments.output)
    names = _clusters(arguments)
    if not (arguments.model and arguments.tokens and arguments.sequence):
        raise LagomError(
            "say what to train: lagom mesh llama-3-8b --cluster h100:8x8 --tokens "
            "4194304 --sequence 4096"
        )
    prices = _prices(arguments, len(names))
    offers = [
        _offer(arguments, name, price)
        for name, price in zip(names, prices, strict=True)
    ]
    if arguments.pictures:
        _draw(Path(arguments.pictures), [offer.advice for offer in offers])
    if arguments.html:
        _write_page(arguments.html, offers)
    with writing():
        if arguments.json:
            print(json.dumps(mesh_document(offers), indent=2))
        else:
            screen = console()
            for offer in offers:
                screen.print(offer_shown(offer, arguments.rows, _PAGE))
            if len(offers) > 1:
                screen.print(offers_shown(offers))
            if arguments.html:
                screen.print(f"page written to {arguments.html}")
    return 0 if any(offer.advice.choices for offer in offers) else NOTHING_FITS


def _offer(arguments: argparse.Namespace, name: str, price: float | None) -> Offer:
    asks = Asks(
        remats=(arguments.remat,) if arguments.remat else REMATS,
        micro_batch=arguments.micro_batch,
        memory_fraction=arguments.memory_fraction,
        simple=bool(arguments.verify) and not arguments.step,
    )
    advice = choose(
        arguments.model,
        cluster=Cluster.parse(name),
        tokens=arguments.tokens,
        sequence=arguments.sequence,
        framework=arguments.framework,
        asks=asks,
        keep=max(arguments.rows, arguments.verify or 0),
    )
    if arguments.verify and advice.choices:
        advice = _verified(arguments, advice)
    why = infeasible(
        *(advice.shape, advice.cluster, advice.batch, advice.framework, asks),
        advice.candidates,
    )
    return Offer(advice, why, price)


def _write_page(path: str, offers: list[Offer]) -> None:
    command = shlex.join(["lagom", *sys.argv[1:]])
    try:
        write_whole(Path(path), mesh_page(offers, command).encode())
    except OSError as error:
        raise LagomError(
            f"cannot write {path}: {error.strerror or error}; name another place"
        ) from None


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
        fraction = arguments.memory_fraction
        return verified(
            *(advice, factory, arguments.verify),
            budget=Budget(compiles=arguments.compiles, memory_fraction=fraction),
            compiler=compiler,
            progress=say,
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
