"""Executables of one program of a step, for each kind of its arguments."""

from __future__ import annotations

from typing import Any

from lagom_jax.errors import InDoubtError, PlanError
from lagom_jax.plan import Plan
from lagom_jax.runtime import place, programs
from lagom_jax.runtime.arguments import settled_sharding
from lagom_jax.runtime.case import memory_limit
from lagom_jax.runtime.offer import Choice, program_of
from lagom_jax.runtime.programs import Built, Stages
from lagom_jax.runtime.say import reasons


class Executables:
    """The programs that plans ask for, compiled once for all arguments of a kind."""

    def __init__(self, devices: tuple[Any, ...]) -> None:
        """Takes all devices that the program runs on; nothing is compiled yet."""
        self.on_gpus, self._one_device = place.on_gpus(devices), len(devices) < 2
        self.several = len({device.process_index for device in devices}) > 1
        self.most_bytes = 0
        """Bytes that a program may take on a GPU, if the step as it was takes less."""
        self.clear()

    def clear(self) -> None:
        """Forgets all, which is traced and lowered again where it comes."""
        self._stages: dict[Any, Stages] = {}
        self._built: dict[tuple[str, Stages], Built] = {}

    def known(self, stages: Stages) -> Stages:
        """Those of the same kind that were there first."""
        return self._stages.setdefault(stages.kind, stages)

    def build(self, stages: Stages, plan: Plan) -> Built:
        """The program that a plan asks for; see `programs.build`."""
        key = program_of(plan), stages
        if key not in self._built:
            limit = memory_limit(self.most_bytes, plan) if self.on_gpus else None
            self._built[key] = programs.build(
                stages, plan, on_gpus=self.on_gpus, memory_limit=limit
            )
        return self._built[key]

    def built(self, stages: Stages, choice: Choice) -> Built | None:
        """The program of a plan, if it is there."""
        return self._built.get((choice.program, stages))

    def planned(self, stages: Stages, choice: Choice) -> Built:
        """The program of a plan that runs, compiled where nothing is left of it.

        All have agreed to run it, so that nobody is asked, and nobody may go back.

        Raises:
            InDoubtError: It cannot be compiled, and the other processes run it.
        """
        if (found := self.built(stages, choice)) is not None:
            return found
        try:
            built = self.build(stages, choice.plan)
            if built.collectives != choice.collectives:
                raise PlanError("it communicates otherwise than before")
        except Exception as error:
            if self.several:
                raise InDoubtError(
                    "the plan's program, which the other processes run, cannot be "
                    f"built again here ({reasons(error)}): this process must stop"
                ) from error
            raise
        return built

    def keep(self, choice: Choice | None) -> None:
        """Gives back the memory of all programs but those of a plan."""
        kept = choice.program if choice is not None else None
        for key in tuple(self._built):
            if key[0] != kept:
                del self._built[key]

    def serve(self, stages: Stages) -> bool:
        """True if what was compiled here takes other arguments as they are.

        Where an array lies nowhere yet, as fresh parameters do, the compiler chooses
        how it is cut. What it returns comes back cut in this way, and jax.jit compiles
        the same program once more for it.

        Args:
            stages: As the other arguments were lowered.
        """
        ours = self._stages.get(stages.kind)
        # One program, but for the shardings of arguments.
        if self._one_device or ours is None or ours.inner != stages.inner:
            return False
        # Another thread may be building one.
        built = (one.run for (_, of), one in tuple(self._built.items()) if of is ours)
        # jax has the program as it is, if that is what runs.
        return _takes(next(built, None) or ours.compile(), ours, stages)


def _takes(compiled: Any, form: Stages, stages: Stages) -> bool:
    if form.facts is None or stages.facts is None:
        return False
    (ours, context), (others, other_context) = form.facts, stages.facts
    # None for what the program does not use.
    chosen = compiled.in_tree.flatten_up_to(compiled.input_shardings)
    if context != other_context or not len(ours) == len(others) == len(chosen):
        return False
    for our, other, cut in zip(ours, others, chosen, strict=True):
        before, now = settled_sharding(our), settled_sharding(other)
        if now is None or before is not None:
            if before != now:
                return False
        elif cut is not None and not cut.is_equivalent_to(now, _rank(other)):
            return False
    return True


def _rank(fact: Any) -> int:
    # Shape, type, weakness, sharding, and whether it is settled; others have a type
    # before that.
    return len(fact[-5])
