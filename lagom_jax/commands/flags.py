"""`lagom flags`: the knobs of XLA and NCCL, and which of them are set here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from lagom_jax.commands import VERBS
from lagom_jax.commands.terminal import console, writing
from lagom_jax.errors import LagomError
from xla_flags import (
    Flag,
    FlagError,
    Pin,
    Recipe,
    find,
    flags,
    known,
    pinned_here,
    recipes,
)
from xla_flags.pages import shown_value


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "flags",
        help=VERBS["flags"],
        description="Lists what can be set in XLA's GPU compiler and in NCCL: what it "
        "binds, its default, and what it was seen to change. With names, shows all "
        "that is known of them.",
    )
    verb.add_argument("name", nargs="*", help="such as xla_gpu_pipeline_all_gather")
    verb.add_argument("--holder", choices=("xla", "nccl"), help="only these")
    what = verb.add_mutually_exclusive_group()
    what.add_argument(
        "--recipes", action="store_true", help="what others recommend, with sources"
    )
    what.add_argument(
        "--pinned",
        action="store_true",
        help="what XLA_FLAGS, NCCL_* and nccl.conf set on this machine",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    if (arguments.recipes or arguments.pinned) and (arguments.name or arguments.holder):
        raise LagomError("--recipes and --pinned list everything: give no names")
    if arguments.recipes:
        found = recipes()
        with writing():
            if arguments.json:
                _print_json([_recipe_as_dict(recipe) for recipe in found])
            else:
                _show_recipes(found)
        return 0
    if arguments.pinned:
        pins = pinned_here()
        with writing():
            if arguments.json:
                _print_json([_pin_as_dict(pins, index) for index in range(len(pins))])
            else:
                _show_pins(pins)
        return 0
    chosen = _chosen(arguments.name, arguments.holder)
    with writing():
        if arguments.json:
            _print_json([flag.as_dict() for flag in chosen])
        elif arguments.name:
            for flag in chosen:
                _show_one(flag)
        else:
            _show_all(chosen)
    return 0


def _chosen(names: list[str], holder: str | None) -> tuple[Flag, ...]:
    if not names:
        return flags(holder=holder)
    try:
        found = tuple(find(name) for name in names)
    except FlagError as error:
        raise LagomError(f"{error}") from error
    return tuple(flag for flag in found if holder in (None, flag.holder))


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, default=str))


_WIDE = 110
_DEFAULT = 12
# One blank on either side of each of the four columns.
_PADDING = 8


def _show_all(chosen: Iterable[Flag]) -> None:
    screen = console()
    wide = screen.width >= _WIDE
    table = Table(box=None)
    # A name that is cut cannot be copied.
    longest = max(len(flag.name) for flag in flags())
    table.add_column("name", no_wrap=True, min_width=longest)
    table.add_column("changed", no_wrap=True, min_width=_DEFAULT)
    if wide:
        table.add_column("default", no_wrap=True, min_width=_DEFAULT)
        left = screen.width - longest - 2 * _DEFAULT - _PADDING
        table.add_column("what it binds", no_wrap=True, max_width=left)
    for group, members in groupby(chosen, key=lambda flag: flag.group):
        table.add_row(Text(group.replace("_", " "), style="bold"))
        for flag in members:
            cells = (flag.name, flag.changes, _default(flag), flag.binds)
            table.add_row(*cells[: None if wide else 2])
    screen.print(table)
    screen.print(
        "\n`lagom flags NAME` shows choices, hazards and sources; `--recipes` what "
        "others set, `--pinned` what is set here.",
        style="dim",
    )


def _default(flag: Flag) -> str:
    shown = shown_value(flag, flag.default)
    return shown if len(shown) <= _DEFAULT else f"{shown[: _DEFAULT - 1]}…"


def _show_one(flag: Flag) -> None:
    screen = console()
    screen.print(f"\n{flag.name}", style="bold")
    screen.print(flag.binds, soft_wrap=True)
    rows = [
        ("type", flag.type + (f" of {flag.bits} bits" if flag.bits else "")),
        ("choices", ", ".join(flag.choices)),
        ("in XLA_FLAGS", ", ".join(map(flag.spelling.word, _respelt(flag)))),
        ("set by", ", ".join(flag.routes)),
        ("held by", f"the {flag.scope}"),
        ("binds", ", ".join(flag.kinds) + " (loops only)" * flag.loops_only),
        ("changed", flag.changes),
        *((f"default, {v}", shown_value(flag, d)) for v, d in flag.seen.items()),
        ("not known to", ", ".join(flag.absent)),
        ("not in XLA_FLAGS", ", ".join(flag.not_a_flag_in)),
        ("replaced by", flag.replaced_by),
    ]
    for name, words in rows:
        if words.strip():
            screen.print(f"  {name:<18}{words.strip()}", soft_wrap=True)
    for hazard in flag.hazards:
        screen.print(f"  ! {hazard}", style="yellow", soft_wrap=True)
    for source in flag.sources:
        screen.print(f"  source: {source}", style="dim", soft_wrap=True)


def _respelt(flag: Flag) -> tuple[str, ...]:
    short = any(flag.spelling.word(choice) != choice for choice in flag.choices)
    return flag.choices if short else ()


def _show_recipes(found: Iterable[Recipe]) -> None:
    screen = console()
    for recipe in found:
        screen.print(f"\n{recipe.name}: {recipe.title}", style="bold")
        screen.print(f"  for {recipe.meant_for}", soft_wrap=True)
        for name, value in recipe.settings.items():
            written = shown_value(known()[name], value)
            screen.print(f"    {name}={written}", soft_wrap=True)
        for name, written in recipe.given.items():
            screen.print(f"    {name}={written} (not in the catalogue)", soft_wrap=True)
        screen.print(f"  {recipe.note}", soft_wrap=True)
        screen.print(f"  source: {recipe.source}", style="dim", soft_wrap=True)


def _show_pins(pins: tuple[Pin, ...]) -> None:
    screen = console()
    if not pins:
        screen.print("Nothing is set: no XLA_FLAGS, no NCCL_* variables, no nccl.conf.")
        return
    for index, pin in enumerate(pins):
        written = pin.name if pin.given is None else f"{pin.name}={pin.given}"
        if pin.problem:
            remark, style = pin.problem, "red"
        elif _again(pins, index):
            remark, style = "set again later", "dim"
        elif pin.flag is None:
            remark, style = "not in the catalogue", "dim"
        else:
            remark, style = "", ""
        text = Text.assemble(f"{written}  ", (pin.where, "dim"))
        if remark:
            text.append(f"  {remark}", style)
        screen.print(text, soft_wrap=True)


def _again(pins: tuple[Pin, ...], index: int) -> bool:
    return any(p.counts and p.name == pins[index].name for p in pins[index + 1 :])


def _pin_as_dict(pins: tuple[Pin, ...], index: int) -> dict[str, Any]:
    pin = pins[index]
    return {
        "name": pin.name,
        "given": pin.given,
        "where": pin.where,
        "value": pin.value,
        "set_again": _again(pins, index),
        "problem": pin.problem,
    }


def _recipe_as_dict(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.title,
        "meant_for": recipe.meant_for,
        "settings": dict(recipe.settings),
        "not_in_the_catalogue": dict(recipe.given),
        "note": recipe.note,
        "source": recipe.source,
    }
