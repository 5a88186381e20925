"""One program of a step: its plan, and what runs for it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, LagomError, PlanError, RefusedError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.plan import MeasuredSteps, Plan
from lagom_jax.planner import Planner
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import guard, nccl, place, programs, say
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import ProcessGroup, Talk
from lagom_jax.runtime.decision import Case, Choice, decide, memory_limit, reasons
from lagom_jax.runtime.online import OnlineSteps
from lagom_jax.runtime.online_plans import ProgramsOfStep, online_steps
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.programs import (
    ArgumentForm,
    Built,
    Stages,
    first_step,
    some_deleted,
)
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.views import report_step
from lagom_jax.runtime.waiting import Background, OwnError
from lagom_jax.typed_json import typed


class Variant:
    """A program of a step: as it is, until a plan is decided on.

    What is decided belongs to the program, not to the arguments that were there first:
    another process may have met others that lead to the same program.
    """

    def __init__(self, name: str, options: Options, cache: Cache) -> None:
        """Sets it up; nothing happens yet."""
        self._name, self._options, self._cache = name, options, cache
        self._forms: list[ArgumentForm] = []
        self._choice: Choice | None = None
        self._turns: guard.Turns | None = None
        self._online: OnlineSteps | None = None
        self._talk: Talk | None = None
        self._group = ProcessGroup(0, (0,))
        self._case: Case | None = None
        self._told: Rules | None = None
        self._work: Background[None] | None = None
        self._stop: Callable[[], None] = lambda: None
        self._doubt = ""
        self._tried = False
        self._on_gpus = False
        self._measuring = threading.Lock()
        self.runs = 0
        """The number of its steps, as long as somebody counts."""
        self.leaves_all_alone = False
        """True if no arguments whatever could have a plan here."""

    @property
    def plan(self) -> Plan | None:
        """The plan in use."""
        if self._online is not None:
            running = self._online.running
            return None if running is None else running.plan
        return self._choice.plan if self._choice is not None else None

    @property
    def open(self) -> bool:
        """True if others may know more of it than this process."""
        talks = self._work is not None and len(self._group.members) > 1
        return talks or bool(self._doubt)

    @contextlib.contextmanager
    def _latched(self) -> Iterator[None]:
        """Keeps in mind that this process must stop: to go on would be worse."""
        try:
            yield
        except InDoubtError as error:
            self._doubt = str(error)
            raise

    def _raise_in_doubt(self) -> None:
        if self._doubt:
            raise InDoubtError(self._doubt)

    def settled(self, form: ArgumentForm) -> Built | None:
        """The program that runs from now on; None while that is open."""
        if self._online is not None:
            usual, run = self._as_it_was(form), self._online.run
            return Built(functools.partial(run, form), usual.exact, usual.compiled)
        if self._turns is not None or (self._choice is not None and not self._tried):
            return None
        return form.planned if self._choice is not None else form.usual

    def program(self, form: ArgumentForm) -> Built:
        """The program that runs, compiled if that is still to be done.

        Raises:
            InDoubtError: It cannot be built again, and other processes run it.
        """
        choice = self._choice
        if choice is None:
            return self._as_it_was(form)
        if form.planned is None:
            self._rebuild(choice, form)
        return form.planned or self._as_it_was(form)

    def clear_cache(self) -> None:
        """Forgets what was compiled; what was decided stays."""
        for form in self._forms:
            form.usual = form.planned = None
        if self._online is not None:
            self._online.forget()

    def decide(
        self, form: ArgumentForm, devices: tuple[Any, ...], others: Iterable[Variant]
    ) -> None:
        """Looks for a plan and builds its program; nothing is executed.

        Args:
            form: The arguments that are there.
            devices: All that the program runs on.
            others: Variants of the same function.

        Raises:
            InDoubtError: Processes may be about to run different programs.
            LagomError: There is no plan, and the user asked for an error.
        """
        self._raise_in_doubt()
        self._on_gpus = place.on_gpus(devices)
        # Those that ran once were for a first step; NCCL can forget them.
        gone = [other for other in others if other.runs < 2 and other is not self]
        try:
            with self._latched():
                self._decide(form, devices, gone)
        except OwnError as ours:
            error = ours.error
            if self._options.strict:
                if isinstance(error, LagomError):
                    raise error from None
                raise LagomError(reasons(error)) from error
            LOG.debug("no plan is used", exc_info=error)
            self._warn(error)

    def _decide(
        self, form: ArgumentForm, devices: tuple[Any, ...], gone: list[Variant]
    ) -> None:
        with OwnError.marked():
            cluster = place.cluster_for(self._options, devices)
            # The first batch may lie on the CPU where the next ones do not.
            nowhere = cluster is None and not self._on_gpus
            self.leaves_all_alone = nowhere and not place.any_gpus()
            self._group = (
                ProcessGroup.of(devices) if cluster is not None else self._group
            )
        if cluster is None:
            return
        if self._options.mode == "report":
            if self._group.leads:
                traced = form.stages.traced
                self._wait(
                    lambda compiler: report_step(
                        traced, cluster, compiler, self._options
                    )
                )
            return

        def case_of(compiler: Compiler, kind: type[Planner] = Planner) -> Case:
            planner = kind(form.stages.traced, cluster=cluster, compiler=compiler)
            own = devices if self._on_gpus else ()
            budget = place.budget_here(self._options.budget, own)
            told = nccl.HERE if self._on_gpus else None
            found = (planner, self._options, budget, self._cache, compiler, told)
            self._case = Case(*found)
            return self._case

        tell = functools.partial(self._tell, gone=gone)
        if self._options.verify == "online":
            made = ProgramsOfStep(
                self._as_it_was,
                functools.partial(self._build, form),
                self._built_again,
                form,
            )
            self._talk, self._online = online_steps(
                *(self._name, self._group, self._options.patience, self._cache),
                functools.partial(case_of, kind=PlannerBeside),
                *(made, tell, self._warn),
            )
            return

        def work(compiler: Compiler) -> None:
            talk = self._talk = self._group.begin(self._name, self._options.patience)
            case: Case | Exception
            try:
                case = case_of(compiler)
            except Exception as error:
                case = error
            build = functools.partial(self._build, form)
            self._take(decide(case, talk, build, tell), form)

        self._wait(work)

    def _wait(self, work: Callable[[Compiler], None]) -> None:
        """Does something that may take long, until somebody calls this process away.

        The others do not know that: they are answered all the same, and what comes of
        it holds for the next call.
        """
        if self._work is None:
            compiler = Compiler(store=self._cache.folder is not None)

            def done() -> None:
                with compiler, OwnError.marked():
                    work(compiler)

            self._work, self._stop = Background(done), compiler.close
        try:
            self._work.result(self._stop)
        except (OwnError, InDoubtError):
            self._work = None
            raise
        self._work = None

    def _build(self, form: ArgumentForm, plan: Plan) -> Built:
        assert self._case is not None
        limit = memory_limit(self._case, plan) if self._on_gpus else None
        return programs.build(
            form.stages, plan, on_gpus=self._on_gpus, memory_limit=limit
        )

    def _rebuild(self, choice: Choice, form: ArgumentForm) -> None:
        """Builds a plan's program again, or for other arguments.

        All have agreed to run it, so that nobody is asked, and nobody may go back.
        """
        try:
            built = self._built_again(choice, form)
        except InDoubtError:
            raise
        except Exception as error:
            # No reason to stop a training that has come so far, strict or not.
            self._warn(error)
            self._leave()
        else:
            form.planned = built

    def _built_again(self, choice: Choice, form: ArgumentForm) -> Built:
        try:
            built = self._build(form, choice.plan)
            if built.collectives != choice.built.collectives:
                raise PlanError("it communicates otherwise than before")
        except Exception as error:
            if len(self._group.members) > 1:
                raise InDoubtError(
                    "the plan's program, which the other processes run, cannot be "
                    f"built again here ({reasons(error)}): this process must stop"
                ) from error
            raise
        return built

    def _take(self, choice: Choice | None, form: ArgumentForm) -> None:
        self._choice = choice
        if choice is None:
            return
        form.planned = choice.built
        assert self._talk is not None
        measured = choice.plan.evidence.measured is not None
        if self._options.verify == "measure" and not measured:
            if self._talk.returned:
                raise InDoubtError(
                    "this process has come back into a job whose programs take turns "
                    "to be measured, and cannot know whose turn it is: start the job "
                    "again, or use verify='model'"
                )
            self._turns = guard.Turns()
        if self._group.leads:
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
        assert self._talk is not None
        try:
            self._talk.agree(Word(f"rules {point} {said}"), lambda words: "")
        except RefusedError as error:
            LOG.warning("NCCL is told nothing new: %s", error)
            return False
        return True

    def form(self, stages: Stages) -> ArgumentForm:
        """Another kind of arguments."""
        self._forms.append(ArgumentForm(stages))
        return self._forms[-1]

    def run_step(
        self, form: ArgumentForm, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the step; arguments are without static ones."""
        self._raise_in_doubt()
        with self._latched():
            return self._step(form, args, kwargs)

    def run_known(
        self, form: ArgumentForm, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the step with arguments that are known in another context of jax."""
        if self._online is not None:
            return self._online.run(form, *args, **kwargs, lagom_lenient=True)
        return self.program(form).compiled(*args, **kwargs)

    def _step(
        self, form: ArgumentForm, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.runs += 1
        if self._online is not None:
            return self._online.run(form, *args, **kwargs)
        # Two at a time tell nothing of how long one takes. Nobody waits for the other:
        # a step may call itself from the host.
        if self._turns is not None and self._measuring.acquire(blocking=False):
            try:
                if self._turns is not None:
                    return self._measured(self._turns, form, args, kwargs)
            finally:
                self._measuring.release()
        if self._choice is None or self._turns is not None:
            return self._as_it_was(form).run(*args, **kwargs)
        return self._tuned(self._choice, form, args, kwargs)

    def _as_it_was(self, form: ArgumentForm) -> Built:
        if form.usual is None:
            form.usual = programs.usual(form.stages)
        return form.usual

    def _tuned(
        self,
        choice: Choice,
        form: ArgumentForm,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the plan's program, or that as it was where it fails at once."""
        run = self.program(form).run
        if self._tried or self._choice is None:
            return run(*args, **kwargs)
        cache = self._cache if self._group.leads else None
        try:
            result = first_step(choice.plan, run, args, kwargs, cache)
        except (LagomError, jax.errors.JaxRuntimeError) as error:
            # Other processes may be inside a collective, and wait there for this one.
            last = len(self._group.members) > 1 or self._options.strict
            if last or some_deleted(args, kwargs):
                raise
            result = self._as_it_was(form).run(*args, **kwargs)
            # Had that failed, too, it would not be the plan's fault.
            self._warn(error)
            self._leave()
            return result
        self._tried = True
        if self._turns is None:
            form.usual = None
        return result

    def _warn(self, error: Exception) -> None:
        say.warn_once(
            f"the program as it was runs, since {reasons(error)}",
            first=self._group.leads,
        )

    def _leave(self) -> None:
        """Goes back to the program as it was, and gives the other's memory back."""
        self._choice = self._turns = None
        for form in self._forms:
            form.planned = None

    def _measured(
        self,
        turns: guard.Turns,
        form: ArgumentForm,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the step, and takes its time."""
        choice, side = self._choice, turns.side
        assert choice is not None
        try:
            self._tell(None if side == "baseline" else choice.rules)
        except InDoubtError:
            raise
        except LagomError as error:
            self._warn(error)
            self._leave()
            return self._as_it_was(form).run(*args, **kwargs)
        # What earlier steps still do is not this one's.
        jax.block_until_ready((args, kwargs))
        start = time.perf_counter()
        if side == "baseline":
            result = self._as_it_was(form).run(*args, **kwargs)
        else:
            result = self._tuned(choice, form, args, kwargs)
        jax.block_until_ready(result)
        turns.times.append((side, time.perf_counter() - start))
        if turns.complete and self._turns is turns:
            self._conclude(turns, choice)
        return result

    def _conclude(self, turns: guard.Turns, choice: Choice) -> None:
        """Keeps the program that was faster, by the clock of the first process."""
        assert self._talk is not None
        try:
            content = self._talk.agree(
                Word("measured"),
                lambda words: json.dumps(dataclasses.asdict(turns.judged())),
            )
            measured = typed(MeasuredSteps, json.loads(content))
            self._tell(choice.rules if measured.kept else None)
        except InDoubtError:
            raise
        except LagomError as error:
            self._warn(error)
            self._leave()
            return
        plan = choice.plan
        if self._group.leads:
            say.visibly(f"{plan.holds_for.program}: {in_words(measured)}")
        evidence = dataclasses.replace(plan.evidence, measured=measured)
        plan = dataclasses.replace(plan, evidence=evidence)
        # What noise may have hidden is no verdict: the next job looks again.
        loss = measured.tuned_seconds - measured.baseline_seconds
        slower = loss > measured.noise_seconds
        if self._group.leads and (measured.kept or slower):
            self._cache.keep(choice.parts, plan)
        if not measured.kept:
            self._leave()
            return
        self._choice = dataclasses.replace(choice, plan=plan)
        self._turns = None
        for form in self._forms:
            form.usual = None
