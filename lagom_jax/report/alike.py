"""Collectives that are alike, taken together: those of layers that were written out."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Sequence

from lagom_jax.hlo.collective import plain_name
from lagom_jax.report.figures import CollectiveReport
from lagom_jax.report.origin import file_and_line, short_origin

_DIGITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class AlikeCollectives:
    """Collectives of one kind and size, over groups of one form, from one place."""

    place: str
    """Scope and line, with `#` for numbers in which they differ."""
    scope: str
    """The scope alone, which stays where lines move; without one, the file."""
    members: tuple[int, ...]
    """Their numbers in the report, the most exposed first."""
    executions: float
    seconds: float
    exposed_seconds: float
    slowed_seconds: float


def alike(collectives: Sequence[CollectiveReport]) -> tuple[AlikeCollectives, ...]:
    """Groups of collectives that are alike, the most exposed first.

    Args:
        collectives: Those of a report.
    """
    groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, one in enumerate(collectives):
        groups[_key(one)].append(number)
    found = [_group(collectives, tuple(members)) for members in groups.values()]
    return tuple(sorted(found, key=lambda one: (-one.exposed_seconds, -one.seconds)))


def short_name(one: CollectiveReport) -> str:
    """A collective's name without what the schedule adds to it."""
    # Some do not tell the kind.
    name = plain_name(one.name)
    return name if name.startswith(one.kind) else f"{one.kind} {name}"


def place(one: CollectiveReport) -> str:
    """Scope and line of a collective."""
    return "  ".join(
        filter(None, (short_origin(one.op_name), file_and_line(one.source)))
    )


def _key(one: CollectiveReport) -> tuple[object, ...]:
    return (
        *(one.kind, one.bytes, one.element_type, one.operands),
        *(one.group_size, one.groups, one.domains, one.sync, one.pipelined, one.bound),
        _DIGITS.sub("#", short_origin(one.op_name)),
        # Where nothing is known of a place, nothing says that two have the same.
        one.source or one.op_name or one.name,
    )


def _group(
    collectives: Sequence[CollectiveReport], members: tuple[int, ...]
) -> AlikeCollectives:
    ranked = sorted(members, key=lambda number: -collectives[number].exposed_seconds)
    first = collectives[ranked[0]]
    places = {place(collectives[number]) for number in members}
    return AlikeCollectives(
        place(first) if len(places) == 1 else _DIGITS.sub("#", place(first)),
        _DIGITS.sub("#", short_origin(first.op_name))
        or file_and_line(first.source).rpartition(":")[0],
        tuple(ranked),
        executions=sum(collectives[n].executions for n in members),
        seconds=sum(collectives[n].seconds for n in members),
        exposed_seconds=sum(collectives[n].exposed_seconds for n in members),
        slowed_seconds=sum(collectives[n].slowed_seconds for n in members),
    )
