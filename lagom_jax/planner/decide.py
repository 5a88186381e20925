"""The choice among what was compiled, under all models of an ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from lagom_jax.plan import StepParts, Uncertainty
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.regret import Scored, least_regret
from lagom_jax.planner.trial import Trial
from lagom_jax.settings.doubt import Doubt

FINALISTS: Final = 5
"""Candidates that are timed under all models, beside the program as it is."""
_IN_REACH: Final = 0.03
"""A candidate that much behind the best by the likeliest model is no finalist."""
NOTHING_KNOWN_TO_HELP: Final = (
    "nothing that was tried is known to help: by the models that agree with what is "
    "known of this cluster, each gain may be none; so nothing is changed"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """The candidate that was taken, and how sure its figures are."""

    trial: Trial
    default: StepParts
    """Of the program as it is, with everything left to NCCL."""
    uncertainty: Uncertainty | None
    """None while candidates are still to come."""
    notes: tuple[str, ...]
    ways: tuple[TimedWay, ...] = ()
    """All that was decided among, the program as it is first."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TimedWay:
    """A candidate with some settings, and its times."""

    trial: Trial
    view: View
    scored: Scored


def decide(trials: Sequence[Trial], judge: Judge) -> Taken:
    """Takes the candidate with the least regret.

    Args:
        trials: All candidates; the first is the program as it is.
        judge: What looked at them.
    """
    first = trials[0]
    assert first.view is not None
    doubts: dict[tuple[int, str], Doubt] = {}

    def doubt_of(trial: Trial, view: View) -> Doubt:
        key = trial.number, view.policy
        if key not in doubts:
            doubts[key] = judge.doubt(view.stage, view.policy)
        return doubts[key]

    def way(trial: Trial, view: View) -> TimedWay:
        choice = view.found.choice
        scored = Scored(
            view.stage.score(choice).step_seconds,
            doubt_of(trial, view).step_seconds(choice),
            _parts(trial, view),
        )
        return TimedWay(trial, view, scored)

    untouched = way(first, judge.untouched(first.view))
    ways = [untouched]
    for trial in finalists(trials):
        view = trial.view
        assert view is not None
        plain = judge.untouched(view)
        if trial is not first:
            ways.append(way(trial, plain))
        if view.policy != "default" or view.found.choice != plain.found.choice:
            ways.append(way(trial, view))
    taken = ways[least_regret([one.scored for one in ways])]
    # Settings that drown each by itself must not take the others down with them.
    own = taken.trial.view
    assert own is not None
    settled = doubt_of(taken.trial, own).settled(own.found)
    rest = way(taken.trial, judge.restated(own, settled))
    if taken.view is own or rest.scored.is_better_than(taken.scored):
        taken = rest
    if not taken.scored.is_better_than(untouched.scored):
        taken = untouched
    return Taken(
        dataclasses.replace(taken.trial, view=taken.view),
        untouched.view.tuning.before,
        Uncertainty.of(
            untouched.scored.seconds,
            taken.scored.seconds,
            untouched.scored.by_model,
            taken.scored.by_model,
        ),
        (NOTHING_KNOWN_TO_HELP,) if taken is untouched and len(ways) > 1 else (),
        tuple(ways) if taken in ways else (*ways, taken),
    )


def best_so_far(trials: Sequence[Trial], judge: Judge) -> Taken:
    """The candidate that is the fastest by the likeliest model, before others follow.

    Args:
        trials: Candidates; the first is the program as it is.
        judge: What looked at them.
    """
    # What was just compiled in another order is not complete yet.
    usable = [t for t in trials if t.usable and not t.ordered]
    first = trials[0].view
    assert first is not None
    default = judge.untouched(first).tuning.before
    return Taken(min(usable, key=_as_compiled), default, None, ())


def finalists(trials: Sequence[Trial]) -> list[Trial]:
    """The program as it is, and the shortest steps of what was compiled."""
    usable = [t for t in trials[1:] if t.usable and t.status != "no effect"]
    usable.sort(key=_as_compiled)
    least = min(map(_as_compiled, [trials[0], *usable]))
    near = [t for t in usable if _as_compiled(t) <= least * (1 + _IN_REACH)]
    return [trials[0], *near[:FINALISTS]]


def _as_compiled(trial: Trial) -> float:
    assert trial.view is not None
    return trial.view.tuned_seconds


def _parts(trial: Trial, view: View) -> int:
    """Things that a candidate changes."""
    aside = trial.ordering is not None and bool(trial.ordering.on_second_stream)
    return (
        len(trial.asked.options)
        + trial.ordered
        + (trial.ordered and aside)
        + any(view.found.choice)
        + (view.policy != "default")
    )
