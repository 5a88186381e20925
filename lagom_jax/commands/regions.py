"""`lagom regions`: what training across slow links asks of them, and what to take."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import threading
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import add_compiled, positive, zoo_options
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import find_subject
from lagom_jax.commands.terminal import console, progress, writing
from lagom_jax.errors import LagomError
from lagom_jax.regions.advice import PERIODS, RegionAdvice, RegionChoice, advise
from lagom_jax.regions.links import Wan
from lagom_jax.regions.meeting import Meeting
from lagom_jax.regions.utilisation import RegionModel
from lagom_jax.report.layout import table as empty_table
from lagom_jax.units import counted, in_bytes, in_percent, in_seconds

_PAGE = "docs/how-to/regions.md"
_ROWS = 12


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "regions",
        help=VERBS["regions"],
        description=f"Plans training in regions that are joined by slow links. {_PAGE}",
    )
    kinds = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    plan = kinds.add_parser(
        "plan",
        help="utilisation against bandwidth, period and strategy, and which to take",
        description="Predicts a step on one region's cluster, and from it and the "
        "links the utilisation of each strategy, its use of the link, and the "
        "bandwidth that it needs. Exits with 1 if none reaches the target.",
    )
    plan.add_argument(
        "--model", required=True, help="a model of the zoo (lagom_models)"
    )
    plan.add_argument(
        "--cluster", required=True, help="of one region, such as h100:8x8"
    )
    plan.add_argument(
        "--links",
        required=True,
        nargs="+",
        metavar="ONE-OTHER=RATE,LATENCY",
        help="between regions, such as eu-us=10gbps,80ms",
    )
    plan.add_argument(
        "--step",
        type=_seconds,
        metavar="SECONDS",
        help="of one inner step; predicted if not given, which compiles the step",
    )
    plan.add_argument(
        "--periods",
        type=positive,
        nargs="+",
        default=list(PERIODS),
        metavar="N",
        help="inner steps in which everything is exchanged once (default: %(default)s)",
    )
    plan.add_argument(
        "--fragments", type=positive, default=4, help="parts (default: %(default)s)"
    )
    plan.add_argument(
        "--link-use",
        type=_share,
        default=0.4,
        help="share of the time that cocodc may use the link (default: %(default)s)",
    )
    plan.add_argument(
        "--target",
        type=_share,
        default=0.95,
        help="utilisation to reach (default: %(default)s)",
    )
    plan.add_argument("--json", action="store_true", help=f"print JSON, see {_PAGE}")
    plan.add_argument("--all", action="store_true", help="list every choice")
    add_compiled(plan)
    plan.set_defaults(run=_plan)
    meet = kinds.add_parser(
        "meet",
        help="the place where regions that are processes exchange their messages",
        description="Listens until it is interrupted. It decides whose messages count, "
        "so that all regions take in the same, whoever is late or gone.",
    )
    meet.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="such as 0.0.0.0:12400"
    )
    meet.add_argument("--regions", required=True, type=positive, help="how many")
    meet.add_argument(
        "--patience",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for which a late region is waited for (default: %(default)s)",
    )
    meet.set_defaults(run=_meet)


def _plan(arguments: argparse.Namespace) -> int:
    wan = Wan.between(arguments.links)
    cluster = Cluster.parse(arguments.cluster)
    workload, source = _workload(arguments, cluster)
    found = advise(
        workload,
        wan,
        periods=sorted(set(arguments.periods)),
        fragments=arguments.fragments,
        link_use=arguments.link_use,
        target=arguments.target,
    )
    with writing():
        if arguments.json:
            print(json.dumps(_document(found, source), indent=2))
        else:
            screen = console()
            screen.print(_shown(found, source, cluster, every=arguments.all))
    return 0 if found.best else 1


def _meet(arguments: argparse.Namespace) -> int:
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise LagomError(f"--listen={arguments.listen} is no address: write host:port")
    try:
        meeting = Meeting((host, int(port)), arguments.regions, arguments.patience)
    except OSError as error:
        raise LagomError(f"--listen={arguments.listen}: {error.strerror}") from error
    with meeting, writing():
        found = ":".join(map(str, meeting.address))
        print(f"{counted(arguments.regions, 'region')} can meet at {found}", flush=True)
        threading.Event().wait()
    return 0


def _workload(
    arguments: argparse.Namespace, cluster: Cluster
) -> tuple[RegionModel, str]:
    options = parse_options(arguments.option)
    subject = find_subject(arguments.model, cluster, zoo_options(arguments))
    if subject.dump is not None or ":" in arguments.model:
        raise LagomError(
            "--model takes a model of the zoo; see docs/reference/models.md"
        )
    zoo = importlib.import_module("lagom_models")
    step = zoo.build(arguments.model, devices=cluster.devices, **zoo_options(arguments))
    seconds, source = arguments.step, "given"
    if seconds is None:
        from lagom_jax.api import analyze

        with progress(f"compiling {subject.name} for {cluster.name} ..."):
            report = analyze(
                subject.step,
                *subject.arguments,
                cluster=cluster,
                compiler_options=options,
            )
        seconds, source = report.step_seconds, "predicted"
    layers = step.model.config.layers
    return RegionModel(float(step.parameters), layers, seconds), source


def _document(found: RegionAdvice, source: str) -> dict[str, Any]:
    return {
        "step_seconds": found.workload.step_seconds,
        "step_seconds_are": source,
        "parameters": found.workload.parameters,
        "layers": found.workload.layers,
        "regions": list(found.wan.regions),
        "link_bytes_per_s": found.wan.bytes_per_s,
        "link_latency_s": found.wan.latency_s,
        "target": found.target,
        "choices": [_row(choice) for choice in found.choices],
        "best": _row(found.best) if found.best else None,
    }


def _row(choice: RegionChoice) -> dict[str, Any]:
    row = dataclasses.asdict(choice)
    if row["needed_bytes_per_s"] == float("inf"):
        row["needed_bytes_per_s"] = None
    return row


def _shown(found: RegionAdvice, source: str, cluster: Cluster, *, every: bool) -> Group:
    work, wan = found.workload, found.wan
    head = Text(
        f"{counted(len(wan.regions), 'region')} ({', '.join(wan.regions)}) of "
        f"{cluster.name}; {work.parameters / 1e9:.3g} billion parameters in "
        f"{counted(work.layers, 'layer')}; a step takes {in_seconds(work.step_seconds)}"
        f" ({source}). The slowest link carries {in_bytes(wan.bytes_per_s)}/s, the "
        f"longest takes {in_seconds(wan.latency_s)}. All figures are predicted.\n"
    )
    chosen = found.choices if every else _shortlist(found)
    rest = len(found.choices) - len(chosen)
    more = [Text(f" and {rest} more: --all", "dim")] if rest else []
    return Group(head, _table(chosen, found, cluster), *more, Text(), _verdict(found))


def _shortlist(found: RegionAdvice) -> tuple[RegionChoice, ...]:
    """Of each strategy and period the most bits that reach the target, or the best."""
    kept: dict[tuple[str, int], RegionChoice] = {}
    for choice in found.choices:
        key = (choice.strategy, choice.period)
        known = kept.get(key)
        if known is None or (
            known.utilisation < found.target and choice.utilisation > known.utilisation
        ):
            kept[key] = choice
    return tuple(kept.values())


def _table(
    chosen: tuple[RegionChoice, ...], found: RegionAdvice, cluster: Cluster
) -> Table:
    shown = empty_table(
        f"Strategies; bandwidth for a utilisation of {found.target:.0%}",
        *("strategy", "period", "bits", "delay", "send every"),
        *("utilisation", "link use", "sent a step", "needed", "kept a GPU"),
    )
    for choice in chosen:
        enough = choice.utilisation >= found.target
        shown.add_row(
            Text(choice.strategy, "bold" if choice == found.best else ""),
            str(choice.period),
            str(choice.bits),
            str(choice.delay),
            str(choice.interval),
            Text(in_percent(choice.utilisation, 1), "" if enough else "red"),
            in_percent(choice.link_use, 1),
            in_bytes(choice.bytes_per_step),
            _needed(choice),
            in_bytes(choice.kept_bytes / cluster.devices),
        )
    return shown


def _needed(choice: RegionChoice) -> str:
    if choice.needed_bytes_per_s == float("inf"):
        return "none is enough"
    return f"{choice.needed_bytes_per_s * 8 / 1e9:.3g} Gbit/s"


def _verdict(found: RegionAdvice) -> Text:
    best = found.best
    if best is None:
        return Text(
            f"No strategy reaches a utilisation of {found.target:.0%} on this link: "
            "take longer periods, or a lower --target.",
            "bold red",
        )
    if best.strategy == "data parallel":
        return Text("Take data parallelism: the links are fast enough.", "bold green")
    words = [f"period={best.period}", f"bits={best.bits}"]
    if best.strategy != "diloco":
        words[1:1] = [f"fragments={best.fragments}", f"delay={best.delay}"]
    call = f'lagom_jax.regions.{best.strategy}("region", {", ".join(words)})'
    return Text(f"Take {call}: {_PAGE}", "bold green")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, above 0, at most 1")
    return value
