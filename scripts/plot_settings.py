"""Draws times against channels and chunk, as docs/explanation/settings.svg.

    python scripts/plot_settings.py

One layer's all-gather beside the feed-forward of the layer before it: the pattern that
the Lagom paper opens with, on its cluster and on H100. All times are predicted; the
band around each is where 18 of 20 models put it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from bench_search import collective, matmul
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Totals
from lagom_jax.plan.setting import Setting
from lagom_jax.program.program import Launch, Loop, Program, Stream, Wait

TO = Path(__file__).parent.parent / "docs" / "explanation" / "settings.svg"
CLUSTERS = ("a40-nvlink:2x8", "h100:2x8")
TOKENS, WIDTH, HIDDEN = 2 * 2048, 2560, 10240
LAYERS = 32
# A phi-2 layer's weights in bf16.
GATHER = collective(0, "all-gather", 157_000_000)
CHANNELS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
CHUNKS = tuple(1 << bits for bits in range(16, 22))
# Each axis is drawn with the other one at this.
USUAL = Setting("ring", "simple", 8, 544, 1 << 19)
SHOWN: dict[str, Callable[[Totals], float]] = {
    "communication": lambda totals: totals.communication_seconds,
    "computation": lambda totals: totals.compute_seconds,
    "step": lambda totals: totals.step_seconds,
}
LINES = (("C1", "o-"), ("C2", "o-"), ("black", "--"))


def step() -> Program:
    """The forward pass, a layer at a time."""
    body = (
        Launch(GATHER, Stream.COLLECTIVE, 1),
        matmul("up", TOKENS, HIDDEN, WIDTH),
        matmul("down", TOKENS, WIDTH, HIDDEN),
        Wait((1,)),
    )
    return Program("layers", (Loop("layers", body, LAYERS, True),), devices=16)


def draw(
    axis: Axes, ensemble: Ensemble, xs: Sequence[int], settings: Sequence[Setting]
) -> None:
    """One panel."""
    program = step()

    def totals(model: CostModel) -> Totals:
        return replay(program, model, model.contention()).totals

    found = [ensemble.under({GATHER: setting}) for setting in settings]
    replayed = [
        (totals(one.likeliest), [totals(member) for member in one.members])
        for one in found
    ]
    for (name, figure), (color, line) in zip(SHOWN.items(), LINES, strict=True):
        middle = [1e3 * figure(likeliest) for likeliest, _ in replayed]
        ranges = [sorted(1e3 * figure(t) for t in members) for _, members in replayed]
        axis.plot(xs, middle, line, color=color, markersize=3, label=name)
        axis.fill_between(
            xs,
            [one[1] for one in ranges],
            [one[-2] for one in ranges],
            color=color,
            alpha=0.15,
            linewidth=0,
        )


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    figure, axes = plt.subplots(
        len(CLUSTERS), 2, figsize=(8, 3 * len(CLUSTERS)), layout="constrained"
    )
    for row, name in zip(axes, CLUSTERS, strict=True):
        ensemble = Ensemble.of(Cluster.parse(name))
        ways = [
            Setting("ring", "simple", channels, 544, USUAL.chunk_bytes)
            for channels in CHANNELS
        ]
        draw(row[0], ensemble, CHANNELS, ways)
        chunks = [
            Setting("ring", "simple", USUAL.channels, 544, chunk) for chunk in CHUNKS
        ]
        draw(row[1], ensemble, [chunk >> 10 for chunk in CHUNKS], chunks)
        row[0].set(
            xscale="log", title=f"{name}, chunks of 512 KiB", ylabel="milliseconds"
        )
        row[0].set_xticks(CHANNELS, [str(count) for count in CHANNELS])
        row[1].set(xscale="log", title=f"{name}, {USUAL.channels} channels")
        row[1].set_xticks([c >> 10 for c in CHUNKS], [str(c >> 10) for c in CHUNKS])
        for axis in row:
            axis.set_ylim(bottom=0)
            axis.minorticks_off()
    axes[-1][0].set_xlabel("channels")
    axes[-1][1].set_xlabel("chunk, KiB")
    axes[0][0].legend(frameon=False)
    figure.savefig(TO, metadata={"Date": None})
    print(f"wrote {TO}")


if __name__ == "__main__":
    main()
