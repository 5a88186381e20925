"""The catalogue: every record, by name."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from xla_flags.flag import Flag, FlagError, Spelling, Value

_HERE = Path(__file__).parent
_TUPLES = ("absent", "not_a_flag_in", "choices", "kinds", "routes", "hazards")
# Nearer than this two names share more than what all of them begin with.
_ALIKE = 0.75


@functools.cache
def known() -> Mapping[str, Flag]:
    """Every knob of the catalogue, by name.

    Returns:
        Flags by name, in the order of their files.

    Example:
        >>> known()["NCCL_MAX_NCHANNELS"].holder
        'nccl'
    """
    sources = _read(_HERE / "sources.json")
    found = [
        _flag(record, path.stem, sources)
        for path in sorted((_HERE / "records").glob("*.json"))
        for record in _read(path)
    ]
    by_name = {flag.name: flag for flag in found}
    if len(by_name) != len(found):
        raise FlagError("the catalogue has two records of one name")
    return MappingProxyType(by_name)


def flags(*, holder: str | None = None) -> tuple[Flag, ...]:
    """The knobs of the catalogue.

    Args:
        holder: `xla` or `nccl`; both by default.

    Returns:
        Flags, in the order of their files.

    Example:
        >>> {flag.holder for flag in flags(holder="nccl")}
        {'nccl'}
    """
    return tuple(f for f in known().values() if holder in (None, f.holder))


@functools.cache
def removed() -> Mapping[str, str]:
    """Names of older guides that no version seen knows, and what to know of each.

    Returns:
        What to know, by name.

    Example:
        >>> removed()["xla_gpu_enable_async_all_gather"]
        'all-gathers are asynchronous by default'
    """
    return MappingProxyType(_read(_HERE / "removed.json"))


def find(name: str) -> Flag:
    """The record of a knob.

    Args:
        name: Its name, with or without the two dashes of `XLA_FLAGS`.

    Returns:
        What is known of it.

    Raises:
        FlagError: The catalogue does not have it; the message names the nearest.

    Example:
        >>> find("NCCL_ALGOS")
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: NCCL_ALGOS is not in the catalogue; did you mean...
    """
    name = name.removeprefix("--")
    try:
        return known()[name]
    except KeyError:
        raise FlagError(f"{name} is not in the catalogue{hint(name)}") from None


def hint(name: str) -> str:
    """Advice on an unknown name: the end of a sentence, or nothing.

    Args:
        name: The name that XLA or the catalogue does not know.

    Returns:
        What took its place, what became of it, or which name is near it.

    Example:
        >>> hint("xla_gpu_enable_pipelined_all_gather")
        '; newer versions call it xla_gpu_pipeline_all_gather'
        >>> hint("xla_gpu_enable_async_all_gather")
        '; it was removed: all-gathers are asynchronous by default'
        >>> hint("nothing_like_it")
        ''
    """
    name = name.removeprefix("--")
    if (flag := known().get(name)) is not None:
        return f"; newer versions call it {flag.replaced_by}" * bool(flag.replaced_by)
    if name in removed():
        return f"; it was removed: {removed()[name]}"
    meant = nearest(name)
    return f"; did you mean {meant}?" if meant else ""


def nearest(name: str) -> str | None:
    """The name in the catalogue that is most like another; None if none is.

    Args:
        name: Any word.

    Returns:
        A name that `find` knows.

    Example:
        >>> nearest("nccl_max_nchanels")
        'NCCL_MAX_NCHANNELS'
        >>> nearest("autotune") is None
        True
    """
    by_case = {known_name.lower(): known_name for known_name in known()}
    alike = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=_ALIKE)
    return by_case[alike[0]] if alike else None


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _flag(record: dict[str, Any], group: str, sources: Mapping[str, str]) -> Flag:
    fields: dict[str, Any] = record | {
        key: tuple(record[key]) for key in _TUPLES if key in record
    }
    fields["group"] = group
    fields["sources"] = tuple(sources[key] for key in record["sources"])
    fields["spelling"] = Spelling(**record.get("spelling", {}))
    fields["seen"] = MappingProxyType(
        {
            version: _default(record["type"], value)
            for version, value in record["seen"].items()
        }
    )
    return Flag(**fields)


def _default(kind: str, value: Any) -> Value | None:
    match kind, value:
        case "list", list():
            return tuple(cast("list[str]", value))
        case "bytes", str():
            return value.encode()
        case _:
            return value
