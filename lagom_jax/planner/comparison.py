"""Trials beside each other: which is faster, simpler, or the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from lagom_jax.planner.trial import Asked, Trial
from xla_flags import Pin, known, print_option, recipes

BETTER: Final = 5e-4
"""Less than this share of the step is no gain."""


def compared(trial: Trial, best: Trial) -> Trial:
    """A trial with a status that says what it is beside the best before it."""
    if trial.status != "ok" or trial.view is None or best.view is None:
        return trial
    if trial.view.structure.digest == best.view.structure.digest:
        reason = f"the same program as {best.label}"
        return dataclasses.replace(trial, status="no effect", reason=reason)
    if not gains(trial, best):
        change = trial.seconds / best.seconds - 1
        if abs(change) < BETTER:
            reason = f"as fast as {best.label}{_each(trial)}"
            return dataclasses.replace(trial, status="no gain", reason=reason)
        reason = f"{change:+.1%} beside {best.label}{_each(trial)}"
        return dataclasses.replace(trial, status="slower", reason=reason)
    return trial


def as_published(trial: Trial, plain: Trial) -> Trial:
    """A trial of others' recommendation, beside the program as it is."""
    if trial.status != "ok" or trial.view is None or plain.view is None:
        return trial
    if trial.view.structure.digest == plain.view.structure.digest:
        return dataclasses.replace(
            trial, status="no effect", reason="the program stays as it is"
        )
    change = trial.view.default_seconds / plain.view.default_seconds - 1
    reason = f"{change:+.1%} beside the program as it is, both with NCCL's own choices"
    worse = change > BETTER
    return dataclasses.replace(trial, status="slower" if worse else "ok", reason=reason)


def simpler(trial: Trial, best: Trial) -> bool:
    """True if it is the same program with fewer options."""
    if trial.view is None or best.view is None:
        return False
    same = trial.view.structure.digest == best.view.structure.digest
    return same and len(trial.asked.options) < len(best.asked.options)


def as_compiled(trial: Trial) -> float:
    """Seconds of the step in the order in which it was compiled."""
    assert trial.view is not None
    return trial.view.tuned_seconds


def gains(trial: Trial, best: Trial) -> bool:
    """True if a trial is faster by more than rounding."""
    return trial.seconds < best.seconds * (1 - BETTER)


def _each(trial: Trial) -> str:
    return ", each in the order found for it" if trial.ordering is not None else ""


def published(jaxlib: str, pins: Iterable[Pin]) -> Iterator[Asked]:
    """Published recipes, as far as compiler options can express them.

    Example:
        >>> "recipe o1" in {asked.name for asked in published("0.10.2", ())}
        True
    """
    pinned = {pin.name for pin in pins}
    for recipe in recipes():
        options = {
            name: print_option(known()[name], value)
            for name, value in recipe.for_version(jaxlib).items()
            if "compiler_options" in known()[name].routes and name not in pinned
        }
        if options:
            yield Asked(title=f"recipe {recipe.name}", given=tuple(options.items()))
