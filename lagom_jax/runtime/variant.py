"""One program of a step: its plan, and what runs for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

import jax

from lagom_jax.api import analyze
from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, LagomError, RefusedError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.plan import MeasuredSteps, Plan
from lagom_jax.planner import Planner
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import guard, nccl, place, say
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import ProcessGroup, Talk
from lagom_jax.runtime.decision import Choice, decide, plan_given, reasons
from lagom_jax.runtime.dispatch import NOT_KNOWN, Answer, answer_of, asked_of
from lagom_jax.runtime.executables import Executables, searched
from lagom_jax.runtime.online import OnlineSteps, online_steps
from lagom_jax.runtime.online_plans import measured_before
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.programs import Built, Stages, StepCall, first_step
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.views import tell
from lagom_jax.runtime.waiting import Interruptible
from lagom_jax.typed_json import plain, typed


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
        self._programs = Executables(devices)
        self._on_gpus, self._several = self._programs.on_gpus, self._programs.several
        self._choice: Choice | None = None
        self._turns: guard.Turns | None = None
        self._online: OnlineSteps | None = None
        self._talk = Talk(ProcessGroup(0, (0,)), "", 0.0)
        self._told: Rules | None = None
        self._work = Interruptible()
        self._doubt = ""
        self._decided = self._tried = False
        self._measuring = threading.Lock()
        self.runs = 0
        """The number of its steps, as long as somebody counts."""
        self.leaves_all_alone = False
        """True if no arguments whatever could have a plan here."""

    @property
    def _runs(self) -> Choice | None:
        return self._online.running if self._online is not None else self._choice

    @property
    def plan(self) -> Plan | None:
        """The plan in use."""
        choice = self._runs
        return choice.plan if choice is not None else None

    @property
    def open(self) -> bool:
        """True if others may know more of it than this process."""
        return (self._work.under_way and self._several) or bool(self._doubt)

    @property
    def _leads(self) -> bool:
        return self._talk.group.leads

    def _raise_in_doubt(self) -> None:
        # This process must stop: to go on would be worse.
        if self._doubt:
            raise InDoubtError(self._doubt)

    @property
    def settled(self) -> bool:
        """True if what runs is there to stay."""
        if self._online is not None:
            return self._online.over and not self._doubt
        # Whoever has run only once may have been for a first step.
        tried = self._choice is None or (self._tried and self.runs > 1)
        return tried and self._turns is None and not self._doubt

    def answer(self, stages: Stages, call: StepCall) -> Answer:
        """Runs what has settled, and says how the next calls get to it."""
        if not self.settled:
            return NOT_KNOWN
        choice = self._runs
        if choice is None:
            return asked_of(self._usual)(*call.args, **call.kwargs)
        built = self._programs.built(stages, choice)
        if built is None:
            return NOT_KNOWN
        return answer_of(built.run)(*call.rest, **call.named)

    def program(self, stages: Stages) -> Built | None:
        """The program of the plan, compiled if that is still to be done.

        Args:
            stages: The arguments that are there.

        Returns:
            None where the step runs as it was.

        Raises:
            InDoubtError: It cannot be built again, and other processes run it.
        """
        choice = self._runs
        try:
            return self._programs.planned(stages, choice) if choice else None
        except InDoubtError:
            raise
        except Exception as error:
            # No reason to stop a training that has come so far, strict or not.
            self._leave(error)
            return None

    def clear_cache(self) -> None:
        """Forgets what was compiled; what was decided stays."""
        self._programs.clear()

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
        gone = [other for other in others if other.runs < 2 and other is not self]
        search = functools.partial(self._decide, stages, gone)
        error = self._work.error(functools.partial(searched, search, self._cache))
        if isinstance(error, InDoubtError):
            self._doubt = str(error)
            raise error
        if self._online is None:
            self._programs.keep(self._choice)
        if error is None:
            self._decided = True
            return
        if self._options.strict and isinstance(error, LagomError):
            raise error
        if self._options.strict:
            raise LagomError(reasons(error)) from error
        LOG.debug("no plan is used", exc_info=error)
        self._warn(error)

    def _decide(self, stages: Stages, gone: list[Variant], compiler: Compiler) -> None:
        cluster = place.cluster_asked(self._options.cluster, self._devices)
        if cluster is None:
            # The first batch may lie on the CPU where the next ones do not.
            self.leaves_all_alone = not self._on_gpus and not place.any_gpus()
            if self._options.plan is not None and self.leaves_all_alone:
                made_for = plan_given(self._options.plan).holds_for.cluster
                raise LagomError(
                    f"there is no NVIDIA GPU; with cluster={made_for!r}, and as many "
                    "devices (JAX_NUM_CPU_DEVICES), the plan is compiled here, too"
                )
            return
        group = ProcessGroup.of(self._devices)
        if self._options.mode == "report":
            # Nothing is changed, so nobody has to agree.
            if group.leads:
                report = analyze(
                    stages.traced,
                    cluster=cluster,
                    compiler=compiler,
                    kernels=self._options.kernels,
                )
                tell(report, self._options.html, self._options.trace)
            return
        tells = functools.partial(self._tell, gone=gone)
        case_for = functools.partial(
            self._programs.case_for, stages, cluster, self._options, self._cache
        )
        build = functools.partial(self._programs.build, stages)
        if self._options.verify == "online":
            case_of = functools.partial(case_for, PlannerBeside)
            patience = self._options.patience
            self._talk = group.begin(f"{self._name} before", patience)
            choice = measured_before(self._talk, self._cache, case_of, build, tells)
            if choice is not None:
                self._take(choice)
                return
            self._talk, self._online = online_steps(
                *(self._name, group, patience, self._cache, case_of),
                *(self._programs, stages, self._usual, tells, self._warn),
                profiles=self._on_gpus,
            )
            return
        self._talk = group.begin(self._name, self._options.patience)
        case_of = functools.partial(case_for, Planner, compiler)
        self._take(decide(case_of, self._talk, build, tells))

    def _take(self, choice: Choice | None) -> None:
        if choice is None:
            return
        self._choice = choice
        measured = choice.plan.evidence.measured is not None
        if self._options.verify == "measure" and not measured:
            if self._talk.returned:
                raise InDoubtError(
                    "this process has come back into a job whose programs take turns "
                    "to be measured, and cannot know whose turn it is: start the job "
                    "again, or use verify='model'"
                )
            self._turns = guard.Turns()
        if self._leads:
            how = choice.how
            if not self._on_gpus:
                how += "; here, without GPUs, it changes nothing"
            say.visibly(say.summary(choice.plan, how))

    def _tell(self, rules: Rules | None, gone: Iterable[Variant] = ()) -> None:
        """Tells NCCL what belongs to the program that runs next."""
        if rules is self._told:
            return
        if not nccl.HERE.tell(self, rules, self._agrees, gone):
            raise LagomError("not all processes could tell NCCL what the plan says")
        self._told = rules

    def _agrees(self, point: str, said: str) -> bool:
        try:
            self._talk.agree(Word(f"rules {point} {said}"), lambda words: "")
        except RefusedError as error:
            LOG.warning("NCCL is told nothing new: %s", error)
            return False
        return True

    def known(self, stages: Stages) -> Stages:
        """Arguments of the same kind that were there first."""
        return self._programs.known(stages)

    def serves(self, stages: Stages) -> bool:
        """True if other arguments need no decision, and no program, of their own."""
        known = self._decided and not self.open and stages.devices == self._devices
        return known and self._programs.serve(stages)

    def run_step(self, stages: Stages, call: StepCall) -> Any:
        """Runs the step."""
        self._raise_in_doubt()
        self.runs += 1
        try:
            return self._step(stages, call)
        except InDoubtError as error:
            self._doubt = str(error)
            raise

    def _step(self, stages: Stages, call: StepCall) -> Any:
        if self._online is not None:
            return self._online.run(stages, call)
        # Two at a time tell nothing of how long one takes. Nobody waits for the other:
        # a step may call itself from the host.
        if self._turns is not None and self._measuring.acquire(blocking=False):
            try:
                if self._turns is not None:
                    return self._measured(self._turns, stages, call)
            finally:
                self._measuring.release()
        return self._run(self._turns is None, stages, call)

    def _run(self, tuned: bool, stages: Stages, call: StepCall) -> Any:
        """Runs the plan's program, or the step as it was where that fails at once."""
        program = self.program(stages) if tuned else None
        choice = self._choice
        if program is None or choice is None:
            return self._usual(*call.args, **call.kwargs)
        if self._tried:
            return call.of(program)
        # Other processes may be inside a collective, and wait there for this one.
        last = self._several or self._options.strict
        usual = None if last else self._usual
        cache = self._cache if self._leads else None
        result, error = first_step(choice.plan, program, call, usual, cache)
        self._tried = True
        if error is not None:
            self._leave(error)
        return result

    def _warn(self, error: BaseException) -> None:
        say.warn_once(
            f"the program as it was runs, since {reasons(error)}", first=self._leads
        )

    def _leave(self, error: Exception | None = None) -> None:
        """Goes back to the program as it was, and gives the other's memory back."""
        if error is not None:
            self._warn(error)
        self._choice = self._turns = None
        self._programs.keep(None)

    @contextlib.contextmanager
    def _leaving(self) -> Generator[None, None, None]:
        """Goes back where something fails of which all processes know."""
        try:
            yield
        except InDoubtError:
            raise
        except LagomError as error:
            self._leave(error)

    def _measured(self, turns: guard.Turns, stages: Stages, call: StepCall) -> Any:
        """Runs the step, and takes its time."""
        choice, side = self._choice, turns.side
        assert choice is not None
        with self._leaving():
            self._tell(None if side == "baseline" else choice.rules)
        if self._turns is not turns:
            return self._run(True, stages, call)
        # What earlier steps still do is not this one's.
        jax.block_until_ready((call.rest, call.named))
        start = time.perf_counter()
        result = self._run(side == "tuned", stages, call)
        jax.block_until_ready(result)
        turns.times.append((side, time.perf_counter() - start))
        if turns.complete and self._turns is turns:
            with self._leaving():
                self._conclude(turns, choice)
        return result

    def _conclude(self, turns: guard.Turns, choice: Choice) -> None:
        """Keeps the program that was faster, by the clock of the first process."""
        content = self._talk.agree(
            Word("measured"), lambda words: json.dumps(plain(turns.judged()))
        )
        measured = typed(MeasuredSteps, json.loads(content))
        self._tell(choice.rules if measured.kept else None)
        plan = choice.plan
        if self._leads:
            say.visibly(f"{plan.holds_for.program}: {in_words(measured)}")
        evidence = dataclasses.replace(plan.evidence, measured=measured)
        plan = dataclasses.replace(plan, evidence=evidence)
        # What noise may have hidden is no verdict: the next job looks again.
        loss = measured.tuned_seconds - measured.baseline_seconds
        slower = loss > measured.noise_seconds
        if self._leads and (measured.kept or slower):
            self._cache.keep(choice.parts, plan)
        if not measured.kept:
            self._leave()
            return
        self._choice = dataclasses.replace(choice, plan=plan)
        self._turns = None
