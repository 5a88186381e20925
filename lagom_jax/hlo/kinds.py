"""The kinds of collective."""

from __future__ import annotations

from typing import Final

KINDS: Final = frozenset(
    {
        "all-gather",
        "all-reduce",
        "reduce-scatter",
        "all-to-all",
        "ragged-all-to-all",
        "collective-permute",
        "collective-broadcast",
        "send",
        "recv",
    }
)
"""The kinds of collective, as HLO spells them without `-start`."""
POINT_TO_POINT: Final = frozenset({"collective-permute", "send", "recv"})
"""Kinds that move data from sources to targets instead of within groups."""
