"""Rows of a table that say the same, as one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lagom_jax.report.alike import alike
from lagom_jax.report.figures import Beside, CollectiveReport


def grouped(rows: Sequence[CollectiveReport]) -> tuple[CollectiveReport, ...]:
    """Collectives that are alike, each kind of them once, the most exposed first.

    Their times are summed.

    Args:
        rows: The collectives.
    """
    return tuple(_sum([rows[n] for n in group.members]) for group in alike(rows))


def _sum(rows: list[CollectiveReport]) -> CollectiveReport:
    first = rows[0]
    if len(rows) == 1:
        return first
    hidden: dict[tuple[str, str], Beside] = {}
    for row in rows:
        for one in row.hidden_by:
            known = hidden.get((one.what, one.where), Beside(one.what, 0.0, one.where))
            hidden[one.what, one.where] = dataclasses.replace(
                known,
                seconds=known.seconds + one.seconds,
                slowed_seconds=known.slowed_seconds + one.slowed_seconds,
            )
    return dataclasses.replace(
        first,
        executions=sum(row.executions for row in rows),
        seconds=sum(row.seconds for row in rows),
        hidden_seconds=sum(row.hidden_seconds for row in rows),
        exposed_seconds=sum(row.exposed_seconds for row in rows),
        hidden_by=tuple(sorted(hidden.values(), key=lambda one: -one.seconds)),
        slowed_seconds=sum(row.slowed_seconds for row in rows),
        sites=len(rows),
    )
