"""JSON and frozen dataclasses: from one to the other by the types of the fields.

Nothing that is read is believed: where a value does not fit its field, the message
names the place, as in `levers[2].value`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as hints

from lagom_jax.errors import LagomError

_T = TypeVar("_T")
_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "null",
}
_LONGEST = 60


class FormError(Exception):
    """A value that does not fit its place; the message begins with the place."""


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for other JSON.

    Raises:
        FormError: It is no whole JSON text, or one that has two meanings.

    Example:
        >>> parse_object('{"a": 1}'), parse_object("[]")
        ({'a': 1}, None)
        >>> parse_object('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ...
        lagom_jax.typed_json.FormError: a: given twice
    """
    try:
        read: Any = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise FormError(f"no whole JSON text ({error}); was it cut short?") from None
    except ValueError as error:  # a number with more digits than Python reads
        raise FormError(str(error)) from None
    except RecursionError:
        raise FormError("nested too deep to be one") from None
    return cast("dict[str, Any]", read) if isinstance(read, dict) else None


def plain(value: Any) -> Any:
    """A value as JSON has it: records and mappings as dicts, tuples as lists.

    Example:
        >>> plain(({"a": (1, None)}, {2: "b"}))
        [{'a': [1, None]}, {'2': 'b'}]
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value)
        return {str(name): plain(named[name]) for name in sorted(named)}
    if isinstance(value, tuple | list):
        return [plain(part) for part in cast("tuple[Any, ...]", value)]
    return value


def typed(kind: type[_T], value: Any) -> _T:
    """A value of a type, from JSON.

    Args:
        kind: A dataclass, or another type of which its fields may be.
        value: What a JSON parser returned.

    Raises:
        FormError: It does not fit.

    Example:
        >>> typed(tuple[tuple[str, float], ...], [["a", 1], ["b", 1, 2]])
        Traceback (most recent call last):
        ...
        lagom_jax.typed_json.FormError: [1]: has 3 parts, not 2
    """
    return _typed(kind, value, "")


def _typed(kind: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record((cast("type[Any]", kind),), value, place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _row(inner, value, place)
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            allowed = ", ".join(map(repr, inner))
            raise _at(place, f"{_short(value)} is none of {allowed}")
        return value
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, place)
    if origin is not None and issubclass(origin, Mapping):
        if inner[0] is str:
            return _named(inner[1], value, place)
        return _numbered(inner[1], value, place)
    return _one_of((kind,), value, place)


@functools.cache
def _fields(kind: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    of = hints(kind)
    return {field.name: of[field.name] for field in dataclasses.fields(kind)}


def _record(kinds: tuple[type[Any], ...], value: Any, place: str) -> Any:
    """A record of the kind whose fields are most like the keys."""
    if not isinstance(value, dict):
        raise _at(place, f"{_short(value)} is no object")
    found = cast("dict[str, Any]", value)
    kind = min(kinds, key=lambda kind: len(_fields(kind).keys() ^ found.keys()))
    fields = _fields(kind)
    for name in found:
        if name not in fields:
            raise _at(_inside(place, name), "no such key")
    for name in fields:
        if name not in found:
            raise _at(_inside(place, name), "missing")
    parts = {
        name: _typed(of, found[name], _inside(place, name))
        for name, of in fields.items()
    }
    try:
        return kind(**parts)
    except LagomError as error:
        raise _at(place, str(error)) from None


def _row(kinds: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _at(place, f"{_short(value)} is no list")
    items = cast("list[Any]", value)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(items)
    if len(items) != len(kinds):
        raise _at(place, f"has {len(items)} parts, not {len(kinds)}")
    return tuple(
        _typed(kind, item, f"{place}[{number}]")
        for number, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _named(kind: Any, value: Any, place: str) -> dict[str, Any]:
    """Parts by name."""
    if not isinstance(value, dict):
        raise _at(place, f"{_short(value)} is no object")
    parts = cast("dict[str, Any]", value).items()
    return {name: _typed(kind, part, _inside(place, name)) for name, part in parts}


def _numbered(kind: Any, value: Any, place: str) -> dict[int, Any]:
    """Parts by whole numbers, which JSON writes as texts."""
    if not isinstance(value, dict):
        raise _at(place, f"{_short(value)} is no object")
    found: dict[int, Any] = {}
    for name, part in cast("dict[str, Any]", value).items():
        if not (name.isascii() and name.isdigit()) or str(int(name)) != name:
            raise _at(_inside(place, name), "the key is no whole number")
        found[int(name)] = _typed(kind, part, _inside(place, name))
    return found


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    scalars = tuple(kind for kind in kinds if kind in _WORDS)
    for kind in scalars:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return _scalar(value, place)
    if float in scalars and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _at(place, "too large a number") from None
    records = tuple(kind for kind in kinds if dataclasses.is_dataclass(kind))
    if records:
        return _record(cast("tuple[type[Any], ...]", records), value, place)
    wanted = " or ".join(_WORDS[kind] for kind in scalars)
    raise _at(place, f"{_short(value)} is not {wanted}")


def _scalar(value: Any, place: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise _at(place, f"{value!r} is not finite")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise _at(place, "a text with half a character")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        raise FormError(f"{min(n for n in names if names.count(n) > 1)}: given twice")
    return document


def _no_constant(name: str) -> Any:
    raise FormError(f"{name} is not finite")


def _at(place: str, words: str) -> FormError:
    return FormError(f"{place}: {words}" if place else words)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
