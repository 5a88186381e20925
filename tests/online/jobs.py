"""Jobs on hidden machines, step by step as a search asks for them."""

import dataclasses
import math
import random

from hidden_machine import HiddenMachine, Weather

from lagom_jax.online.belief import StepCandidate
from lagom_jax.online.search import Search, after, turns
from lagom_jax.online.steps import StepTime

CALM = Weather(noise=0.0, drift=0.0, lags=0.0, outliers=0.0)
BEGUN = 20


@dataclasses.dataclass(frozen=True)
class Job:
    """A search that went on for so many steps, and every state of it."""

    states: list
    asked: list
    """What each state asked for."""

    @property
    def last(self):
        return self.states[-1]


def job(candidates, truth, steps=5000, weather=CALM, seed="0", limits=None):
    machine = HiddenMachine(truth, weather, seed)
    search = Search.among(candidates, limits, BEGUN)
    states, asked = [search], []
    while not search.over and search.steps < steps:
        planned = turns(search)
        asked.append(planned)
        search = after(search, [StepTime(one, machine.step(one)) for one in planned])
        states.append(search)
    return Job(states, asked)


def ensemble(seed, count=6, models=20, spread=0.05):
    """Candidates as an ensemble times them, and the truth by one more of its models."""
    chance = random.Random(seed)
    middle = [0.0, *(chance.uniform(-0.15, 0.05) for _ in range(count - 1))]
    pulls = [0.0, *(chance.gauss(0.0, 1.0) for _ in range(count - 1))]

    def drawn():
        common = chance.gauss(0.0, spread)
        return [
            0.5 * math.exp(at + pull * common + (at != 0.0) * chance.gauss(0.0, 0.005))
            for at, pull in zip(middle, pulls, strict=True)
        ]

    each = [drawn() for _ in range(models)]
    candidates = [
        StepCandidate(str(n), 0.5 * math.exp(at), tuple(one[n] for one in each))
        for n, at in enumerate(middle)
    ]
    return candidates, drawn()
