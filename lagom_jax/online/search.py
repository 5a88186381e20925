"""A search by measured steps, as one state machine: times in, candidates to run out.

One candidate is the base: what the job ran when the search began, or what has been
proved faster than the base before it. One other at a time, the challenger, makes a few
steps now and then between steps of the base. Once it is likely to be faster they change
places, and the base makes the few steps: whatever is believed better makes almost all
of them. A challenger becomes the base when a sequential test with a fixed error rate
says so; it is dropped when it is not worth it any more.

More candidates can be offered to a search that goes on or is over: settings one step
away from those of the base, which are tried in the order of the paper's rounds, the
cheapest purchase first.

`turns` says what the next steps run, `after` takes their times. Both are pure, so that
the process whose clock counts can decide for all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from lagom_jax.online.belief import Belief, StepCandidate
from lagom_jax.online.evidence import NOTHING_COMPARED, Comparisons
from lagom_jax.online.steps import NEIGHBOURS, MeasuredBeside, StepTime, beside

BURST: Final = 3
"""Steps that a candidate makes at a time."""
LIKELY: Final = 0.8
"""The probability of being faster from which a challenger makes the job's steps."""
UNLIKELY: Final = 0.05
"""Less likely to be worth it than that, a candidate is not tried, or tried no more."""
SURE: Final = 0.98
"""With less certainty than this that it costs no great loss, a first look is short."""
AGAIN: Final = 2
"""Comparisons before a candidate is dropped: of one, a single slow step may be all."""
MOST_UNSEEN: Final = 4
"""Looks at a candidate of which no time is known."""

Happening: TypeAlias = Literal["tried", "runs", "proved", "dropped", "ended"]


@dataclasses.dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of what a search may cost, and of its errors.

    Example:
        >>> SearchLimits().allowed(100), SearchLimits().allowed(5000)
        (10.0, 50.0)
    """

    share: float = 0.01
    """Of all steps, those that may be made with what is not believed the best."""
    least_steps: int = 1000
    """A job is taken to make at least so many."""
    loss: float = 0.05
    """The share by which a step may become longer."""
    error: float = 0.01
    """The probability that anything slower is taken for faster in a whole search: half
    of it is for the first candidates, half of the rest for each that are offered
    later."""
    worth: float = 0.003
    """A smaller gain is not looked for."""
    most: int = 120
    """Steps of one comparison that has come to no end."""

    def allowed(self, steps: int) -> float:
        """The steps that may have been spent after so many."""
        return self.share * max(steps, self.least_steps)


@dataclasses.dataclass(frozen=True, slots=True)
class SearchEvent:
    """Something that a search has found out."""

    step: int
    """After so many steps."""
    kind: Happening
    candidate: int
    compared: Comparisons = NOTHING_COMPARED
    """The measured steps of the challenger beside the base."""
    before: float = 0.0
    """The measured logarithm of that base's time over that of the first candidate."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Search:
    """The state of a search.

    Example:
        >>> one, other = StepCandidate("as it is", 1.0), StepCandidate("plan", 0.9)
        >>> search = Search.among([one, other])
        >>> turns(search)[:2]
        (0, 0)
        >>> search = after(search, [StepTime(0, 1.0)] * len(turns(search)))
        >>> turns(search)[:5]
        (1, 1, 1, 0, 0)
    """

    candidates: tuple[StepCandidate, ...]
    belief: Belief
    limits: SearchLimits
    base: int = 0
    running: int = 0
    proved: float = 0.0
    """The logarithm of the base's time over the first candidate's, as measured."""
    challenger: int | None = None
    evidence: Comparisons = NOTHING_COMPARED
    """Of the challenger beside the base."""
    looks: int = 0
    """Comparisons of the challenger."""
    dropped: frozenset[int] = frozenset()
    errors: tuple[float, ...] = ()
    """Of each candidate's comparison with a base."""
    made: frozenset[int] = frozenset({0})
    """Candidates that have made a step."""
    steps: int = 0
    spent: int = 0
    tail: tuple[StepTime, ...] = ()
    """The last steps of what runs."""
    events: tuple[SearchEvent, ...] = ()
    over: bool = False

    @classmethod
    def among(
        cls,
        candidates: Sequence[StepCandidate],
        limits: SearchLimits | None = None,
        steps: int = 0,
    ) -> Search:
        """A search that begins.

        Args:
            candidates: What the job runs now, and what it could run.
            limits: What it may cost.
            steps: Steps that the job has made.
        """
        belief, limits = Belief.of(candidates), limits or SearchLimits()
        errors = _shared(limits.error / 2, len(candidates))
        return cls(tuple(candidates), belief, limits, errors=errors, steps=steps)

    def offered(self, more: Sequence[StepCandidate]) -> Search:
        """The search with more candidates; it goes on, if it was over.

        Example:
            >>> search = Search.among([StepCandidate("as it is", 1.0)])
            >>> len(search.offered([StepCandidate("other", 0.9)]).candidates)
            2
        """
        if not more:
            return self
        candidates = (*self.candidates, *more)
        left = self.limits.error - sum(self.errors)
        return dataclasses.replace(
            self,
            candidates=candidates,
            belief=self.belief.among(candidates),
            errors=(*self.errors, *_shared(left / 2, len(more))),
            # What ran before them is too long ago to be compared with.
            tail=(),
            over=False,
            events=(),
        )

    def price(self, candidate: int) -> float | None:
        """The price of a purchase by what is believed now; None for others."""
        purchase = self.candidates[candidate].purchase
        if purchase is None:
            return None
        before = self.candidates[purchase.beside].seconds
        believed = before * math.exp(self.belief.ratio(candidate, purchase.beside))
        return purchase.price(believed - self.candidates[candidate].seconds)


def _shared(error: float, among: int) -> tuple[float, ...]:
    return (error / max(1, among),) * among


def turns(search: Search) -> tuple[int, ...]:
    """The candidates of the next steps; empty where the search is over.

    Those of the trial come first, and then enough of what runs to compare them with.
    """
    usual = (search.running,) * NEIGHBOURS
    if search.over:
        return ()
    if len(search.tail) < NEIGHBOURS:
        return usual
    trial = _on_trial(search)
    if trial is None:
        return usual
    # A first look at what may be much slower is one step that counts.
    length = BURST if _safe(search, trial) else 1 + (trial not in search.made)
    left = search.limits.allowed(search.steps) - search.spent
    if left < length:
        # Not yet: as many steps as earn what is lacking.
        wait = int((length - max(left, 0.0)) / search.limits.share)
        return (search.running,) * max(NEIGHBOURS, min(wait, 1000))
    return (trial,) * length + usual


def after(search: Search, times: Sequence[StepTime]) -> Search:
    """The search after the steps that `turns` has asked for.

    Args:
        search: The state before.
        times: The steps in their order. Those whose time nobody knows may be missing.
    """
    trial = [step for step in times if step.candidate != search.running]
    rest = [step for step in times if step.candidate == search.running]
    new = {step.candidate for step in trial} - search.made
    if new:
        # The first step of a program comes with what happens only once.
        trial[0] = dataclasses.replace(trial[0], counts=False)
    compared = beside(search.tail, trial, rest) if trial else None
    search = dataclasses.replace(
        search,
        steps=search.steps + len(times),
        spent=search.spent + len(trial),
        made=search.made | new,
        tail=(*search.tail, *rest)[-NEIGHBOURS:],
        events=(),
    )
    if trial and search.challenger is None:
        found = trial[0].candidate
        search = dataclasses.replace(
            search, challenger=found, evidence=Comparisons(), looks=0
        )
    if compared is not None:
        search = _learned(search, compared)
    elif trial:
        search = _unseen(search)
    return _ended(search)


def _on_trial(search: Search) -> int | None:
    if search.running != search.base:
        return search.base
    if search.challenger is not None:
        return search.challenger
    return next(_worth_trying(search), None)


def _worth_trying(search: Search) -> Iterator[int]:
    """Candidates that may be worth it: programs that promise most, cheap purchases."""
    belief, base = search.belief, search.base
    found = [
        number
        for number in range(len(search.candidates))
        if number != base
        and number not in search.dropped
        and belief.chance(number, base, search.limits.worth) > UNLIKELY
        and belief.ratio(number, base) <= search.limits.loss
    ]
    prices = {number: search.price(number) for number in found}
    yield from sorted(
        found,
        key=lambda number: (
            prices[number] is not None,
            prices[number],
            -belief.gain(number, base),
        ),
    )


def _safe(search: Search, candidate: int) -> bool:
    loss = search.belief.chance(search.base, candidate, search.limits.loss)
    return loss <= 1 - SURE


def _learned(search: Search, seen: MeasuredBeside) -> Search:
    challenger = search.challenger
    assert challenger is not None
    evidence = search.evidence.with_(seen, turned=seen.candidate == search.base)
    search = dataclasses.replace(
        search,
        belief=search.belief.with_(seen),
        evidence=evidence,
        looks=search.looks + 1,
    )
    belief, base, limits = search.belief, search.base, search.limits
    slower = seen.other if seen.log_ratio < 0 else seen.candidate
    error = search.errors[challenger]
    if evidence.proves_faster(error):
        search = _told(search, "proved", challenger)
        return dataclasses.replace(
            search,
            base=challenger,
            proved=search.proved + evidence.log_ratio,
            running=challenger,
            challenger=None,
            dropped=search.dropped | {base},
            tail=search.tail if search.running == challenger else (),
        )
    hopeless = (
        evidence.proves_slower(error)
        or belief.chance(challenger, base, limits.worth) < UNLIKELY
        or evidence.steps >= limits.most
    )
    if hopeless and search.looks >= AGAIN:
        search = _told(search, "dropped", challenger)
        return dataclasses.replace(
            search,
            challenger=None,
            dropped=search.dropped | {challenger},
            running=base,
            tail=search.tail if search.running == base else (),
        )
    likely = belief.chance(challenger, base)
    if search.running == base and likely > LIKELY and slower == base:
        return _told(
            dataclasses.replace(search, running=challenger, tail=()), "runs", challenger
        )
    if search.running != base and likely < 0.5:
        search = dataclasses.replace(search, running=base, tail=())
        return _told(search, "runs", base)
    return _told(search, "tried", challenger)


def _unseen(search: Search) -> Search:
    """The search after steps whose times nobody knows, as where all is donated."""
    search = dataclasses.replace(search, looks=search.looks + 1)
    if search.evidence.steps or search.looks < MOST_UNSEEN:
        return search
    assert search.challenger is not None
    dropped = search.dropped | {search.challenger}
    search = _told(search, "dropped", search.challenger)
    return dataclasses.replace(search, challenger=None, dropped=dropped)


def _told(search: Search, kind: Happening, candidate: int) -> Search:
    event = SearchEvent(search.steps, kind, candidate, search.evidence, search.proved)
    return dataclasses.replace(search, events=(*search.events, event))


def _ended(search: Search) -> Search:
    idle = search.challenger is None and search.running == search.base
    if not idle or next(_worth_trying(search), None) is not None:
        return search
    event = SearchEvent(search.steps, "ended", search.base)
    return dataclasses.replace(search, over=True, events=(*search.events, event))
