"""What no smooth correction can do for the times of collectives.

    python scripts/limits_of_collectives.py

Keeps the fitted forms, draws many corrections of all degrees of smoothness, and asks
each for the rows kept out. Then it chooses among them with the answers in view, which
no fit may do, so that the best figures are a floor for corrections of this sort, not a
score. Last, what each channel moved in the permutes that channels limit.
"""

from __future__ import annotations

import collective_surfaces as fitting
import fit_collectives
import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.peers import default_parts

DRAWN = 300
GPUS = ("h100-sxm", "b200")
DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
OCTAVES = (1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0)
Turns = list[tuple[fitting.Residuals, fitting.Rows, np.ndarray, np.ndarray]]


def drawn() -> list[fitting.Smoothness]:
    draw = np.random.default_rng(0).choice
    found: list[fitting.Smoothness] = []
    for _ in range(DRAWN):
        together, apart = draw(DEVIATIONS, 2)
        bytes_, ranks, slant = draw(OCTAVES), draw(OCTAVES), draw((0.0, 0.5, 1.0))
        found.append(fitting.Smoothness(together, apart, bytes_, ranks, slant))
    return found


def alone(gpu: str, cluster: Cluster) -> dict[str, fitting.Rows]:
    """The rows of each kind as of NCCL alone."""
    return {
        kind: fitting.without_launch(rows, fitted_launch(kind, rows, cluster))
        for kind, every in fitting.read(gpu, cluster).items()
        for rows in [every[every.own > 0]]
    }


def fitted_launch(kind: str, rows: fitting.Rows, cluster: Cluster) -> fitting.Launch:
    return fitting.fit(kind, rows, cluster, fitting.smoothness(kind, cluster))[1]


def residuals(kind: str, rows: fitting.Rows, cluster: Cluster, name: str) -> Turns:
    """Per turn: what the form leaves of the rows fitted, and of the rows kept out.

    Of the latter their protocols and the logs of time over form.
    """
    found: Turns = []
    for out in fit_collectives.folds(rows)[name]:
        form = fitting.fit_form(kind, rows[~out], cluster)
        seen = fitting.left(kind, form, rows[~out], cluster)
        where = fitting.placed(kind, rows[out], cluster)
        times = fitting.form_times(kind, form, rows[out], cluster, where)
        asked = np.log(rows[out].microseconds / times)
        found.append((seen, rows[out], fitting.protocols(where), asked))
    return found


def errors(turns: Turns, how: fitting.Smoothness) -> np.ndarray:
    """Of the large rows kept out."""
    found: list[np.ndarray] = []
    for seen, asked, protocols, truth in turns:
        correction = fitting.smooth(seen, how)
        smooth = np.empty(len(asked))
        for protocol in np.unique(protocols):
            there = protocols == protocol
            part = asked[there]
            smooth[there] = correction(
                part.nbytes, part.ranks, int(protocol), fitting.series(part)
            )
        off = np.abs(np.expm1(smooth - truth))
        found.append(off[asked.nbytes >= fitting.LARGE])
    return np.concatenate(found)


def limits(gpu: str, name: str, cluster: Cluster) -> None:
    table = {
        kind: [errors(turns, how) for how in drawn()]
        for kind, rows in alone(gpu, cluster).items()
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
    kind = "collective-permute"
    rows = alone(gpu, cluster)[kind]
    form = fitting.fit_form(kind, rows, cluster)
    facts = [one.facts for one in fitting.placed(kind, rows, cluster)]
    print(f"{gpu} permutes, GB/s of each channel (link at most {form.link_share:.0%})")
    for i in np.lexsort((rows.nbytes, rows.ranks)):
        parts = default_parts(kind, float(rows.nbytes[i]), int(rows.job[i]), facts[i])
        if parts.protocol == "simple" and parts.channels < 32:
            moving = rows.microseconds[i] - form.latency(int(rows.job[i]), "simple")
            rate = parts.serial_bytes / moving / 1e3
            print(
                f"  {int(rows.ranks[i])} pairs {rows.nbytes[i] / 2**20:6.0f} MiB"
                f" on {parts.channels:2} channels: {rate:5.1f}"
            )


def main() -> None:
    for gpu in GPUS:
        cluster = Cluster.parse(fit_collectives.MEASURED[gpu][1])
        for name in ("rows", "sizes"):
            limits(gpu, name, cluster)
        channels(gpu, cluster)


if __name__ == "__main__":
    main()
