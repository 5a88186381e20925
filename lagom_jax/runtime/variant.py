"""One program of a step: its plan, and what runs for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from lagom_jax.api import analyze
from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, LagomError
from lagom_jax.plan import Plan
from lagom_jax.planner import Planner
from lagom_jax.report.plan_summary import summary
from lagom_jax.runtime import nccl, place, say
from lagom_jax.runtime.agenda import Guide
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.case import Case
from lagom_jax.runtime.coordination import ProcessGroup, Talk
from lagom_jax.runtime.decision import Decision
from lagom_jax.runtime.dispatch import NOT_KNOWN, Answer, answer_of, asked_of
from lagom_jax.runtime.executables import Executables
from lagom_jax.runtime.guard import Turns
from lagom_jax.runtime.offer import Choice
from lagom_jax.runtime.online import OnlineGuide
from lagom_jax.runtime.online_plans import OnlinePlans
from lagom_jax.runtime.options import Options, plan_given
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.programs import Built, Stages, StepCall
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_profile import profile_for
from lagom_jax.runtime.steps import Steps
from lagom_jax.runtime.views import tell
from lagom_jax.runtime.waiting import Interruptible


class Variant:
    """A program of a step: as it is, until a plan is decided on.

    What is decided belongs to the program, not to the arguments that were there first:
    another process may have met others that lead to the same program.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        cache: Cache,
        usual: Callable[..., Any],
        devices: tuple[Any, ...],
    ) -> None:
        """Sets it up for all devices that it runs on; nothing happens yet."""
        self._name, self._options, self._cache = name, options, cache
        self._usual, self._devices = usual, devices
        self.programs = Executables(devices)
        """Its compiled programs; what was decided outlasts them."""
        self._talk = Talk(ProcessGroup(0, (0,)), "", 0.0)
        self._steps = self._guided(Guide())
        self._work = Interruptible()
        self._doubt = ""
        self._decided = False
        self.runs = 0
        """The number of its steps, as long as somebody counts."""
        self.leaves_all_alone = False
        """True if no arguments whatever could have a plan here."""

    def _guided(self, guide: Guide) -> Steps:
        """The steps as a guide says what they run."""
        options = self._options
        return Steps(
            *(self.programs, self._usual, self._talk, guide, self._cache),
            strict=options.strict and options.verify != "online",
        )

    @property
    def plan(self) -> Plan | None:
        """The plan in use."""
        choice = self._steps.running
        return choice.plan if choice is not None else None

    @property
    def open(self) -> bool:
        """True if others may know more of it than this process."""
        return (self._work.under_way and self.programs.several) or bool(self._doubt)

    @property
    def lasts(self) -> bool:
        """True if what came of it holds for later calls: others go by it."""
        return self.open or (
            self.programs.several and (self._decided or not self._options.strict)
        )

    def _raise_in_doubt(self) -> None:
        # This process must stop: to go on would be worse.
        if self._doubt:
            raise InDoubtError(self._doubt)

    @property
    def settled(self) -> bool:
        """True if what runs is there to stay."""
        # Whoever has run only once may have been for a first step.
        lasting = self.plan is None or self.runs > 1
        return self._steps.settled and lasting and not self._doubt

    def answer(self, stages: Stages, call: StepCall) -> Answer:
        """Runs what has settled, and says how the next calls get to it."""
        if not self.settled:
            return NOT_KNOWN
        choice = self._steps.running
        if choice is None:
            return asked_of(self._usual)(*call.args, **call.kwargs)
        built = self.programs.built(stages, choice)
        if built is None:
            return NOT_KNOWN
        return answer_of(built.run)(*call.rest, **call.named)

    def program(self, stages: Stages) -> Built | None:
        """The program of the plan, as `Steps.program` has it."""
        return self._steps.program(stages)

    def decide(self, stages: Stages, others: Iterable[Variant]) -> None:
        """Looks for a plan and builds its program; nothing is executed.

        Args:
            stages: The arguments that are there.
            others: Variants of the same function.

        Raises:
            InDoubtError: Processes may be about to run different programs.
            LagomError: There is no plan, and the user asked for an error.
        """
        self._raise_in_doubt()
        # Those that ran once were for a first step; NCCL can forget them.
        gone = [one.programs for one in others if one.runs < 2 and one is not self]
        # Without a place for decisions nothing that is compiled is kept, either.
        compiler = Compiler(store=self._cache.folder is not None)

        def search() -> None:
            with compiler:
                if not self._decided:
                    self._decide(stages, gone, compiler)
            self._decided = True

        error = self._work.error(search, compiler.close)
        if isinstance(error, InDoubtError):
            self._doubt = str(error)
            raise error
        self.programs.keep(self._steps.running)
        if error is None:
            return
        if self._options.strict and isinstance(error, LagomError):
            raise error
        if self._options.strict:
            raise LagomError(say.reasons(error)) from error
        LOG.debug("no plan is used", exc_info=error)
        say.fallen_back(error, first=self._talk.group.leads)

    def _decide(
        self, stages: Stages, gone: list[Executables], compiler: Compiler
    ) -> None:
        options, on_gpus = self._options, self.programs.on_gpus
        cluster = place.cluster_asked(options.cluster, self._devices)
        if cluster is None:
            self._leave_alone()
            return
        group = ProcessGroup.of(self._devices)
        if options.mode == "report":
            # Nothing is changed, so nobody has to agree.
            if group.leads:
                kernels = options.kernels
                report = analyze(
                    stages.traced, cluster=cluster, compiler=compiler, kernels=kernels
                )
                tell(report, options.html, options.trace)
            return
        budget = place.budget_here(options.budget, self._devices if on_gpus else ())
        self.programs.most_bytes = budget.memory(cluster.gpu.memory_bytes)
        online, cache = options.verify == "online", self._cache
        told = nccl.HERE if on_gpus else None

        def case_of(compiler: Compiler) -> Case:
            planner = (PlannerBeside if online else Planner)(
                stages.traced,
                cluster=cluster,
                compiler=compiler,
                kernels=options.kernels,
            )
            return Case(planner, options, budget, cache, told)

        label = f"{self._name} before" if online else self._name
        self._talk = talk = group.begin(label, options.patience)
        build = functools.partial(self.programs.build, stages)
        tells = functools.partial(nccl.HERE.tell, self.programs, talk=talk, gone=gone)
        decision = Decision(talk, functools.partial(case_of, compiler), build, tells)
        if not online:
            self._take(decision.choices())
        elif found := decision.measured_before(self._cache):
            self._take(found)
        else:
            self._begin_online(group, stages, case_of)

    def _leave_alone(self) -> None:
        # The first batch may lie on the CPU where the next ones do not.
        self.leaves_all_alone = not self.programs.on_gpus and not place.any_gpus()
        if self._options.plan is not None and self.leaves_all_alone:
            made_for = plan_given(self._options.plan).holds_for.cluster
            raise LagomError(
                f"there is no NVIDIA GPU; with cluster={made_for!r}, and as many "
                "devices (JAX_NUM_CPU_DEVICES), the plan is compiled here, too"
            )

    def _begin_online(
        self, group: ProcessGroup, stages: Stages, case_of: Callable[[Compiler], Case]
    ) -> None:
        """Lets the job train, and plans meanwhile."""
        returned, patience = self._talk.returned, self._options.patience
        # While these talk about plans, in a thread, those talk about steps.
        talk = group.begin(self._name, patience)
        self._talk = group.begin(f"{self._name} steps", patience)
        self._talk.returned = returned
        profile, cache = profile_for(on_gpus=self.programs.on_gpus), self._cache
        source = OnlinePlans(talk, cache, case_of, self.programs, stages, profile)
        guide = OnlineGuide(self._name, source, cache, profile, leads=group.leads)
        self._steps = self._guided(guide)

    def _take(self, found: tuple[Choice, ...]) -> None:
        """Lets the plan run that was decided on, if there is one."""
        for choice in found[:1]:
            measured = choice.plan.evidence.measured is not None
            turns = self._options.verify == "measure" and not measured
            guide = Turns(choice, self._cache) if turns else Guide(choice)
            self._steps = self._guided(guide)
            if self._talk.group.leads:
                how = choice.how
                if not self.programs.on_gpus:
                    how += "; here, without GPUs, it changes nothing"
                say.visibly(summary(choice.plan, how))

    def serves(self, stages: Stages) -> bool:
        """True if other arguments need no decision, and no program, of their own."""
        known = self._decided and not self.open and stages.devices == self._devices
        return known and self.programs.serve(stages)

    def run_step(self, stages: Stages, call: StepCall) -> Any:
        """Runs the step."""
        self._raise_in_doubt()
        self.runs += 1
        try:
            return self._steps.run(stages, call)
        except InDoubtError as error:
            self._doubt = str(error)
            raise
