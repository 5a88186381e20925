"""A job that is tuned while it trains: planned beside it, switched between two steps.

The first step runs at once, as the program is. A thread plans (in a process of its own)
and builds; now and then, at steps of the same number in all processes, they meet: a
round of the protocol in which the first process says what the next steps run. So no
process runs what another does not, and whoever does not hear stops.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final

import jax

from lagom_jax.errors import InDoubtError, LagomError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.online.belief import StepCandidate
from lagom_jax.online.search import Search, SearchEvent, after, turns
from lagom_jax.plan import MeasuredSteps
from lagom_jax.runtime import say
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.decision import Choice
from lagom_jax.runtime.programs import REFUSALS, Built, first_step, some_deleted
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_clock import StepClock
from lagom_jax.runtime.waiting import in_background
from lagom_jax.units import in_percent

FIRST_MEETING: Final = 4
"""The step before which all processes meet for the first time."""
_BETWEEN_SECONDS: Final = 2.0
_BETWEEN_STEPS: Final = (4, 256)
USUAL: Final = 0
"""The candidate that is the program as it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class OnlineCandidate:
    """A plan that all processes have built; None for the program as it was."""

    choice: Choice | None
    timed: StepCandidate


@dataclasses.dataclass(frozen=True, slots=True)
class Agenda:
    """The verdict of a meeting: what the next steps run, and when to meet again."""

    first: int
    """The number of the step that it begins with."""
    runs: tuple[tuple[int, int], ...] = ()
    """Candidates, and the steps that each makes, one after the other; then the last
    one goes on."""
    next: int = 0
    """The number of the next step with a meeting; 0 for none."""

    def candidate(self, step: int, before: int) -> int:
        """The candidate of a step.

        Args:
            step: Its number.
            before: What ran before this agenda.

        Example:
            >>> agenda = Agenda(10, ((1, 2), (0, 3)), 15)
            >>> [agenda.candidate(step, 0) for step in range(10, 14)]
            [1, 1, 0, 0]
        """
        left = step - self.first
        for candidate, count in self.runs:
            if left < count:
                return candidate
            left -= count
        return self.runs[-1][0] if self.runs else before


Runs = Callable[[Choice | None, Hashable], Built]
"""Builds the program of a candidate for one kind of arguments."""


class OnlineSteps:
    """The steps of one program while it is tuned."""

    def __init__(
        self,
        name: str,
        talk: Talk,
        work: Callable[[], list[OnlineCandidate]],
        build: Runs,
        tell: Callable[[Rules | None], None],
        cache: Cache,
        warn: Callable[[BaseException], None],
    ) -> None:
        """Sets it up; planning begins when the first step has run.

        Args:
            name: The step's.
            talk: The processes that run it.
            work: Finds candidates, all of which are built everywhere, the program as
                it was first. It runs in a thread.
            build: Builds a candidate's program.
            tell: Lets NCCL's rules hold in all processes.
            cache: Keeps what was measured.
            warn: Says why nothing comes of it.
        """
        self._name, self._talk = name, talk
        self._build, self._tell = build, tell
        self._cache, self._warn = cache, warn
        self._lock = threading.RLock()
        self._programs: dict[tuple[int, Hashable], Built] = {}
        self._tried: set[int] = {USUAL}
        self._told = USUAL
        self._step = 0
        self._agenda = Agenda(0, next=FIRST_MEETING)
        self._before = USUAL
        self._meeting: Future[Agenda] | None = None
        self._search: Search | None = None
        self._clock = StepClock() if talk.group.leads else None
        self.candidates: list[OnlineCandidate] = []
        self._doubt = ""
        self._state = "planning"
        self._failed: Exception | None = None
        self._work = threading.Thread(
            target=self._plan, args=(work,), name="lagom_jax online", daemon=True
        )

    @property
    def over(self) -> bool:
        """True if nothing changes any more."""
        return not self._agenda.next

    @property
    def running(self) -> Choice | None:
        """The plan that the next step runs with."""
        if not self.candidates:
            return None
        number = self._agenda.candidate(self._step, self._before)
        return self.candidates[number].choice

    def forget(self) -> None:
        """Forgets programs; what was decided stays."""
        with self._lock:
            self._programs.clear()

    def run(
        self, form: Hashable, *args: Any, lagom_lenient: bool = False, **kwargs: Any
    ) -> Any:
        """Runs the step.

        Args:
            form: The kind of its arguments.
            *args: The arguments, without static ones.
            lagom_lenient: Takes arguments that are known in another context of jax.
            **kwargs: Likewise by keyword.

        Raises:
            InDoubtError: What other processes run cannot be known.
        """
        if self._doubt:
            # This process must stop: to go on would be worse.
            raise InDoubtError(self._doubt)
        try:
            return self._counted(form, args, kwargs, lagom_lenient)
        except InDoubtError as error:
            self._doubt = str(error)
            raise

    def _counted(
        self, form: Hashable, args: tuple[Any, ...], kwargs: Any, lenient: bool
    ) -> Any:
        if self.over:
            program = self._program(self._before, form)
            call = program.compiled if lenient else program.run
            return call(*args, **kwargs)
        with self._lock:
            if self._step == self._agenda.next and not self.over:
                self._meet()
            number = self._step
            candidate = self._agenda.candidate(number, self._before)
            self._step += 1
        try:
            program = self._program(candidate, form)
            call = program.compiled if lenient else program.run
            result = self._run(candidate, form, call, args, kwargs)
        except REFUSALS:
            # Nothing has run: it was no step.
            with self._lock:
                self._step -= 1
            raise
        if number == 0:
            # Not before: the first step has this process for itself.
            self._work.start()
        return result

    def _run(
        self,
        candidate: int,
        form: Hashable,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        if candidate != self._told:
            choice = self.candidates[candidate].choice
            try:
                self._tell(choice.rules if choice is not None else None)
            except InDoubtError:
                raise
            except LagomError as error:
                # All know of it, and go on with what they have.
                self._warn(error)
                self._end(self._told)
                return self._program(self._told, form).run(*args, **kwargs)
            self._told = candidate
        began = time.perf_counter()
        if candidate not in self._tried:
            result = self._run_first(candidate, form, call, args, kwargs)
        else:
            result = call(*args, **kwargs)
        if self._clock is not None and not self.over:
            self._clock.started(candidate, began, result, counts=self._step > 1)
        return result

    def _run_first(
        self,
        candidate: int,
        form: Hashable,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        """The first step of a plan's program, after which it is known to run."""
        choice = self.candidates[candidate].choice
        assert choice is not None
        cache = self._cache if self._talk.group.leads else None
        try:
            result = first_step(choice.plan, call, args, kwargs, cache)
        except jax.errors.JaxRuntimeError as error:
            # Other processes may be inside a collective, and wait there for this one.
            if len(self._talk.group.members) > 1 or some_deleted(args, kwargs):
                raise
            result = self._program(USUAL, form).run(*args, **kwargs)
            # Had that failed, too, it would not be the plan's fault.
            self._warn(error)
            self._end(USUAL)
            return result
        self._tried.add(candidate)
        return result

    def _program(self, candidate: int, form: Hashable) -> Built:
        key = candidate, form
        built = self._programs.get(key)
        if built is None:
            choice = self.candidates[candidate].choice if candidate else None
            built = self._programs[key] = self._build(choice, form)
        return built

    def _plan(self, work: Callable[[], list[OnlineCandidate]]) -> None:
        try:
            found = work()
        except Exception as error:
            # In doubt or not: nothing runs before the processes have met, and here
            # this one says that it has nothing to run.
            LOG.debug("nothing was planned beside the job", exc_info=True)
            self._failed = error
        else:
            self.candidates = found
            self._state = "ready" if len(found) > 1 else "nothing"

    def _meet(self) -> None:
        """Goes through a round, also where the caller is called away meanwhile."""
        if self._meeting is None:
            failed = self._failed
            own = self._state if failed is None else str(failed)
            word = Word(f"step {self._step}", own, refuses=failed is not None)
            agree = functools.partial(self._talk.agree, word, self._decided)
            self._meeting = in_background(lambda: _agenda_of(agree()))
        # Who is called away meanwhile comes back to it with the next step.
        error = self._meeting.exception()
        agenda = self._meeting.result() if error is None else None
        self._meeting = None
        if isinstance(error, InDoubtError):
            raise error
        if agenda is None:
            self._warn(self._failed or error or LagomError("nothing was decided"))
            self._end(self._agenda.candidate(self._step, self._before))
            return
        if self._talk.returned:
            raise InDoubtError(
                "this process has come back into a job that is tuned while it trains, "
                "and cannot know what the others run: start the job again, or use "
                "verify='model'"
            )
        self._before = self._agenda.candidate(self._step - 1, self._before)
        self._agenda = agenda
        if self.over:
            self._end(agenda.candidate(self._step, self._before))

    def _end(self, candidate: int) -> None:
        self._agenda = Agenda(self._step)
        self._before = candidate
        if self._clock is not None:
            self._clock.stop()
        others = [key for key in self._programs if key[0] != candidate]
        for key in others:
            del self._programs[key]

    def _decided(self, words: tuple[Word, ...]) -> str:
        """The agenda, as the first process decides it."""
        states = [word.own for word in words]
        times = self._clock.taken() if self._clock is not None else ()
        if "planning" in states:
            return _told(Agenda(self._step, next=self._step + _gap(times)))
        if "nothing" in states:
            return _told(Agenda(self._step))
        if self._search is None:
            measured = self._measured_before()
            if measured:
                say.visibly(
                    f"{self._name}: runs with the plan that was measured before"
                )
                return _told(Agenda(self._step, ((measured, 1),)))
            timed = [one.timed for one in self.candidates]
            self._search = Search.among(timed, steps=self._step)
            times = ()
        if times:
            self._search = after(self._search, times)
            self._tell_events(self._search.events)
        return _told(self._next_agenda(self._search))

    def _measured_before(self) -> int:
        choice = self.candidates[1].choice
        assert choice is not None
        measured = choice.plan.evidence.measured
        return int(measured is not None and measured.kept)

    def _next_agenda(self, search: Search) -> Agenda:
        found = turns(search)
        if not found:
            return Agenda(self._step, ((search.base, 1),))
        runs: list[tuple[int, int]] = []
        for candidate in found:
            last = runs.pop() if runs and runs[-1][0] == candidate else (candidate, 0)
            runs.append((candidate, last[1] + 1))
        return Agenda(self._step, tuple(runs), self._step + len(found))

    def _tell_events(self, events: tuple[SearchEvent, ...]) -> None:
        for event in events:
            say.visibly(f"{self._name}, step {event.step}: {self._in_words(event)}")
            if event.kind in ("proved", "dropped") and event.candidate != USUAL:
                self._keep_measured(event)

    def _in_words(self, event: SearchEvent) -> str:
        name = self.candidates[event.candidate].timed.name
        compared = event.compared
        change = f"{math.expm1(compared.log_ratio):+.1%} ({compared.steps} steps)"
        match event.kind:
            case "tried":
                return f"{name} tried: {change}"
            case "runs":
                return f"{name} runs from here on: {change}"
            case "proved":
                return f"{name} is faster: {change}"
            case "dropped":
                return f"{name} is dropped: {change}"
            case _:
                spent = self._search.spent if self._search is not None else 0
                share = in_percent(spent, max(1, event.step))
                return (
                    f"nothing else is worth trying; {name} stays. {spent} steps "
                    f"({share}) were spent on measuring"
                )

    def _keep_measured(self, event: SearchEvent) -> None:
        search = self._search
        choice = self.candidates[event.candidate].choice
        if search is None or choice is None:
            return
        kept = event.kind == "proved"
        if not kept and event.candidate != 1:
            # The plan's own key says what came of the plan alone.
            return
        times = sorted(one.seconds for one in search.tail) or [0.0]
        now, compared = times[len(times) // 2], event.compared
        tuned = now * math.exp(compared.log_ratio) if search.running == USUAL else now
        before = tuned * math.exp(-compared.log_ratio - event.before)
        noise = 2 * compared.sigma * now
        measured = MeasuredSteps(before, tuned, noise, max(1, compared.steps), kept)
        if kept or tuned - before > noise:
            evidence = dataclasses.replace(choice.plan.evidence, measured=measured)
            plan = dataclasses.replace(choice.plan, evidence=evidence)
            self._cache.keep(choice.parts, plan)


def _gap(times: tuple[Any, ...]) -> int:
    least, most = _BETWEEN_STEPS
    if not times:
        return least
    step = sorted(one.seconds for one in times)[len(times) // 2]
    return max(least, min(most, math.ceil(_BETWEEN_SECONDS / max(step, 1e-6))))


def _told(agenda: Agenda) -> str:
    return json.dumps(dataclasses.asdict(agenda))


def _agenda_of(content: str) -> Agenda:
    found = json.loads(content)
    runs = tuple((int(one), int(count)) for one, count in found["runs"])
    return Agenda(int(found["first"]), runs, int(found["next"]))
