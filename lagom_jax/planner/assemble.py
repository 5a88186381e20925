"""From what became of the candidates to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from lagom_jax.options import Bound, Idea, changes
from lagom_jax.plan import (
    CollectiveCut,
    Evidence,
    HoldsFor,
    Lever,
    Needs,
    Plan,
    PlanCandidate,
    PlanControls,
    ProcessVariable,
    Refusal,
    SiteSetting,
    StepParts,
    Uncertainty,
)
from lagom_jax.plan.evidence import COSTS, ORDER
from lagom_jax.plan.process_needs import NOTHING_NEEDED
from lagom_jax.planner.judge import View
from lagom_jax.planner.trial import Trial, edit_of
from lagom_jax.settings.tuning import Tuning
from lagom_jax.units import counted
from xla_flags import OptionValue

_COSTS_WHY = (
    "XLA's scheduler weighs collectives against kernels by our predicted times instead "
    "of its own"
)
_ORDER_WHY = (
    "ordered by the replayed step, contention and settings included, not collective "
    "by collective"
)


def assemble(
    trials: Iterable[Trial],
    first: Trial,
    best: Trial,
    *,
    holds_for: HoldsFor,
    default: StepParts,
    uncertainty: Uncertainty | None,
    bound: Bound,
    memory_limit: int,
    controls: PlanControls,
    compiles: int,
    seconds: float,
    notes: Iterable[str] = (),
    variables: Iterable[ProcessVariable] = (),
    needs: Needs = NOTHING_NEEDED,
    refusals: Iterable[Refusal] = (),
    cuts: Iterable[CollectiveCut] = (),
) -> Plan:
    """Makes the plan.

    Args:
        trials: All candidates, in the order in which they were tried.
        first: The program as it is.
        best: What was chosen.
        holds_for: What the plan is for.
        default: The program as it is, with everything left to NCCL.
        uncertainty: Of both times; None while candidates are still to come.
        bound: How short the step could become.
        memory_limit: Bytes on a device.
        controls: The means by which NCCL can be given settings.
        compiles: Runs of the compiler.
        seconds: How long it all took.
        notes: What else is to be known.
        variables: Of the process.
        needs: Of the installation.
        refusals: Transports that could not be had.
        cuts: Collectives that a cut would still make shorter.
    """
    assert first.view is not None
    assert best.view is not None
    listed = list(trials)
    order = None
    if best.ordered and best.ordering is not None:
        order = edit_of(best.schedule, best.ordering)
    return Plan(
        holds_for=holds_for,
        levers=tuple(_levers(best, listed, first)),
        costs=best.asked.costs,
        order=order,
        settings=tuple(_settings(best.view.tuning)),
        controls=controls,
        evidence=Evidence(
            default=default,
            tuned=best.view.tuning.after,
            bound_seconds=bound.seconds,
            bound=bound.what,
            default_peak=first.peak_bytes,
            tuned_peak=best.peak_bytes,
            memory_limit=memory_limit,
            candidates=tuple(_candidate(trial, best) for trial in listed),
            compiles=compiles,
            seconds=seconds,
            uncertainty=uncertainty,
        ),
        pricing=best.view.tuning.pricing,
        notes=tuple(dict.fromkeys((*best.view.tuning.notes, *notes))),
        variables=tuple(variables),
        needs=needs,
        refusals=tuple(refusals),
        cuts=tuple(cuts),
    )


def _candidate(trial: Trial, best: Trial) -> PlanCandidate:
    if trial.number == best.number:
        # With the settings that it was taken with.
        return dataclasses.replace(best.candidate(), status="chosen")
    return trial.candidate()


def _settings(tuning: Tuning) -> Iterator[SiteSetting]:
    for group in tuning.groups:
        if group.chosen is not None:
            yield SiteSetting(
                kind=group.kind,
                bytes=group.bytes,
                ranks=group.ranks,
                domains=group.domains,
                calls=group.calls,
                sites=group.sites,
                usual=group.usual,
                setting=group.chosen,
                why=group.why,
            )


def _levers(best: Trial, trials: list[Trial], first: Trial) -> Iterator[Lever]:
    for idea in best.asked.ideas:
        pair = _pair(idea, best, trials)
        for number, (name, value) in enumerate(idea.options.items()):
            lever = _lever(name, value, idea.why, pair, first, best, idea.keeps_order)
            if number:
                # What they do together is told once.
                lever = dataclasses.replace(lever, step_change=None, peak_change=None)
            yield lever
    if best.asked.costs is not None:
        pair = _without_costs(best, trials)
        yield _lever(COSTS, None, _COSTS_WHY, pair, first, best, keeps_order=True)
    if best.ordered:
        pair = _in_xlas_order(best, trials)
        yield _lever(
            ORDER, None, _ORDER_WHY + _moved(best), pair, first, best, keeps_order=True
        )


def _lever(
    name: str,
    value: OptionValue | None,
    why: str,
    pair: tuple[Trial, Trial] | None,
    first: Trial,
    best: Trial,
    keeps_order: bool,
) -> Lever:
    if pair is None:
        # Nobody compiled the rest without it, so only all of them can be looked at.
        together = changes(_view(first).structure, _view(best).structure)
        return Lever(
            name,
            value,
            why,
            True,
            f"with the others: {together}",
            None,
            None,
            keeps_order,
        )
    without, with_ = pair
    one, other = _view(without), _view(with_)
    changed = changes(one.structure, other.structure)
    # In the order in which both were compiled, except where that is the lever.
    step = other.tuned_seconds - one.tuned_seconds
    if name != ORDER and with_.ordering and without.ordering:
        step = with_.seconds - without.seconds
    peak = None
    if without.peak_bytes is not None and with_.peak_bytes is not None:
        peak = with_.peak_bytes - without.peak_bytes
    return Lever(name, value, why, True, changed, step, peak, keeps_order)


def _view(trial: Trial) -> View:
    assert trial.view is not None
    return trial.view


def _pair(idea: Idea, best: Trial, trials: list[Trial]) -> tuple[Trial, Trial] | None:
    """Two candidates that differ in one idea only, with all others in place."""
    plain = {
        t.asked.keys: t
        for t in trials
        if t.view is not None
        and not t.ordered
        and not t.asked.costs
        and not t.asked.given
    }
    with_ = plain.get(best.asked.keys)
    without = plain.get(best.asked.keys - {idea.key})
    return (without, with_) if without and with_ else None


def _without_costs(best: Trial, trials: list[Trial]) -> tuple[Trial, Trial] | None:
    same = [
        t
        for t in trials
        if t.view is not None
        and not t.ordered
        and not t.asked.given
        and t.asked.keys == best.asked.keys
    ]
    without = [t for t in same if t.asked.costs is None]
    with_ = [t for t in same if t.asked.costs is not None]
    return (without[-1], with_[-1]) if without and with_ else None


def _in_xlas_order(best: Trial, trials: list[Trial]) -> tuple[Trial, Trial] | None:
    same = [
        t
        for t in trials
        if t.view is not None
        and not t.ordered
        and t.asked.options == best.asked.options
    ]
    return (same[-1], best) if same else None


def _moved(best: Trial) -> str:
    """The number of collectives on a second stream, and the largest move, in words."""
    if best.ordering is None:
        return ""
    aside = sum(map(len, best.ordering.on_second_stream.values()))
    streams = f"; {counted(aside, 'collective')} on a second stream" if aside else ""
    moves = best.ordering.displacements
    return streams + (f"; most of all, {moves[0]}" if moves else "")
