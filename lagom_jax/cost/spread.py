"""The uncertainty of constants: what fits left over, and ranges of estimates.

A record of a fit has its errors on rows that were kept out of it; an estimate has the
range that it may lie in. Constants that stand in for others have what those that were
measured would miss if they stood in for each other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final, NamedTuple

TENTH_BEYOND: Final = 1.645
"""Of normal errors, a tenth is beyond so many standard deviations."""
# In this order: rows or shapes kept out are what a prediction between them misses.
_JUDGED: Final = ("kept out: shapes", "kept out: rows", "fitted")


class Spread(NamedTuple):
    """Standard deviations of the log of what constants miss."""

    large: float
    """Of collectives of 1 MiB and more, and of kernels of 20 us and more."""
    small: float


NOTHING_MISSED: Final = Spread(0.0, 0.0)


def spread_of(
    errors: Mapping[str, Any], large: str, small: str, otherwise: Spread
) -> Spread:
    """The spread that the errors of a fit's record show.

    Args:
        errors: By what was judged and by size: the share of errors that nine in ten
            rows stay below, as `p90`.
        large: The name of the large sizes.
        small: That of the others.
        otherwise: Where nothing was judged.

    Example:
        >>> errors = {"kept out: rows": {"large": {"p90": 0.1645}}}
        >>> spread_of(errors, "large", "small", Spread(1.0, 1.0))
        Spread(large=0.1, small=0.1)
    """
    for kind in _JUDGED:
        for what in (kind, f"{kind}, with the launch"):
            judged: Mapping[str, Any] = errors.get(what, {})
            known = [judged[name]["p90"] for name in (large, small) if name in judged]
            if known:
                # Sizes that nobody judged are no surer than those next to them.
                by_name = {name: judged[name]["p90"] for name in judged}
                return Spread(
                    round(by_name.get(large, known[0]) / TENTH_BEYOND, 4),
                    round(by_name.get(small, known[-1]) / TENTH_BEYOND, 4),
                )
    return otherwise


@functools.cache
def assumed(name: str) -> float:
    """A standard deviation from the record `spread.json`.

    Example:
        >>> assumed("protocol")
        0.05
    """
    return float(estimates("spread.json")[name]["value"])


def borrowed(kind: str) -> Spread:
    """The spread of constants that stand in for a GPU's own.

    Args:
        kind: `matmuls` or `collectives`.

    Example:
        >>> borrowed("collectives").large < borrowed("collectives").small
        True
    """
    small = "short" if kind == "matmuls" else "small"
    return Spread(assumed(f"{kind}_borrowed"), assumed(f"{small}_{kind}_borrowed"))


@functools.cache
def estimates(name: str) -> Mapping[str, Any]:
    """A record of estimates: values with their sources, and ranges.

    Example:
        >>> estimates("sharing.json")["eviction"]["range"]
        [0.0, 1.0]
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    return json.loads((folder / name).read_text())
