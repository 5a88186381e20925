"""The belief in how long candidates take, from models and from measured steps.

Before the first step it is what an ensemble of models says: candidates of which the
models that call one fast call the other fast, too, hang together. Each comparison of
measured steps narrows it, also for candidates that have not run: models that do not say
what was measured lose their weight. Since all models may miss the same thing, each
candidate has an error of its own besides; and where measured steps surprise the whole
ensemble, all of it is believed less.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lagom_jax.online.steps import MeasuredBeside

Floats = npt.NDArray[np.float64]

OWN_ERROR: Final = 0.01
"""The share of a step by which all models may miss one candidate."""
ALIKE: Final = 0.01
"""Candidates that all models time alike, within this share, are missed alike: they are
the same program with another setting."""
UNKNOWN: Final = 0.05
"""Standard deviation of a candidate that one model alone has timed."""
# What single candidates are off besides, however alike models time them.
_APART: Final = 0.001
# Standard deviations from which a comparison is no longer like others of its pair.
_FAR: Final = 3.0
# Factors on the standard deviation of the ensemble that are thought of, each half as
# likely as the one before.
_DOUBTS: Final = (1.0, 2.0, 4.0, 8.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Purchase:
    """Time of collectives that is bought with computing time, or given back for it.

    Example:
        >>> Purchase(0, saved_seconds=4e-3, added_seconds=1e-3).price()
        0.25
        >>> Purchase(0, saved_seconds=-1e-3, added_seconds=-4e-3).price()
        0.25
    """

    beside: int
    """The candidate that it begins from; one setting is all that they differ in."""
    saved_seconds: float
    """By which the collectives become shorter, predicted; negative where slower."""
    added_seconds: float
    """By which computing becomes longer, likewise."""

    def price(self, more: float = 0.0) -> float:
        """Seconds that are lost for each that is won: the paper's `H`.

        Args:
            more: Seconds by which a step takes longer than was predicted. The times of
                collectives alone are known better than what they do to the kernels
                beside them: what was not foreseen is computing time.
        """
        added = self.added_seconds + more
        if self.saved_seconds > 0:
            return added / self.saved_seconds
        return self.saved_seconds / added if added < 0 else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class StepCandidate:
    """A program with settings that a job could run.

    Example:
        >>> StepCandidate("as it is", 0.5).by_model
        ()
    """

    name: str
    seconds: float
    """Of a step, predicted by the likeliest model."""
    by_model: tuple[float, ...] = ()
    """By each of the others, in the same order for all candidates; empty where only
    one was asked."""
    purchase: Purchase | None = None
    """None where it differs in more than one setting."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Normal distribution of the logarithms of candidates' times over the first's.

    Example:
        >>> belief = Belief.of([StepCandidate("a", 1.0), StepCandidate("b", 0.9)])
        >>> round(belief.ratio(1, 0), 2), belief.chance(1, 0) > 0.9
        (-0.11, True)
    """

    prior: Floats
    spread: Floats
    """Covariance by the ensemble."""
    own: Floats
    """Covariance of the errors that all models may share."""
    seen: tuple[MeasuredBeside, ...] = ()
    mean: Floats = dataclasses.field(default_factory=lambda: np.zeros(0))
    covariance: Floats = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    doubt: float = 1.0
    """The factor by which the ensemble is believed less than it was."""

    @classmethod
    def of(cls, candidates: Sequence[StepCandidate]) -> Belief:
        """The belief before anything is measured."""
        first = candidates[0]
        prior = np.array([math.log(one.seconds / first.seconds) for one in candidates])
        models = min(len(one.by_model) for one in candidates)
        count = len(candidates)
        if models >= 2:
            times = np.log(np.array([one.by_model for one in candidates], float))
            logs = times - times[0]
            # Around the likeliest, since that is where the plans were looked for.
            off = logs - prior[:, None]
            spread = off @ off.T / models
            own = _own_errors(logs)
        else:
            spread = np.zeros((count, count))
            own = np.diag([0.0] + [UNKNOWN**2] * (count - 1))
        return cls(prior, spread, own)._settled()

    def with_(self, seen: MeasuredBeside) -> Belief:
        """With one more comparison."""
        return dataclasses.replace(self, seen=(*self.seen, seen))._settled()

    def among(self, candidates: Sequence[StepCandidate]) -> Belief:
        """The same measurements, with more candidates."""
        return dataclasses.replace(Belief.of(candidates), seen=self.seen)._settled()

    def ratio(self, one: int, other: int) -> float:
        """The expected logarithm of one candidate's time over another's."""
        return float(self.mean[one] - self.mean[other])

    def sigma(self, one: int, other: int) -> float:
        """Its standard deviation."""
        variance = (
            self.covariance[one, one]
            + self.covariance[other, other]
            - 2 * self.covariance[one, other]
        )
        return math.sqrt(max(float(variance), 1e-12))

    def chance(self, one: int, other: int, by: float = 0.0) -> float:
        """The probability that one is faster than another by more than a share."""
        return _below((-by - self.ratio(one, other)) / self.sigma(one, other))

    def gain(self, one: int, other: int) -> float:
        """The expected share of a step that knowing both would win over the other."""
        ratio, sigma = self.ratio(one, other), self.sigma(one, other)
        z = -ratio / sigma
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return -ratio * _below(z) + sigma * density

    def _settled(self) -> Belief:
        """Everything that was seen, at once, with as much doubt as explains it best."""
        if not self.seen:
            return dataclasses.replace(
                self, mean=self.prior, covariance=self.spread + self.own
            )
        rows = np.zeros((len(self.seen), len(self.prior)))
        for number, one in enumerate(self.seen):
            rows[number, one.candidate] += 1.0
            rows[number, one.other] -= 1.0
        missed = np.array([one.log_ratio for one in self.seen]) - rows @ self.prior
        noise = np.diag(_variances(self.seen))
        found: list[tuple[float, float, Floats, Floats]] = []
        for place, doubt in enumerate(_DOUBTS):
            prior = doubt**2 * (self.spread + self.own)
            total = rows @ prior @ rows.T + noise
            solved = np.linalg.solve(total, missed)
            likely = -0.5 * (missed @ solved + np.linalg.slogdet(total)[1])
            kept = prior @ rows.T @ np.linalg.solve(total, rows @ prior)
            weight = float(likely) - place * math.log(2.0)
            found.append((weight, doubt, prior @ rows.T @ solved, prior - kept))
        _, doubt, shift, covariance = max(found, key=lambda one: one[0])
        return dataclasses.replace(
            self, mean=self.prior + shift, covariance=covariance, doubt=doubt
        )


def _own_errors(logs: Floats) -> Floats:
    """Covariance of what all models miss of each candidate, beside the first."""
    squares = ((logs[:, None, :] - logs[None, :, :]) ** 2).mean(axis=2)
    missed = OWN_ERROR**2 * np.exp(-squares / (2 * ALIKE**2))
    missed += np.diag([_APART**2] * len(logs))
    return missed - missed[:1] - missed[:, :1] + missed[0, 0]


def _variances(seen: Sequence[MeasuredBeside]) -> list[float]:
    """Variances of comparisons; of those that lie far from their like, more."""
    by_pair: dict[tuple[int, int], list[float]] = {}
    for one in seen:
        by_pair.setdefault((one.candidate, one.other), []).append(one.log_ratio)
        by_pair.setdefault((one.other, one.candidate), []).append(-one.log_ratio)
    found: list[float] = []
    for one in seen:
        usual = statistics.median(by_pair[one.candidate, one.other])
        far = abs(one.log_ratio - usual) - _FAR * math.sqrt(one.variance)
        found.append(one.variance + max(0.0, far) ** 2)
    return found


def _below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
