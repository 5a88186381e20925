"""The rules of docs/how-to/regions.md once more, in numpy and in loops, for all regions.

Nothing of the package is used here but the cut into fragments, which the caller gives
as a list of masks over a flat vector.
"""

import ml_dtypes
import numpy as np

INF = float("inf")


def through_wire(x, bits):
    """What a number becomes on its way."""
    if bits == 32:
        return x.copy()
    if bits == 16:
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    out = np.zeros_like(x)
    for start in range(0, len(x), 64):
        block = x[start : start + 64]
        top = np.float32(127 if bits == 8 else 6)
        scale = np.float32((np.abs(block).max() / top).astype(ml_dtypes.bfloat16))
        scaled = block / (scale if scale > 0 else np.float32(1))
        if bits == 8:
            coded = np.clip(np.rint(scaled), -127, 127)
        else:
            grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
            near = np.abs(np.abs(scaled)[:, None] - grid).argmin(1)
            coded = np.sign(scaled) * grid[near]
        out[start : start + 64] = coded.astype(np.float32) * scale
    return out


class Rendering:
    """All regions' parameters as rows of a matrix, stepped by hand."""

    def __init__(
        self,
        params,
        masks,
        *,
        period,
        delay,
        interval,
        eta,
        mu,
        alpha,
        lam=0.0,
        inner=1.0,
        adaptive=False,
        bits=32,
    ):
        self.local = params.astype(np.float32).copy()
        self.anchor = self.local[0].copy()
        self.v = np.zeros_like(self.anchor)
        self.residual = np.zeros_like(self.local)
        self.masks = [np.flatnonzero(mask) for mask in masks]
        self.period, self.delay, self.interval = period, delay, interval
        self.eta, self.mu, self.alpha, self.lam = map(np.float32, (eta, mu, alpha, lam))
        self.inner, self.adaptive, self.bits = np.float32(inner), adaptive, bits
        self.n = 0
        self.last = [0] * len(masks)
        self.rate = [INF] * len(masks)
        self.air = []
        self.sends = []

    def update(self):
        self.n += 1
        while self.air and self.air[0]["sent"] + self.delay == self.n:
            self.land(self.air.pop(0))
        if self.n % self.interval == 0:
            flight = self.send()
            if self.delay == 0:
                self.land(flight)
            else:
                self.air.append(flight)

    def choose(self):
        count = len(self.masks)
        if not self.adaptive:
            return (self.n // self.interval) % count
        # By trial: whom could go now without anyone missing a deadline later?
        flying = {flight["fragment"] for flight in self.air}
        best = None
        for p in range(count):
            if p in flying:
                continue
            deadlines = sorted(
                self.last[q] + self.period for q in range(count) if q != p
            )
            fits = all(
                self.n + (turn + 1) * self.interval <= deadline
                for turn, deadline in enumerate(deadlines)
            )
            if fits and (best is None or self.rate[p] > self.rate[best]):
                best = p
        assert best is not None, "someone misses a deadline"
        return best

    def send(self):
        p = self.choose()
        rows = self.masks[p]
        sound = [bool(np.isfinite(row).all()) for row in self.local]
        sums, count = np.zeros(len(rows), np.float32), 0
        for m, row in enumerate(self.local):
            if not sound[m]:
                row[:] = self.anchor
                self.residual[m, rows] = 0
                continue
            x = self.anchor[rows] - row[rows]
            if self.bits < 32:
                x = x + self.residual[m, rows]
            y = through_wire(x, self.bits)
            self.residual[m, rows] = x - y
            sums, count = sums + y, count + 1
        flight = {
            "fragment": p,
            "sent": self.n,
            "gap": self.n - self.last[p],
            "mean": sums / max(count, 1),
            "count": count,
            "before": self.local[:, rows].copy(),
        }
        self.last[p] = self.n
        self.sends.append((self.n, p))
        return flight

    def land(self, flight):
        if not flight["count"]:
            return
        rows, mean = self.masks[flight["fragment"]], flight["mean"]
        self.v[rows] = self.mu * self.v[rows] + mean
        old = self.anchor[rows].copy()
        self.anchor[rows] = old - self.eta * (mean + self.mu * self.v[rows])
        new = self.anchor[rows]
        self.rate[flight["fragment"]] = (
            float(np.sqrt(np.sum((new - old) ** 2, dtype=np.float64))) / flight["gap"]
        )
        for m, row in enumerate(self.local):
            target = new
            if self.lam and self.delay:
                u = (row[rows] - flight["before"][m]) / self.delay
                bend = self.lam / self.inner * u * (new - flight["before"][m])
                target = new + self.delay * u * (1 - np.clip(bend, -1, 1))
            row[rows] = self.alpha * row[rows] + (1 - self.alpha) * target
