"""Plain JSON and frozen dataclasses: from one to the other by the types of the fields.

Where a value does not fit its field, the message names the place.
"""

from __future__ import annotations

import dataclasses
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


def plain(value: Any) -> Any:
    """A value as plain JSON: dataclasses and mappings as dicts, tuples as lists.

    Example:
        >>> plain(({"a": (1, None)}, "b"))
        [{'a': [1, None]}, 'b']
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value)
        return {name: plain(part) for name, part in named.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in cast("tuple[Any, ...]", value)]
    return value


def typed(kind: type[_T], value: Any) -> _T:
    """A value of a type, from plain JSON.

    Args:
        kind: A dataclass, or another type of which its fields may be.
        value: What JSON holds.

    Raises:
        FormError: It does not fit.

    Example:
        >>> typed(tuple[tuple[str, float], ...], [["a", 1], ["b", 1, 2]])
        Traceback (most recent call last):
        ...
        lagom_jax.plan.typed.FormError: [1]: has 3 parts, not 2
    """
    return _typed(kind, value, "")


def _typed(kind: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(cast("type[Any]", kind), value, place)
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
        if not isinstance(value, dict):
            raise _at(place, f"{_short(value)} is no object")
        return _json(value, place)
    return _one_of((kind,), value, place)


def _record(kind: type[Any], value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _at(place, f"{_short(value)} is no object")
    found = cast("dict[str, Any]", value)
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in found:
        if name not in fields:
            raise _at(_inside(place, name), "no such key")
    for name in fields:
        if name not in found:
            raise _at(_inside(place, name), "missing")
    of = hints(kind)
    parts = {
        name: _typed(of[name], found[name], _inside(place, name)) for name in fields
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


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    for kind in kinds:
        if kind is bytes:
            continue  # JSON has none
        if kind not in _WORDS:
            # The only union of more than scalars is of one type and null.
            if value is not None:
                return _typed(kind, value, place)
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return _scalar(kind(value) if value is not None else None, place)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _at(place, "too large a number") from None
    wanted = " or ".join(_WORDS[kind] for kind in kinds if kind in _WORDS)
    raise _at(place, f"{_short(value)} is not {wanted}")


def _scalar(value: Any, place: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise _at(place, f"{value!r} is not finite")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise _at(place, "a text with half a character")
    return value


def _json(value: Any, place: str) -> Any:
    """Any JSON, checked for what JSON cannot say."""
    if isinstance(value, dict):
        named = cast("dict[Any, Any]", value)
        for name in named:
            if not isinstance(name, str):
                raise _at(place, f"key {name!r} is no text")
        return {
            _scalar(name, place): _json(part, _inside(place, name))
            for name, part in named.items()
        }
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_json(item, f"{place}[{n}]") for n, item in enumerate(items)]
    return _one_of(tuple(_WORDS), value, place)


def _at(place: str, words: str) -> FormError:
    return FormError(f"{place}: {words}" if place else words)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
