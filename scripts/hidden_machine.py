"""A stand-in for GPUs: hidden step times with what makes real ones hard to compare."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Weather:
    """Everything besides its program that a step's time depends on.

    The noise of one step, the share by which all steps drift in a thousand, hosts that
    lag for a while, and single steps that take far longer (a checkpoint, a collection
    of garbage).
    """

    noise: float = 0.01
    drift: float = 0.02
    lags: float = 1 / 500
    lag: float = 0.15
    lag_steps: int = 15
    outliers: float = 1 / 100
    outlier: float = 1.0

    @classmethod
    def drawn(cls, chance: random.Random) -> Weather:
        """The weather of one cluster: some are calm, some are not."""
        return cls(
            noise=math.exp(chance.uniform(math.log(0.002), math.log(0.02))),
            drift=chance.uniform(0.0, 0.04),
            lags=chance.uniform(0.0, 1 / 300),
            lag=chance.uniform(0.05, 0.4),
            lag_steps=chance.randint(3, 40),
            outliers=chance.uniform(0.0, 0.02),
            outlier=chance.uniform(0.2, 3.0),
        )


class HiddenMachine:
    """A machine whose steps nobody can predict exactly.

    Example:
        >>> calm = Weather(noise=0.0, drift=0.0, lags=0.0, outliers=0.0)
        >>> machine = HiddenMachine([1.0, 0.9], calm, seed="0")
        >>> machine.step(1)
        0.9
    """

    def __init__(self, seconds: Sequence[float], weather: Weather, seed: str) -> None:
        """Sets it up.

        Args:
            seconds: Of a step, by candidate, where nothing disturbs it.
            weather: What disturbs it.
            seed: Another one gives other disturbances.
        """
        self._seconds, self._weather = list(seconds), weather
        self._chance = random.Random(seed)
        self._level = 0.0
        self._lagging = 0
        self._ran: set[int] = {0}

    def add(self, seconds: float) -> None:
        """Adds a candidate, and how long its step takes where nothing disturbs it."""
        self._seconds.append(seconds)

    def step(self, candidate: int) -> float:
        """Seconds of the next step."""
        weather, chance = self._weather, self._chance
        self._level += chance.gauss(0.0, weather.drift / math.sqrt(1000))
        if self._lagging:
            self._lagging -= 1
        elif chance.random() < weather.lags:
            self._lagging = weather.lag_steps
        late = math.log1p(weather.lag) if self._lagging else 0.0
        if chance.random() < weather.outliers:
            late += math.log1p(weather.outlier * chance.random())
        if candidate not in self._ran:
            # Its kernels are loaded, its memory is found.
            self._ran.add(candidate)
            late += math.log1p(0.5 * chance.random())
        noise = weather.noise * abs(chance.gauss(0.0, 1.0))
        factor = math.exp(self._level + late + noise)
        return self._seconds[candidate] * factor
