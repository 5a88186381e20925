"""The choice among what was compiled, under all models of an ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

from lagom_jax.options.off_rings import MODES, SYMMETRIC
from lagom_jax.plan import StepParts, Uncertainty
from lagom_jax.plan.regret import regrets, regretted
from lagom_jax.planner.comparison import as_compiled
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.regret import (
    Scored,
    beyond_bound,
    least_regret,
    nowhere_behind,
)
from lagom_jax.planner.trial import Trial
from lagom_jax.settings.doubt import Doubt
from lagom_jax.settings.stage import Stage

FINALISTS: Final = 5
"""Candidates that are timed under all models, beside the program as it is."""
_IN_REACH: Final = 0.03
"""A candidate that much behind the best by the likeliest model is no finalist."""
_ASKED: Final = 2
"""Candidates with the least regret, for which all models are asked for settings."""
NOTHING_KNOWN_TO_HELP: Final = (
    "nothing that was tried is known to help: by the models that agree with what is "
    "known of this cluster, each gain may be none; so nothing is changed"
)
NOTHING_HELPS: Final = (
    "nothing that was tried makes the step shorter: nothing is changed"
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
    scored: Scored | None = None
    """Its times, where all models have timed it."""
    refused: Refused | None = None
    """A candidate with less regret, but for a model that finds it behind; or the one
    that was taken, where the worst of its regret is beyond the bound."""


class Refused(NamedTuple):
    """A candidate that some models are against."""

    trial: Trial
    models: tuple[int, ...]
    """Places in the ensemble of those that find it behind, by most first."""
    beside: Scored
    """The times that it should not be behind."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TimedWay:
    """A candidate with some settings, and its times."""

    trial: Trial
    view: View
    scored: Scored

    @property
    def off_rings(self) -> bool:
        """True if it takes collectives off the rings."""
        return takes_off_rings(self.trial) or self.view.policy != "default"


def decide(
    trials: Sequence[Trial], timing: Timing, not_behind: Scored | None = None
) -> Taken:
    """Takes the candidate with the least regret.

    One that takes collectives off the rings is only taken where by no model it is
    behind what is taken among the others.

    Args:
        trials: All candidates; the first is the program as it is.
        timing: Times them; what it has timed before, it knows.
        not_behind: Times of another step, which the one taken should by no model be
            behind, if there is such a one.
    """
    first = trials[0]
    untouched = timing.untouched(first)
    others = [t for t in trials[1:] if takes_off_rings(t)]
    usual_trials = [first, *(t for t in trials[1:] if not takes_off_rings(t))]
    ways = [untouched, *timing.ways(finalists(usual_trials), first)]
    if others:
        ways += timing.ways(finalists([first, *others])[1:], first)
    on_rings = timing.taken([way for way in ways if not way.off_rings], untouched)
    off_rings = timing.settled([w for w in ways if w.off_rings], on_rings.scored)
    ahead = [w for w in off_rings if nowhere_behind(w.scored, on_rings.scored)]
    wanted, beside = _best_of([on_rings, *off_rings]), on_rings.scored
    taken = _best_of([on_rings, *ahead])
    if not taken.scored.is_better_than(untouched.scored):
        taken = untouched
    if not_behind is not None and not nowhere_behind(taken.scored, not_behind):
        wanted, beside = taken, not_behind
        usable = (on_rings, *(way for way in ways if not way.off_rings), *ahead)
        steady = [
            way
            for way in timing.settled(usable, not_behind)
            if nowhere_behind(way.scored, not_behind)
            and (not way.off_rings or nowhere_behind(way.scored, on_rings.scored))
        ]
        taken = _best_of(steady or [taken])
    beyond = _beyond(taken, [*ahead, *(way for way in ways if not way.off_rings)])
    return Taken(
        dataclasses.replace(taken.trial, view=taken.view),
        untouched.view.tuning.before,
        Uncertainty.of(
            untouched.scored.seconds,
            taken.scored.seconds,
            untouched.scored.by_model,
            taken.scored.by_model,
        ),
        _why_nothing(ways) if taken is untouched else (),
        tuple(ways) if taken in ways else (*ways, taken),
        taken.scored,
        _refused(wanted, beside) or (None if taken is untouched else beyond),
    )


def _best_of(ways: Sequence[TimedWay]) -> TimedWay:
    """The one with the least regret."""
    return ways[least_regret([way.scored for way in ways])]


def _refused(way: TimedWay, beside: Scored) -> Refused | None:
    """A way that a model keeps from being taken; None if only the likeliest does."""
    pairs = zip(way.scored.by_model, beside.by_model, strict=True)
    ratios = [own / theirs for own, theirs in pairs]
    behind = [place for place, ratio in enumerate(ratios) if ratio > 1.0]
    if not behind:
        return None
    behind.sort(key=lambda place: -ratios[place])
    return Refused(way.trial, tuple(behind), beside)


def _beyond(way: TimedWay, others: Sequence[TimedWay]) -> Refused | None:
    """A way with models whose regret is beyond the bound; None if there are none."""
    models, limits = beyond_bound(way.scored, [one.scored for one in others])
    return Refused(way.trial, models, limits) if models else None


def _why_nothing(ways: Sequence[TimedWay]) -> tuple[str, ...]:
    if len(ways) > 1:
        return (NOTHING_KNOWN_TO_HELP,)
    # Of a step that does not communicate nothing was expected.
    waited_for = ways[0].view.tuning.before.communication_seconds > 0
    return (NOTHING_HELPS,) if waited_for else ()


def takes_off_rings(trial: Trial) -> bool:
    """True if a candidate's options take collectives off the rings."""
    return not {SYMMETRIC, *MODES.values()}.isdisjoint(trial.asked.options)


class Timing:
    """Times candidates under all models of a judge, each program once."""

    def __init__(self, judge: Judge) -> None:
        """Takes what looked at the candidates."""
        self._judge = judge
        self._doubts: dict[tuple[Stage, str], Doubt] = {}
        self._untouched: dict[View, View] = {}
        self._settled: dict[tuple[View, bool, tuple[float, ...]], View] = {}

    def untouched(self, trial: Trial) -> TimedWay:
        """A candidate with everything left to NCCL."""
        assert trial.view is not None
        return self.way(trial, self._plain(trial.view))

    def way(self, trial: Trial, view: View) -> TimedWay:
        """A candidate with the settings of a view."""
        choice = view.found.choice
        scored = Scored(
            view.stage.step_seconds(choice),
            self._doubt(view).step_seconds(choice),
            _parts(trial, view),
        )
        return TimedWay(trial, view, scored)

    def ways(self, trials: Sequence[Trial], first: Trial) -> list[TimedWay]:
        """Each with everything left to NCCL, and with its own settings."""
        found: list[TimedWay] = []
        for trial in trials:
            view = trial.view
            assert view is not None
            plain = self._plain(view)
            if trial is not first:
                found.append(self.way(trial, plain))
            if view.policy != "default" or view.found.choice != plain.found.choice:
                found.append(self.way(trial, view))
        return found

    def taken(self, ways: Sequence[TimedWay], untouched: TimedWay) -> TimedWay:
        """The one with the least regret; where it is no better, nothing is changed.

        Settings are all models' before programs are compared: what one model finds for
        a program says little about what the program is worth.
        """
        found = [*map(regretted, regrets([way.scored.by_model for way in ways]))]
        settled = set(sorted(range(len(ways)), key=found.__getitem__)[:_ASKED])
        asked = [
            self._with_settings(way) if place in settled else way
            for place, way in enumerate(ways)
        ]
        while True:
            place = least_regret([way.scored for way in asked])
            # One model's settings may hide what all models would make of a program
            # that is ahead without any.
            same = [p for p, way in enumerate(ways) if way.trial is ways[place].trial]
            if settled.issuperset(same):
                break
            settled.update(same)
            for other in same:
                asked[other] = self._with_settings(ways[other])
        better = asked[place].scored.is_better_than(untouched.scored)
        return asked[place] if better else untouched

    def settled(self, ways: Sequence[TimedWay], not_behind: Scored) -> list[TimedWay]:
        """Each as it is, and the best beside it with settings of all models.

        Where these put it behind another step by some model, there are once more
        settings that are chosen so that they should not.

        Args:
            ways: The candidates.
            not_behind: Times of the other step.
        """
        found = [*map(regretted, regrets([way.scored.by_model for way in ways]))]
        least = sorted(range(len(ways)), key=found.__getitem__)[:_ASKED]
        more: list[TimedWay] = []
        for way in (ways[place] for place in least):
            asked = self._with_settings(way)
            others = [asked]
            if not nowhere_behind(asked.scored, not_behind):
                others.append(self._with_settings(way, not_behind.by_model))
            more += [other for other in others if other is not way]
        return [*ways, *more]

    def _with_settings(
        self, way: TimedWay, not_behind: tuple[float, ...] = ()
    ) -> TimedWay:
        """A candidate with what all models make of the settings found for it.

        Settings that drown each by itself must not take the others down with them.
        """
        own = way.trial.view
        assert own is not None
        if way.view.policy != own.policy or way.view.found.choice != own.found.choice:
            return way
        # Beside a program that is changed anyway, settings are one more part.
        key = own, not _changes(way.trial), not_behind
        if key not in self._settled:
            found = self._doubt(own).decided(
                own.found, alone=key[1], not_behind=not_behind
            )
            self._settled[key] = self._judge.restated(own, found)
        return self.way(way.trial, self._settled[key])

    def _plain(self, view: View) -> View:
        known = self._untouched.get(view)
        if known is None:
            known = self._untouched[view] = self._judge.untouched(view)
        return known

    def _doubt(self, view: View) -> Doubt:
        key = view.stage, view.policy
        if key not in self._doubts:
            self._doubts[key] = self._judge.doubt(view.stage, view.policy)
        return self._doubts[key]


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
    return Taken(min(usable, key=as_compiled), default, None, ())


def finalists(trials: Sequence[Trial]) -> list[Trial]:
    """The program as it is, and the shortest steps of what was compiled."""
    usable = [t for t in trials[1:] if t.usable and t.status != "no effect"]
    usable.sort(key=as_compiled)
    least = min(map(as_compiled, [trials[0], *usable]))
    near = [t for t in usable if as_compiled(t) <= least * (1 + _IN_REACH)]
    return [trials[0], *near[:FINALISTS]]


def _parts(trial: Trial, view: View) -> int:
    """Things that a candidate changes."""
    settings = any(view.found.choice) + (view.policy != "default")
    return _changes(trial) + settings


def _changes(trial: Trial) -> int:
    """Things that a candidate changes in the program."""
    aside = trial.ordering is not None and bool(trial.ordering.on_second_stream)
    return len(trial.asked.options) + trial.ordered + (trial.ordered and aside)
