"""Executables of one program of a step, for each kind of its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, PlanError
from lagom_jax.plan import Plan
from lagom_jax.planner import Planner
from lagom_jax.runtime import nccl, place, programs
from lagom_jax.runtime.arguments import settled_sharding
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.decision import Case, Choice, memory_limit, reasons
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.programs import ArgumentForm, Built, Stages


class Executables:
    """The executables of a program, as it is and as a plan asks for.

    Forms that are called alike share what was compiled for one of them.
    """

    def __init__(self, devices: tuple[Any, ...]) -> None:
        """Takes all devices that the program runs on; nothing is compiled yet."""
        self._devices, self.on_gpus = devices, place.on_gpus(devices)
        self.several = len({device.process_index for device in devices}) > 1
        self._forms: list[ArgumentForm] = []
        self._most_bytes = 0

    def case_for(
        self,
        form: ArgumentForm,
        cluster: Cluster,
        options: Options,
        cache: Cache,
        kind: type[Planner],
        compiler: Compiler,
    ) -> Case:
        """The step as a decision about it has it.

        Args:
            form: The arguments that are there.
            cluster: The cluster to plan for.
            options: The user's.
            cache: The place of earlier decisions.
            kind: The class of the planner.
            compiler: The compiler that it uses.
        """
        planner = kind(
            form.stages.traced,
            cluster=cluster,
            compiler=compiler,
            kernels=options.kernels,
        )
        devices = self._devices if self.on_gpus else ()
        budget = place.budget_here(options.budget, devices)
        told = nccl.HERE if self.on_gpus else None
        self._most_bytes = budget.memory(cluster.gpu.memory_bytes)
        return Case(planner, options, budget, cache, compiler, told)

    def form(self, variant: Any, stages: Stages) -> ArgumentForm:
        """Another kind of arguments.

        Args:
            variant: The program that they lead to.
            stages: As they were traced and lowered.
        """
        # On one device it is in the results whether arguments were committed to it.
        for other in self._forms if len(self._devices) > 1 else ():
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

    def build(self, form: ArgumentForm, plan: Plan) -> Built:
        """Compiles the program that a plan asks for; see `programs.build`."""
        limit = memory_limit(self._most_bytes, plan) if self.on_gpus else None
        return programs.build(
            form.stages, plan, on_gpus=self.on_gpus, memory_limit=limit
        )

    def planned(self, choice: Choice, form: ArgumentForm) -> Built:
        """The program of a plan, compiled again where nothing is left of it.

        Raises:
            InDoubtError: It cannot be, and the other processes run it.
        """
        if form.planned is None:
            shared = self._shared(form, "planned")
            form.planned = shared or self.again(choice, form)
        return form.planned

    def again(self, choice: Choice, form: ArgumentForm) -> Built:
        """Compiles a plan's program again, or for other arguments.

        All have agreed to run it, so that nobody is asked, and nobody may go back.

        Raises:
            InDoubtError: It cannot be, and the other processes run it.
        """
        try:
            built = self.build(form, choice.plan)
            if built.collectives != choice.built.collectives:
                raise PlanError("it communicates otherwise than before")
        except Exception as error:
            if self.several:
                raise InDoubtError(
                    "the plan's program, which the other processes run, cannot be "
                    f"built again here ({reasons(error)}): this process must stop"
                ) from error
            raise
        return built

    def _shared(self, form: ArgumentForm, kind: str) -> Built | None:
        for other in self._forms:
            built: Built | None = getattr(other, kind)
            if built is not None and other.stages.lowered is form.stages.lowered:
                return programs.adapted(built, form.stages)
        return None

    def clear(self) -> None:
        """Forgets all forms, which are traced and lowered again where they come."""
        self._forms.clear()

    def forget(self, *, usual: bool = False, planned: bool = False) -> None:
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
        return len(self._devices) > 1 and any(
            form.stages.differs_in_shardings(stages) and _takes(form, stages)
            for form in self._forms
        )


def searched(
    search: Callable[[Compiler], None], cache: Cache
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A search for a plan with a compiler of its own, and what ends it.

    Args:
        search: The search.
        cache: The place of decisions; without one nothing that is compiled is kept.
    """
    compiler = Compiler(store=cache.folder is not None)

    def work() -> None:
        with compiler:
            search(compiler)

    return work, compiler.close


def _takes(form: ArgumentForm, stages: Stages) -> bool:
    built = form.planned or form.usual
    if built is None or form.stages.facts is None or stages.facts is None:
        return False
    (ours, context), (others, other_context) = form.stages.facts, stages.facts
    compiled: Any = built.compiled
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
