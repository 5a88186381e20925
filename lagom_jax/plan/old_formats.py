"""Plans of older formats, made into those of the next, as JSON.

Up to format 3 settings, caps, calls and pins were texts. Nothing but this module reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from lagom_jax.plan.form import KINDS, Form
from lagom_jax.plan.setting import Setting, SettingError
from lagom_jax.typed_json import FormError, plain

Document = dict[str, Any]

_CAP: Final = re.compile(r"at most ([1-9][0-9]{0,3}) channels?")
_CALL: Final = re.compile(
    r"([\w-]+) of ([0-9]+) bytes over ([0-9]+) ranks in ([0-9]+) domains?"
)
_SLICES: Final = re.compile(r"([1-9][0-9]{0,3}) slices")
_PINNED: Final = re.compile(r"(.*) \[([^\[\]]*)\]", re.DOTALL)
_TELLS_APART: Final = {"caps": "nothing", "tuner": "sizes", "fork": "sizes"}


def _from_1(document: Document) -> Document:
    """Nobody had measured then."""
    evidence = document.get("evidence")
    if not isinstance(evidence, dict):
        return document
    return {**document, "evidence": {**cast("Document", evidence), "measured": None}}


def _from_2(document: Document) -> Document:
    """All collectives had one stream then."""
    order = document.get("order")
    if not isinstance(order, dict):
        return document
    return {**document, "order": {**cast("Document", order), "aside": {}}}


def _from_3(document: Document) -> Document:
    """Values stood in texts then; what has another form is left for the reader."""
    changed = dict(document)
    order, held = document.get("order"), document.get("holds_for")
    if isinstance(order, dict):
        named = cast("Document", order)
        changed["order"] = {
            "second_stream" if name == "aside" else name: part
            for name, part in named.items()
        }
    if isinstance(held, dict):
        named = cast("Document", held)
        pinned = named.get("pinned")
        changed["holds_for"] = {**named, "pinned": _each(pinned, _pinned)}
    changed["settings"] = _each(document.get("settings"), _setting)
    controls = document.get("controls")
    if isinstance(controls, str):
        name, _, meaning = controls.partition(": ")
        apart = _TELLS_APART.get(name, "places")
        changed["controls"] = {"name": name, "tells_apart": apart, "meaning": meaning}
    return {name: part for name, part in changed.items() if name in document}


def _from_4(document: Document) -> Document:
    """One model was asked for the program as it is, with all collectives on rings."""
    changed: dict[str, Any] = {
        "variables": [],
        "needs": {"nccl": "", "cuda_driver": "", "bytes_outside_pool": 0},
        "refusals": [],
        "rewrite": None,
        "cuts": [],
        **document,
    }
    if isinstance(evidence := document.get("evidence"), dict):
        named = cast("Document", evidence)
        changed["evidence"] = {"uncertainty": None, **named}
    return changed


def _from_5(document: Document) -> Document:
    """A rewritten step had one form at all places then."""
    rewrite = document.get("rewrite")
    if not isinstance(rewrite, dict):
        return document
    named = cast("Document", rewrite)
    return {**document, "rewrite": {"forms": [], **named}}


def _from_6(document: Document) -> Document:
    """Cuts named their form in words then, and each collective stood alone."""
    changed = {**document, "cuts": _each(document.get("cuts"), _cut)}
    evidence = document.get("evidence")
    if isinstance(evidence, dict):
        named = cast("Document", evidence)
        changed["evidence"] = {
            **named,
            "candidates": _each(named.get("candidates"), _tried),
        }
    return {name: part for name, part in changed.items() if name in document}


def _from_7(document: Document) -> Document:
    """A form held for both passes then, and `sliced` cut all places."""
    changed = {**document, "cuts": _each(document.get("cuts"), _in_both)}
    if isinstance(rewrite := document.get("rewrite"), dict):
        named = cast("Document", rewrite)
        forms = _each(named.get("forms"), _in_both)
        changed["rewrite"] = {"only": [], **named, "forms": forms}
    if isinstance(evidence := document.get("evidence"), dict):
        named = cast("Document", evidence)
        tried = _each(named.get("candidates"), _left_in_both)
        changed["evidence"] = {**named, "candidates": tried}
    return {name: part for name, part in changed.items() if name in document}


def _from_8(document: Document) -> Document:
    """No collective was whole then, in the order of ranks."""
    return document


def _left_in_both(item: Any, _: str) -> Any:
    if not isinstance(item, dict):
        return item
    named = cast("Document", item)
    return {**named, "left": _each(named.get("left"), _in_both)}


def _in_both(item: Any, _: str) -> Any:
    return {"when": "", **cast("Document", item)} if isinstance(item, dict) else item


def _tried(item: Any, _: str) -> Any:
    return {"left": [], **cast("Document", item)} if isinstance(item, dict) else item


def _cut(item: Any, _: str) -> Any:
    if not isinstance(item, dict):
        return item
    named = {"collectives": 1, "line": "", **cast("Document", item)}
    named.pop("ring_seconds", None)
    if isinstance(text := named.get("form"), str):
        kind, _, rest = text.partition(", ")
        count = _SLICES.match(rest)
        form = Form(kind, int(count[1]) if count else 1) if kind in KINDS else text
        named["form"] = plain(form)
    return named


def _each(items: Any, change: Callable[[Any, str], Any]) -> Any:
    if not isinstance(items, list):
        return items
    found = cast("list[Any]", items)
    return [change(item, f"[{number}]") for number, item in enumerate(found)]


def _pinned(pair: Any, _: str) -> Any:
    match pair:
        case [str() as name, str() as text]:
            found = _PINNED.fullmatch(text)
            value, place = (found[1], found[2]) if found else (text, "")
            return {"name": name, "value": value, "place": place}
        case _:
            return pair


def _setting(item: Any, number: str) -> Any:
    if not isinstance(item, dict):
        return item
    changed = dict(cast("Document", item))
    for key, read in (("setting", _setting_or_cap), ("usual", _usual)):
        if isinstance(text := changed.get(key), str):
            try:
                changed[key] = read(text)
            except SettingError as error:
                raise FormError(f"settings{number}.{key}: {error}") from None
    changed["calls"] = _each(changed.get("calls"), _call)
    return {name: part for name, part in changed.items() if name in item}


def _usual(text: str) -> Any:
    return plain(Setting.parse(text))


def _setting_or_cap(text: str) -> Any:
    if found := _CAP.fullmatch(text):
        return {"channels": int(found[1])}
    return _usual(text)


def _call(text: Any, _: str) -> Any:
    """A call, of how many operands nobody had written down."""
    if not isinstance(text, str) or (found := _CALL.fullmatch(text)) is None:
        return text
    function, nbytes, ranks, domains = found.groups()
    return {
        "function": function,
        "ranks": int(ranks),
        "domains": int(domains),
        "bytes": int(nbytes),
        "operands": None,
    }


MIGRATIONS: Final[Mapping[int, Callable[[Document], Document]]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
    7: _from_7,
    8: _from_8,
}
"""By format: what makes a document of that format one of the next."""
