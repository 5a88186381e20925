"""Two plans side by side, for people: what one says otherwise than the other."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, cast

from lagom_jax.plan.plan import Plan
from lagom_jax.typed_json import plain, typed

CLOCKS: Final = ("compile_seconds", "seconds")
"""How long this and that took: no two plans agree, and nothing was decided by it."""
_NAMED: Final = ("name", "sites")
"""By what parts of a list are told apart."""
_SAYS: Final = ("setting", "status", "value")
"""What stands for a part that only one plan has."""
_DIGEST: Final = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One place where two plans differ."""

    place: str
    """Such as `levers.order.changed` or `evidence.tuned.step_seconds`."""
    before: str | None
    """What stands there; None where there is no such place."""
    after: str | None

    def __str__(self) -> str:
        """In a line."""
        before, after = (
            "nothing" if text is None else text for text in (self.before, self.after)
        )
        return f"{self.place}: {before} → {after}"


def differences(one: Plan, other: Plan) -> tuple[Difference, ...]:
    """Where two plans differ.

    Levers and candidates are compared by name, settings by what they bind, costs and
    orders as a whole. How long the work took does not count.

    Args:
        one: The plan before.
        other: The plan after.

    Returns:
        Differences, in the order of a plan's parts; empty if the plans say the same.

    Example:
        >>> from lagom_jax.plan import HoldsFor
        >>> one = HoldsFor("step", "", "", "h100:1x8", 8, (), ())
        >>> other = dataclasses.replace(one, cluster="h200:1x8")
        >>> print(*_differences("holds_for", plain(one), plain(other)))
        holds_for.cluster: h100:1x8 → h200:1x8
    """
    return tuple(_differences("", _summary(one), _summary(other)))


def _summary(plan: Plan) -> dict[str, Any]:
    document = cast("dict[str, Any]", plain(typed(Plan, plain(plan))))
    # In a line each, as people write them.
    document["controls"] = str(plan.controls)
    document["holds_for"]["pinned"] = [
        [one.name, f"{one.value} [{one.place}]"] for one in plan.holds_for.pinned
    ]
    for one, named in zip(plan.settings, document["settings"], strict=True):
        named["usual"], named["setting"] = str(one.usual), str(one.setting)
        named["calls"] = [str(call) for call in one.calls]
    if plan.costs is not None:
        lines = plan.costs.count("\n")
        document["costs"] = f"{lines} lines, {_digest(plan.costs)}"
    if plan.order is not None:
        document["order"] = _digest(json.dumps(document["order"], sort_keys=True))
    return document


def _digest(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"


def _differences(place: str, one: Any, other: Any) -> Iterator[Difference]:
    before, after = _by_name(one), _by_name(other)
    if before is None and after is None:
        if one != other or isinstance(one, bool) != isinstance(other, bool):
            yield Difference(place, _text(one), _text(other))
    # An empty list has no names to be recognised by.
    elif (before is None and one != []) or (after is None and other != []):
        yield Difference(place, _text(one), _text(other))
    else:
        before, after = before or {}, after or {}
        for name in {**before, **after}:
            if name not in CLOCKS:
                yield from _differences(
                    f"{place}.{name}" if place else name,
                    before.get(name, _Nothing),
                    after.get(name, _Nothing),
                )


class _Nothing:
    """Stands where there is nothing, which is not null."""


def _by_name(value: Any) -> dict[str, Any] | None:
    """The named parts of an object or a list, those of one name counted; or None."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if not isinstance(value, list) or not value:
        return None
    named: dict[str, Any] = {}
    times = collections.Counter[str]()
    for item in cast("list[Any]", value):
        name = _name(item)
        if name is None:
            return None
        times[name] += 1
        named[name if times[name] == 1 else f"{name}#{times[name]}"] = _value(item)
    return named


def _name(item: Any) -> str | None:
    if isinstance(item, dict):
        record = cast("dict[str, Any]", item)
        for key in _NAMED:
            if key in record:
                value = record[key]
                return value if isinstance(value, str) else "+".join(value)
        return None
    match item:
        case [str() as name, _]:
            return name
        case _:
            return None


def _value(item: Any) -> Any:
    """What a named part says: of a pair the second."""
    return cast("list[Any]", item)[1] if isinstance(item, list) else item


def _text(value: Any) -> str | None:
    if value is _Nothing:
        return None
    said: Any = value
    if isinstance(value, dict):
        record = cast("dict[str, Any]", value)
        said = next((record[key] for key in _SAYS if key in record), record)
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
