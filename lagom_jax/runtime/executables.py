"""Executables of one program of a step, for each kind of its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from lagom_jax.runtime import programs
from lagom_jax.runtime.arguments import settled_sharding
from lagom_jax.runtime.programs import ArgumentForm, Built, Stages


class Executables:
    """The executables of a program, as it is and as a plan asks for.

    Forms that are called alike share what was compiled for one of them.
    """

    def __init__(self) -> None:
        """There are none yet."""
        self._forms: list[ArgumentForm] = []

    def form(self, variant: Any, stages: Stages) -> ArgumentForm:
        """Another kind of arguments.

        Args:
            variant: The program that they lead to.
            stages: As they were traced and lowered.
        """
        for other in self._forms:
            if other.stages.is_called_as(stages):
                stages = dataclasses.replace(other.stages, facts=stages.facts)
                break
        form = ArgumentForm(variant, stages)
        self._forms.append(form)
        return form

    def usual(self, form: ArgumentForm) -> Built:
        """The program as it was, compiled if that is still to be done."""
        if form.usual is None:
            shared = self._shared(form, "usual")
            form.usual = shared or programs.usual(form.stages)
        return form.usual

    def planned(self, form: ArgumentForm, build: Callable[[], Built]) -> Built:
        """The program of the plan; `build` compiles it where nothing is there."""
        if form.planned is None:
            form.planned = self._shared(form, "planned") or build()
        return form.planned

    def _shared(self, form: ArgumentForm, kind: str) -> Built | None:
        for other in self._forms:
            built: Built | None = getattr(other, kind)
            if built is not None and other.stages.lowered is form.stages.lowered:
                return programs.adapted(built, form.stages)
        return None

    def forget(self, *, usual: bool = True, planned: bool = True) -> None:
        """Gives the memory of programs back."""
        for form in self._forms:
            form.usual = None if usual else form.usual
            form.planned = None if planned else form.planned

    def serve(self, stages: Stages) -> bool:
        """True if what was compiled here takes other arguments as they are.

        Where an array lies nowhere yet, as fresh parameters do, the compiler chooses
        how it is cut. What it returns comes back cut in this way, and jax.jit compiles
        the same program once more for it.

        Args:
            stages: As the other arguments were lowered.
        """
        return any(
            form.stages.differs_in_shardings(stages) and _takes(form, stages)
            for form in self._forms
        )


def _takes(form: ArgumentForm, stages: Stages) -> bool:
    built = form.planned or form.usual
    if built is None or form.stages.facts is None or stages.facts is None:
        return False
    (ours, context), (others, other_context) = form.stages.facts, stages.facts
    compiled: Any = built.compiled
    chosen = jax.tree.leaves(compiled.input_shardings, is_leaf=lambda x: x is None)
    if context != other_context or not len(ours) == len(others) == len(chosen):
        return False
    for our, other, place in zip(ours, others, chosen, strict=True):
        before, now = settled_sharding(our), settled_sharding(other)
        if now is None or before is not None:
            if before != now:
                return False
        # What the program does not use lies anywhere.
        elif place is not None and not place.is_equivalent_to(now, _rank(other)):
            return False
    return True


def _rank(fact: Any) -> int:
    # Shape, type, weakness, sharding, and whether it is settled; others have a type
    # before that.
    return len(fact[-5])
