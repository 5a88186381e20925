"""`lagom clusters`: what programs can be analysed for."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from lagom_jax.cluster import Cluster, Gpu, Link
from lagom_jax.commands.terminal import console
from lagom_jax.report.units import in_bytes


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "clusters",
        help="list the known clusters, or one with the source of every figure",
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
        _show_json(cluster.as_dict()) if arguments.json else _show_one(cluster)
        return 0
    clusters = [Cluster.parse(name) for name in Cluster.names()]
    if arguments.json:
        _show_json([cluster.as_dict() for cluster in clusters])
    else:
        _show_all(clusters)
    return 0


def _show_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def _show_all(clusters: list[Cluster]) -> None:
    table = Table(box=None)
    left = ("name", "GPU", "inside a domain")
    for column in (*left, "GPUs/host", "bf16", "memory", "bandwidth", "network/GPU"):
        table.add_column(
            column, justify="left" if column in left else "right", no_wrap=True
        )
    for cluster in clusters:
        gpu = cluster.gpu
        table.add_row(
            cluster.system.name,
            gpu.title,
            f"{cluster.inside.kind} {_rate(cluster.inside)}",
            str(cluster.system.gpus_per_host),
            f"{gpu.dense_flops_per_s['bf16'] / 1e12:.0f} TFLOP/s",
            in_bytes(gpu.memory_bytes),
            f"{in_bytes(gpu.memory_bytes_per_s)}/s",
            _rate(cluster.between),
        )
    screen = console()
    screen.print(table)
    screen.print(
        "\nWrite NAME:HOSTSxGPUS, such as h100:8x8 (8 hosts of 8), or the path of a "
        "record of your own.\n`lagom clusters NAME` shows every figure and its source.",
        style="dim",
    )


def _rate(link: Link) -> str:
    return f"{in_bytes(link.bytes_per_s)}/s"


def _show_one(cluster: Cluster) -> None:
    table = Table(title=f"{cluster.name}: {cluster.system.title}", box=None)
    for column in ("figure", "value", "source"):
        table.add_column(column, overflow="fold")
    for prefix, part in (
        ("gpu", cluster.gpu),
        ("inside", cluster.inside),
        ("between", cluster.between),
        ("to_host", cluster.to_host),
    ):
        for figure, value in _figures(part):
            source = part.sources.get(figure, "")
            table.add_row(f"{prefix}.{figure}", value, source)
    console().print(table)


def _figures(part: Gpu | Link) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for figure, value in part.as_dict().items():
        if isinstance(value, dict):
            rows.extend((f"{figure}.{key}", f"{v:,}") for key, v in value.items())
        elif isinstance(value, int | float) and value >= 1000:
            rows.append((figure, f"{value:,}"))
        else:
            rows.append((figure, str(value)))
    return rows
