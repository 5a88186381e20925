"""Rows of a table that say the same, as one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lagom_jax.report.alike import alike, short_name
from lagom_jax.report.figures import Beside, CollectiveReport
from lagom_jax.units import in_percent

# Of the time of a collective: by so much more of it others of a group are hidden.
_OTHERWISE = 0.05


def grouped(rows: Sequence[CollectiveReport]) -> tuple[CollectiveReport, ...]:
    """Collectives that are alike, each kind of them once, the most exposed first.

    Their times are summed.

    Args:
        rows: The collectives.
    """
    return tuple(summed([rows[n] for n in group.members]) for group in alike(rows))


def summed(rows: Sequence[CollectiveReport]) -> CollectiveReport:
    """Collectives that are alike as one: their times together, and a verdict on all.

    Args:
        rows: The collectives, the most exposed first.
    """
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
    verdict, why = words_on(rows)
    return dataclasses.replace(
        first,
        verdict=verdict,
        why=why,
        executions=sum(row.executions for row in rows),
        seconds=sum(row.seconds for row in rows),
        hidden_seconds=sum(row.hidden_seconds for row in rows),
        exposed_seconds=sum(row.exposed_seconds for row in rows),
        hidden_by=tuple(sorted(hidden.values(), key=lambda one: -one.seconds)),
        slowed_seconds=sum(row.slowed_seconds for row in rows),
        sites=len(rows),
    )


def words_on(rows: Sequence[CollectiveReport]) -> tuple[str, str]:
    """The verdict and the reason for collectives that are alike.

    They are those of the most exposed; where the others fare otherwise, it is named.

    Args:
        rows: The collectives, the most exposed first.
    """
    first = rows[0]
    shares = [
        1.0 - one.exposed_seconds / one.seconds if one.seconds else 1.0 for one in rows
    ]
    seconds = sum(one.seconds for one in rows)
    exposed = sum(one.exposed_seconds for one in rows)
    if max(shares) - shares[0] < _OTHERWISE:
        return first.verdict, first.why
    name = short_name(first)
    whole = f"{in_percent(seconds - exposed, seconds)} hidden in all; "
    why = f"{name}: {first.why}" if first.why else ""
    return f"{whole}{name} is the most exposed: {first.verdict}", why
