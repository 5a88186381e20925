"""`lagom clusters`: what programs can be analysed for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, Literal

from rich.table import Table

from lagom_jax.cluster import Cluster, Gpu, Link
from lagom_jax.commands import VERBS
from lagom_jax.commands.terminal import console, writing
from lagom_jax.units import in_bytes


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "clusters",
        help=VERBS["clusters"],
        description="Lists the systems that --cluster knows by name. With a cluster, "
        "shows all of its figures and where each comes from.",
    )
    verb.add_argument("cluster", nargs="?", help="such as h100:8x8")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    if arguments.cluster:
        cluster = Cluster.parse(arguments.cluster)
        with writing():
            _show_json(cluster.as_dict()) if arguments.json else _show_one(cluster)
        return 0
    clusters = [Cluster.parse(name) for name in Cluster.names()]
    with writing():
        if arguments.json:
            _show_json([cluster.as_dict() for cluster in clusters])
        else:
            _show_all(clusters)
    return 0


def _show_json(document: object) -> None:
    print(json.dumps(document, indent=2))


_WIDE = 110
_ONLY_WIDE = ("GPU", "GPUs/host", "network/GPU")
_COLUMNS: tuple[tuple[str, Literal["left", "right"], Callable[[Cluster], str]], ...] = (
    ("name", "left", lambda c: c.system.name),
    ("GPU", "left", lambda c: c.gpu.title),
    ("inside a domain", "left", lambda c: f"{c.inside.kind} {_rate(c.inside)}"),
    ("GPUs/host", "right", lambda c: str(c.system.gpus_per_host)),
    (
        "bf16",
        "right",
        lambda c: f"{c.gpu.dense_flops_per_s['bf16'] / 1e12:.0f} TFLOP/s",
    ),
    ("memory", "right", lambda c: in_bytes(c.gpu.memory_bytes)),
    ("bandwidth", "right", lambda c: f"{in_bytes(c.gpu.memory_bytes_per_s)}/s"),
    ("network/GPU", "right", lambda c: _rate(c.between)),
)


def _show_all(clusters: list[Cluster]) -> None:
    screen = console()
    table = Table(box=None)
    for column, justify, _ in _COLUMNS:
        table.add_column(column, justify=justify, no_wrap=True)
    for cluster in clusters:
        table.add_row(*(show(cluster) for _, _, show in _COLUMNS))
    if screen.width < _WIDE:
        # What is left fits into eighty columns.
        table.columns = [c for c in table.columns if c.header not in _ONLY_WIDE]
    screen.print(table)
    screen.print(
        "\nWrite NAME:HOSTSxGPUS, such as h100:8x8 (8 hosts of 8), or the path of a "
        "record of your own.\n`lagom clusters NAME` shows every figure and its source.",
        style="dim",
    )


def _rate(link: Link) -> str:
    return f"{in_bytes(link.bytes_per_s)}/s"


def _show_one(cluster: Cluster) -> None:
    screen = console()
    table = Table(box=None)
    table.add_column("figure", no_wrap=True)
    for column in ("value", ""):
        table.add_column(column, justify="right", no_wrap=True)
    sources: dict[str, int] = {}
    for prefix, part in (
        ("gpu", cluster.gpu),
        ("inside", cluster.inside),
        ("between", cluster.between),
        ("to_host", cluster.to_host),
    ):
        for figure, value in _figures(part):
            source = part.sources.get(figure, "")
            mark = f"({sources.setdefault(source, len(sources) + 1)})" if source else ""
            table.add_row(f"{prefix}.{figure}", value, mark)
    screen.print(f"{cluster.name}: {cluster.system.title}\n", style="bold")
    screen.print(table)
    screen.print()
    for source, number in sources.items():
        screen.print(f"({number}) {source}", style="dim")


def _figures(part: Gpu | Link) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for figure, value in part.as_dict().items():
        if isinstance(value, dict):
            rows.extend((f"{figure}.{key}", f"{v:,}") for key, v in value.items())
        elif isinstance(value, int | float) and value >= 1000:
            rows.append((figure, f"{value:,.0f}"))
        else:
            rows.append((figure, str(value)))
    return rows
