"""Five steps drawn by lot, on which nothing is planned while the planner is changed.

    python scripts/unseen_steps.py          # prints the draw

The lot is drawn from model, parallelism, cluster and batch, with the release as its
seed, so that it cannot be chosen: another release draws others. `bench_levers.py
--unseen` plans for them once the work is done.
"""

from __future__ import annotations

import random
from typing import Any, Final

RELEASE: Final = "0.1.0"
"""The seed of the draw: the package's version."""
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


def drawn(release: str, seen: frozenset[tuple[str, str, str]]) -> dict[str, Step]:
    """The steps of a release, by name.

    Args:
        release: The seed.
        seen: Model, cluster and parallelism of steps that were planned on before.
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
    lot = random.Random(f"unseen steps of {release}")
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
            keyed[:DRAWN], start=1
        )
    }


SEEN: Final = frozenset(
    {
        ("llama-3-8b", "h100:8x8", "fsdp"),
        ("llama-3-8b", "h100:2x8", "tp"),
        ("llama-3-8b", "h100:2x8", "tp-sliced"),
        ("deepseek-moe-16b", "h100:8x8", "ep"),
        ("olmoe-1b-7b", "h100:8x8", "ep"),
        ("llama-3-8b", "a40-nvlink:2x8", "fsdp"),
    }
)
"""Of the eight that the planner was developed beside."""
UNSEEN: Final = drawn(RELEASE, SEEN)


def main() -> None:
    for name, (model, cluster, asked) in UNSEEN.items():
        words = ", ".join(f"{key} {value}" for key, value in asked.items())
        print(f"{name}: {model} on {cluster}, {words}")


if __name__ == "__main__":
    main()
