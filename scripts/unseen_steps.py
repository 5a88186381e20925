"""Five steps drawn by lot, on which nothing is planned while the planner is changed.

    python scripts/unseen_steps.py          # prints the draws

The lot is drawn from model, parallelism, cluster and batch, with the release and the
number of the draw as its seed, so that it cannot be chosen. Once people have looked at
what a plan makes of a draw, and changed the planner, its steps count as seen, and
another is added to `DRAWS` before anybody plans for it. `bench_levers.py --unseen`
plans for the last draw once the work is done.
"""

from __future__ import annotations

import random
from typing import Any, Final

RELEASE: Final = "0.1.0"
"""The package's version."""
DRAWS: Final = 6
"""Of this release. The planner was changed with the first five in view."""
DRAWN: Final = 5
MODELS: Final = {
    "llama-3-8b": ("fsdp", "tp", "tp-sliced"),
    "phi-2": ("fsdp", "tp", "tp-sliced"),
    "mpt-7b": ("fsdp", "tp", "tp-sliced"),
    "deepseek-moe-16b": ("fsdp", "ep"),
    "olmoe-1b-7b": ("fsdp", "ep"),
}
CLUSTERS: Final = (
    *("h100:1x8", "h100:4x8", "h200:2x8", "b200:2x8", "b200:8x8", "a100:4x8"),
    *("gb200-nvl72:16x4", "a40-nvlink:2x8", "a40-pcie:2x8", "l40s:2x8"),
)
BATCHES: Final = (1, 2, 4)
CUT_IN_TWO: Final = ("tp-sliced", "ep")
"""Parallelisms whose batch is cut in two, so that one sequence is too few."""

Step = tuple[str, str, dict[str, Any]]


Seen = frozenset[tuple[str, str, str]]
"""Model, cluster and parallelism of steps that were planned on before."""


def drawn(release: str, seen: Seen, draw: int = 1) -> dict[str, Step]:
    """The steps of a draw, by name; their numbers go on from draw to draw.

    Args:
        release: The seed.
        seen: What is not drawn.
        draw: The number of the draw, a part of the seed from the second on.
    """
    lots: list[tuple[str, str, str, int]] = [
        (model, parallelism, cluster, batch)
        for model, ways in MODELS.items()
        for parallelism in ways
        for cluster in CLUSTERS
        for batch in BATCHES
        if (model, cluster, parallelism) not in seen
    ]
    # A generator that is seeded with a text is the same everywhere.
    again = f", draw {draw}" if draw > 1 else ""
    lot = random.Random(f"unseen steps of {release}{again}")
    keyed = [
        one
        for one in sorted(lots, key=lambda one: (lot.random(), one))
        if one[3] > 1 or one[1] not in CUT_IN_TWO
    ]
    return {
        f"unseen {number}": (
            model,
            cluster,
            {"parallelism": parallelism, "batch": batch},
        )
        for number, (model, parallelism, cluster, batch) in enumerate(
            keyed[:DRAWN], start=DRAWN * (draw - 1) + 1
        )
    }


def all_drawn(release: str, draws: int) -> list[dict[str, Step]]:
    """All draws of a release; what one has drawn is seen by the next.

    Args:
        release: The seed.
        draws: How many.
    """
    seen, found = DEVELOPED_BESIDE, list[dict[str, Step]]()
    for draw in range(1, draws + 1):
        steps = drawn(release, seen, draw)
        found.append(steps)
        seen |= {(model, on, of["parallelism"]) for model, on, of in steps.values()}
    return found


DEVELOPED_BESIDE: Final[Seen] = frozenset(
    {
        ("llama-3-8b", "h100:8x8", "fsdp"),
        ("llama-3-8b", "h100:2x8", "tp"),
        ("llama-3-8b", "h100:2x8", "tp-sliced"),
        ("deepseek-moe-16b", "h100:8x8", "ep"),
        ("olmoe-1b-7b", "h100:8x8", "ep"),
        ("llama-3-8b", "a40-nvlink:2x8", "fsdp"),
    }
)
"""The eight that the planner was developed beside."""
*_BEFORE, UNSEEN = all_drawn(RELEASE, DRAWS)
SEEN_SINCE: Final = {name: step for draw in _BEFORE for name, step in draw.items()}
"""Of the draws before the last."""


def main() -> None:
    for name, (model, cluster, asked) in {**SEEN_SINCE, **UNSEEN}.items():
        words = ", ".join(f"{key} {value}" for key, value in asked.items())
        since = "" if name in UNSEEN else " (seen since)"
        print(f"{name}: {model} on {cluster}, {words}{since}")


if __name__ == "__main__":
    main()
