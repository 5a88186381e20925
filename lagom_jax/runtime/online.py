"""A job that is tuned while it trains: planned beside it, switched between two steps.

The first step runs at once, as the program is. After the second a thread plans (in a
process of its own) and builds; now and then, at steps of the same number in all
processes, they meet: a round of the protocol in which the first process says what the
next steps run. So no process runs what another does not, and who does not hear stops.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import jax

from lagom_jax.errors import InDoubtError, LagomError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.runtime import step_profile
from lagom_jax.runtime.agenda import Agenda, CandidateSource, OnlineCandidate
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.decision import Choice
from lagom_jax.runtime.online_leader import USUAL, OnlineLeader
from lagom_jax.runtime.programs import REFUSALS, Built, first_step, some_deleted
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_profile import StepProfile
from lagom_jax.runtime.waiting import in_background

FIRST_MEETING: Final = 4
"""The step before which all processes meet for the first time."""

Runs = Callable[[Choice | None, Hashable], Built]
"""Builds the program of a candidate for one kind of arguments."""


class _Call(NamedTuple):
    """One step that was asked for: a candidate's program and its arguments."""

    candidate: int
    form: Hashable
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class OnlineSteps:
    """The steps of one program while it is tuned."""

    def __init__(
        self,
        name: str,
        talk: Talk,
        source: CandidateSource,
        build: Runs,
        tell: Callable[[Rules | None], None],
        cache: Cache,
        warn: Callable[[BaseException], None],
        profile: StepProfile | None = None,
    ) -> None:
        """Sets it up; planning begins when the first steps have run.

        Args:
            name: The step's.
            talk: The processes that run it.
            source: Finds candidates, in a thread.
            build: Builds a candidate's program.
            tell: Lets NCCL's rules hold in all processes.
            cache: Keeps what was measured.
            warn: Says why nothing comes of it.
            profile: Records steps before planning begins; in all processes or in none,
                and only the first one's is recorded.
        """
        self._talk, self._source = talk, source
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
        self._leader: OnlineLeader | None = None
        self._profile: StepProfile | None = None
        if talk.group.leads:
            self._leader = OnlineLeader(name, source, cache)
            self._profile = profile
        # Not with the first step, which would share this machine with it.
        self._begins = 1 if profile is None else step_profile.LAST
        self.candidates: list[OnlineCandidate] = []
        self._doubt = ""
        self._state = "planning"
        self._failed: Exception | None = None
        self._work = threading.Thread(
            target=self._plan, name="lagom_jax online", daemon=True
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
            run = program.compiled if lenient else program.run
            result = self._profiled(number, _Call(candidate, form, run, args, kwargs))
        except REFUSALS:
            # Nothing has run: it was no step.
            with self._lock:
                self._step -= 1
            raise
        if number == self._begins:
            self._work.start()
        return result

    def _profiled(self, number: int, call: _Call) -> Any:
        profile = self._profile
        if profile is None or number > step_profile.LAST:
            return self._run(call)
        profile.before(number)
        try:
            result = self._run(call)
        except BaseException:
            profile.give_up()
            raise
        profile.after(number, result)
        return result

    def _run(self, call: _Call) -> Any:
        candidate, args, kwargs = call.candidate, call.args, call.kwargs
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
                return self._program(self._told, call.form).run(*args, **kwargs)
            self._told = candidate
        began = time.perf_counter()
        if candidate not in self._tried:
            result = self._run_first(call)
        else:
            result = call.run(*args, **kwargs)
        if self._leader is not None and not self.over:
            self._leader.started(candidate, began, result, counts=self._step > 1)
        return result

    def _run_first(self, call: _Call) -> Any:
        """The first step of a plan's program, after which it is known to run."""
        args, kwargs = call.args, call.kwargs
        choice = self.candidates[call.candidate].choice
        assert choice is not None
        cache = self._cache if self._talk.group.leads else None
        try:
            result = first_step(choice.plan, call.run, args, kwargs, cache)
        except jax.errors.JaxRuntimeError as error:
            # Other processes may be inside a collective, and wait there for this one.
            if len(self._talk.group.members) > 1 or some_deleted(args, kwargs):
                raise
            result = self._program(USUAL, call.form).run(*args, **kwargs)
            # Had that failed, too, it would not be the plan's fault.
            self._warn(error)
            self._end(USUAL)
            return result
        self._tried.add(call.candidate)
        return result

    def _program(self, candidate: int, form: Hashable) -> Built:
        key = candidate, form
        built = self._programs.get(key)
        if built is None:
            choice = self.candidates[candidate].choice if candidate else None
            built = self._programs[key] = self._build(choice, form)
        return built

    def _plan(self) -> None:
        try:
            found = self._source.find()
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
            self._meeting = in_background(lambda: Agenda.from_json(agree()))
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
        if agenda.offered:
            self._take(agenda.offered)
        if self.over:
            self._end(agenda.candidate(self._step, self._before))

    def _take(self, offered: str) -> None:
        try:
            self.candidates += self._source.taken(self.candidates, offered)
        except Exception as error:
            # None of them runs before all have met again, and then this one says so.
            LOG.debug("further candidates cannot be taken", exc_info=True)
            self._failed = error

    def _end(self, candidate: int) -> None:
        self._agenda = Agenda(self._step)
        self._before = candidate
        if self._leader is not None:
            self._leader.stop()
        self._source.close()
        others = [key for key in self._programs if key[0] != candidate]
        for key in others:
            del self._programs[key]

    def _decided(self, words: tuple[Word, ...]) -> str:
        """The agenda, as the first process decides it."""
        assert self._leader is not None
        states = [word.own for word in words]
        return self._leader.decided(self._step, states, self.candidates)
