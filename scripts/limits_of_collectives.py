"""What no smooth correction can do for the times of collectives.

    python scripts/limits_of_collectives.py

Keeps the fitted forms, draws many corrections of all degrees of smoothness, and asks
each for the rows kept out. Then it chooses among them with the answers in view, which
no fit may do, so that the best figures are a floor for corrections of this sort, not a
score. Last, what each channel moved in the permutes that channels limit.
"""

from __future__ import annotations

import fit_collectives as fitting
import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.peers import default_parts

DRAWN = 300
GPUS = ("h100-sxm", "b200")
DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
OCTAVES = (1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0)
Residuals = list[tuple[fitting.Rows, np.ndarray, fitting.Rows, np.ndarray]]


def drawn() -> list[fitting.Smoothness]:
    draw = np.random.default_rng(0).choice
    found: list[fitting.Smoothness] = []
    for _ in range(DRAWN):
        together, apart = draw(DEVIATIONS, 2)
        bytes_, ranks, slant = draw(OCTAVES), draw(OCTAVES), draw((0.0, 0.5, 1.0))
        found.append(fitting.Smoothness(together, apart, bytes_, ranks, slant, 0.0))
    return found


def residuals(kind: str, rows: fitting.Rows, cluster: Cluster, name: str) -> Residuals:
    """Per turn: the rows fitted and the rows kept out, with logs of time over form."""
    peak, facts = cluster.inside.bytes_per_s, nccl_facts(cluster)
    found: Residuals = []
    for out in fitting.folds(rows)[name]:
        form = fitting.fit_form(kind, rows[~out], peak, facts)
        logs = fitting.left(kind, form, rows[~out], peak, facts)
        placed = fitting.spans(kind, rows[out])
        times = fitting.form_times(kind, form, rows[out], peak, facts, placed)
        asked = np.log(rows[out].microseconds / times)
        found.append((rows[~out], logs, rows[out], asked))
    return found


def errors(turns: Residuals, how: fitting.Smoothness) -> np.ndarray:
    """Of the large rows kept out."""
    found: list[np.ndarray] = []
    for seen, logs, asked, truth in turns:
        correction = fitting.smooth(fitting.residuals(seen, logs), how)
        off = np.abs(np.expm1(correction(asked.nbytes, asked.ranks) - truth))
        found.append(off[asked.nbytes >= fitting.LARGE])
    return np.concatenate(found)


def limits(gpu: str, name: str, cluster: Cluster) -> None:
    table = {
        kind: [errors(turns, how) for how in drawn()]
        for kind, rows in fitting.read(gpu, cluster).items()
        for turns in [residuals(kind, rows, cluster, name)]
    }
    pooled = [np.concatenate(each) for each in zip(*table.values(), strict=True)]
    medians = np.array([np.median(part) for part in pooled])
    tenths = np.array([np.quantile(part, 0.9) for part in pooled])
    met = int(((medians <= 0.05) & (tenths <= 0.2)).sum())
    print(
        f"{gpu} {name}: one of {DRAWN} for all kinds: least median {medians.min():.1%},"
        f" least p90 {tenths.min():.1%}; {met} have 5 % and 20 %"
    )
    for kind, found in table.items():
        best = min(found, key=lambda part: float(part.mean()))
        print(
            f"  {kind:19} the least mean error: median {np.median(best):6.1%}"
            f"  p90 {np.quantile(best, 0.9):6.1%}"
        )


def channels(gpu: str, cluster: Cluster) -> None:
    peak, facts = cluster.inside.bytes_per_s, nccl_facts(cluster)
    kind = "collective-permute"
    rows = fitting.read(gpu, cluster)[kind]
    form = fitting.fit_form(kind, rows, peak, facts)
    print(f"{gpu} permutes, GB/s of each channel (link at most {form.link_share:.0%})")
    for i in np.lexsort((rows.nbytes, rows.ranks)):
        parts = default_parts(kind, float(rows.nbytes[i]), int(rows.job[i]), facts)
        if parts.protocol == "simple" and parts.channels < 32:
            alone = rows.microseconds[i] - form.latency(int(rows.job[i]), "simple")
            rate = parts.part_bytes / alone / 1e3
            print(
                f"  {int(rows.ranks[i])} pairs {rows.nbytes[i] / 2**20:6.0f} MiB"
                f" on {parts.channels:2} channels: {rate:5.1f}"
            )


def main() -> None:
    for gpu in GPUS:
        cluster = Cluster.parse(fitting.MEASURED[gpu][1])
        for name in ("rows", "sizes"):
            limits(gpu, name, cluster)
        channels(gpu, cluster)


if __name__ == "__main__":
    main()
