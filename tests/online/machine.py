"""A machine that takes steps: hidden times, noise, drift, laggards and outliers."""

import math

import numpy as np

from lagom_jax.online.steps import StepTime


class HiddenMachine:
    """What each candidate really takes, and what a job sees of it."""

    def __init__(
        self, seconds, seed, *, noise=0.01, drift=0.03, lags=1e-3, outliers=0.01
    ):
        self.seconds, self.noise, self.drift = seconds, noise, drift
        self._lags, self._outliers = lags, outliers
        self._dice = np.random.default_rng(seed)
        self._phase, self._period = (
            self._dice.uniform(0, 6),
            self._dice.uniform(300, 3000),
        )
        self._lagging = 0
        self.steps = 0

    def step(self, candidate):
        dice, self.steps = self._dice, self.steps + 1
        turn = self._phase + 2 * math.pi * self.steps / self._period
        factor = (1 + self.drift * math.sin(turn)) * math.exp(
            self.noise * dice.normal()
        )
        if self._lagging:
            self._lagging -= 1
            factor *= 1.08
        elif dice.random() < self._lags:
            self._lagging = int(dice.integers(5, 40))
        if dice.random() < self._outliers:
            factor *= 1 + dice.exponential(0.3)
        return StepTime(candidate, self.seconds[candidate] * factor)
