"""Requests for orders that are looked for from a known one, beside another step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from lagom_jax.order import Ordering
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.planner.decide import Refused, Taken
from lagom_jax.planner.orders_found import digest_of
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.trial import Trial, captured_module, edit_of


class Sought(NamedTuple):
    """The request for an order, beside another step."""

    begin: Ordering
    """The one that is known, of the same module."""
    members: tuple[int, ...] | None
    """Places in the ensemble of the models that may be asked; None for all."""
    beside: Scored
    """Times of the other step."""


def on_rings(
    trial: Trial, usual: Trial, taken: Taken, trials: Sequence[Trial]
) -> Sought | None:
    """The request for an order off the rings, from the one that is known on them.

    None where XLA's scheduler left another module than on the rings, of which nothing
    is known.

    Args:
        trial: The step off the rings.
        usual: The same on the rings.
        taken: The best that is known on the rings.
        trials: All candidates.
    """
    options = usual.asked.options
    same = (t for t in trials if t.ordered and t.asked.options == options)
    begin = next((t.ordering for t in same), usual.ordering)
    if not (begin and trial.captured and taken.scored):
        return None
    here = dataclasses.replace(captured_module(trial), placed={})
    if digest_of(here) != digest_of(captured_module(usual)):
        return None
    return Sought(begin, None, taken.scored)


def answered(refused: Refused, plain: Trial) -> Sought:
    """The request for an order by which models no longer refuse a step.

    Args:
        refused: The step, in the order that is known.
        plain: The same as XLA's scheduler left it.
    """
    begin = refused.trial.ordering or plain.ordering or _as_scheduled(plain)
    return Sought(begin, refused.models, refused.beside)


def _as_scheduled(plain: Trial) -> Ordering:
    seconds = plain.tuned_seconds
    return Ordering({}, {}, seconds, seconds, 0, 0, ())


def edits_of(plain: Trial, trials: Sequence[Trial]) -> list[ScheduleEdit]:
    """The orders that a step was compiled in before.

    Args:
        plain: The step as XLA's scheduler left it.
        trials: All candidates.
    """
    options = plain.asked.options
    return [
        edit_of(plain.schedule, trial.ordering)
        for trial in trials
        if trial.ordered and trial.ordering and trial.asked.options == options
    ]
