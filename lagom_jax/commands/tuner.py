"""`lagom tuner`: the plugin that gives NCCL, call by call, the settings of a plan."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lagom_jax.commands import VERBS
from lagom_jax.commands.arguments import (
    add_compiled,
    add_subject,
    positive,
    scheduled_step,
)
from lagom_jax.commands.terminal import console, writing
from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.from_plan import nearest_rules, rules_by_size, rules_of
from lagom_jax.nccl_plugin.image import load, save
from lagom_jax.nccl_plugin.library import VERSIONS, Communicator, built, opened
from lagom_jax.nccl_plugin.nccl_library import find_nccl, read_nccl
from lagom_jax.nccl_plugin.reference import Limits, ReferenceCommunicator
from lagom_jax.nccl_plugin.rules import FUNCTIONS, Answer, Rules, without_places
from lagom_jax.plan import load as load_plan
from lagom_jax.program.build import build_program
from lagom_jax.units import counted

DIFFERS = 1
"""Exit code when NCCL will not load the plugin, or the plugin is not as specified."""
_PAGE = "See docs/reference/tuner.md."


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "tuner",
        help=VERBS["tuner"],
        description=f"A tuner plugin for a stock NCCL. {_PAGE}",
    )
    kinds = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    path = kinds.add_parser(
        "path",
        help="where it is, for NCCL_TUNER_PLUGIN",
        description="Prints the plugin's path.",
    )
    path.set_defaults(run=_path)
    check = kinds.add_parser(
        "check",
        help="whether an NCCL library will load it",
        description="Compares the versions of the interface that an NCCL library looks "
        "for with those of the plugin. Exits with 1 if there is none in common.",
    )
    check.add_argument(
        "library",
        nargs="?",
        metavar="LIBNCCL",
        help="a libnccl.so.2 (default: that of the wheel nvidia.nccl, or the system's)",
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)
    write = kinds.add_parser(
        "write",
        help="the rules of a plan, as the plugin reads them",
        description="Writes the rules that make NCCL do what a plan says. The plan "
        "alone tells all of them, unless it has different settings for collectives of "
        "one size: then the step that it is for is compiled as the plan says. "
        f"{_PAGE}",
    )
    add_subject(write, required=False)
    write.add_argument("--plan", required=True, metavar="FILE", help="the plan")
    write.add_argument("--output", required=True, metavar="RULES", help="the file")
    add_compiled(write)
    write.set_defaults(run=_write)
    _add_explain(kinds)


def _add_explain(kinds: Any) -> None:
    explain = kinds.add_parser(
        "explain",
        help="what it would answer for a call",
        description="Asks the plugin itself what it would tell NCCL for one call, by "
        "the call's size, and its specification in Python. Exits with 1 if they "
        "differ.",
    )
    explain.add_argument(
        "rules", metavar="RULES", help="what `lagom tuner write` wrote"
    )
    explain.add_argument("--function", required=True, choices=FUNCTIONS)
    explain.add_argument(
        "--bytes",
        required=True,
        type=positive,
        help="of the larger side, added up over the operands that NCCL takes together",
    )
    explain.add_argument("--ranks", required=True, type=positive)
    explain.add_argument("--hosts", type=positive, default=1, help="(default: 1)")
    explain.add_argument(
        "--domains", type=positive, help="NVLink domains (default: as many as hosts)"
    )
    explain.add_argument(
        "--pipe-ops", type=positive, default=1, help="NCCL's numPipeOps (default: 1)"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(run=_explain)


def _path(_: argparse.Namespace) -> int:
    path = built()
    with writing():
        print(path)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    plugin = built()
    found = read_nccl(Path(arguments.library) if arguments.library else find_nccl())
    loads = found.speaks is not None
    with writing():
        if arguments.json:
            document = {
                "plugin": str(plugin),
                "plugin_versions": sorted(VERSIONS),
                "library": str(found.path),
                "release": found.release,
                "library_versions": found.looks_for,
                "loads": loads,
                "version": found.speaks,
                "chunks": found.takes_chunks,
            }
            print(json.dumps(document, indent=2))
        else:
            screen = console()
            release = f"NCCL {found.release}" if found.release else "NCCL"
            screen.print(f"{release} at {found.path}", soft_wrap=True)
            screen.print(
                f"looks for tuners of versions {_listed(found.looks_for)}; the plugin "
                f"has {_listed(sorted(VERSIONS))}",
                soft_wrap=True,
            )
            if loads:
                chunks = "and takes" if found.takes_chunks else "but takes no"
                verdict = (
                    f"It will ask in version {found.speaks}, {chunks} chunk sizes."
                )
            else:
                verdict = "It will not load the plugin."
            screen.print(verdict, style="bold green" if loads else "bold red")
    return 0 if loads else DIFFERS


_EXACT = (
    "with the step that the plan is for, and --cluster, each collective has its own "
    "channels by its place in the step"
)


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


def _write(arguments: argparse.Namespace) -> int:
    plan = load_plan(arguments.plan)
    rules, notes = rules_by_size(plan), ()
    if rules is None and (arguments.subject is None or arguments.cluster is None):
        nearest = nearest_rules(plan)
        if nearest is None:
            raise TunerError(
                f"{arguments.plan} has settings for single places of its program, or "
                "was made by an older lagom_jax: name the step that it is for, and "
                "--cluster, as `lagom tune` took them"
            )
        rules, notes = nearest.rules, (*nearest.notes, _EXACT)
    elif rules is None:
        scheduled = scheduled_step(arguments)
        assert scheduled.plan is not None
        program = build_program(scheduled.module)
        compiled = rules_of(scheduled.plan, program, scheduled.cluster)
        rules, notes = compiled.rules, compiled.notes
    save(rules, arguments.output)
    with writing():
        screen = console()
        screen.print(_contents(rules), soft_wrap=True)
        for note in notes:
            screen.print(f"note: {note}", style="yellow", soft_wrap=True)
    return 0


def _contents(rules: Rules) -> str:
    by_size = sum(len(scope.rules) for scope in rules.scopes)
    places = sum(len(s) for scope in rules.scopes for s in scope.sequences)
    return (
        f"{counted(by_size, 'rule')} by size and {counted(places, 'place')} in "
        f"sequences, for {counted(len(rules.scopes), 'shape')} of communicators"
    )


def _explain(arguments: argparse.Namespace) -> int:
    rules = load(arguments.rules)
    domains = arguments.domains or arguments.hosts
    shape = {"ranks": arguments.ranks, "hosts": arguments.hosts, "domains": domains}
    call = (arguments.function, arguments.bytes, arguments.pipe_ops)
    by_size = without_places(rules)
    limits = Limits.of(os.environ)
    specified = ReferenceCommunicator(by_size, **shape, limits=limits).told(*call)
    answered = _ask_the_plugin(by_size, shape, call)
    scope = rules.scope_of(*shape.values())
    places = [
        place.answer
        for sequence in (scope.sequences if scope else ())
        for place in sequence
        if (place.function, place.nbytes) == call[:2] and place.answer is not None
    ]
    alike = answered == specified
    with writing():
        if arguments.json:
            document = {
                "plugin": answered and dataclasses.asdict(answered),
                "specified": specified and dataclasses.asdict(specified),
                "differ": not alike,
                "places": [dataclasses.asdict(answer) for answer in places],
            }
            print(json.dumps(document, indent=2))
        else:
            screen = console()
            screen.print(f"the plugin:      {answered or Answer()}", soft_wrap=True)
            screen.print(f"as it should be: {specified or Answer()}", soft_wrap=True)
            for answer, times in Counter(map(str, places)).items():
                screen.print(
                    f"at {times} places in a sequence: {answer}", soft_wrap=True
                )
            if not alike:
                screen.print("They differ: the plugin is defective.", style="bold red")
    return 0 if alike else DIFFERS


def _ask_the_plugin(
    rules: Rules, shape: dict[str, int], call: tuple[str, int, int]
) -> Answer | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules")
        save(rules, path)
        with opened(built(), {"LAGOM_TUNER_RULES": str(path)}) as tuner:
            communicator = Communicator(tuner, **shape)
            answered = communicator.ask(*call)
            communicator.close()
    return answered
