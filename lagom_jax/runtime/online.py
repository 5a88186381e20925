"""A job that is tuned while it trains: planned beside it, switched between two steps.

The first step runs at once, as the program is. After the second a thread plans (in a
process of its own) and builds; now and then, at steps of the same number in all
processes, they meet: a round of the protocol in which the first process says what the
next steps run. So no process runs what another does not, and who does not hear stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from lagom_jax.compile import Compiler
from lagom_jax.errors import InDoubtError, LagomError
from lagom_jax.nccl_plugin import Rules
from lagom_jax.runtime import step_profile
from lagom_jax.runtime.agenda import Agenda, OnlineCandidate
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import ProcessGroup, Talk
from lagom_jax.runtime.decision import Case, Choice
from lagom_jax.runtime.executables import Executables
from lagom_jax.runtime.online_leader import USUAL, OnlineLeader
from lagom_jax.runtime.online_plans import OnlinePlans
from lagom_jax.runtime.programs import REFUSALS, Built, Stages, StepCall, first_step
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.step_profile import StepProfile
from lagom_jax.runtime.waiting import Interruptible

FIRST_MEETING: Final = 4
"""The step before which all processes meet for the first time."""


def online_steps(
    name: str,
    group: ProcessGroup,
    patience: float,
    cache: Cache,
    case_of: Callable[[Compiler], Case],
    programs: Executables,
    first: Stages,
    usual: Callable[..., Any],
    tell: Callable[[Rules | None], None],
    warn: Callable[[BaseException], None],
    *,
    profiles: bool,
) -> tuple[Talk, OnlineSteps]:
    """The steps of a program that is tuned while it trains.

    Args:
        name: The step's.
        group: The processes that run it.
        patience: For how many seconds they wait for each other.
        cache: Where decisions are kept.
        case_of: The step as planning has it; called in a thread.
        programs: Its programs.
        first: The arguments of its first step.
        usual: The step as it was.
        tell: Lets rules of NCCL hold in all processes.
        warn: Says why nothing comes of it.
        profiles: Whether steps are profiled first, by a profiler that times what the
            plan is for; the same in all processes.

    Returns:
        The rounds in which its steps are agreed on, and the steps.
    """
    profile = StepProfile() if profiles else None
    talk = group.begin(name, patience)
    source = OnlinePlans(talk, cache, case_of, programs, first, profile)
    meetings = group.begin(f"{name} steps", patience)
    steps = OnlineSteps(
        *(name, meetings, source, programs, usual, tell, cache, warn, profile)
    )
    return meetings, steps


class OnlineSteps:
    """The steps of one program while it is tuned."""

    def __init__(
        self,
        name: str,
        talk: Talk,
        source: OnlinePlans,
        programs: Executables,
        usual: Callable[..., Any],
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
            programs: The candidates' programs.
            usual: The step as it was.
            tell: Lets NCCL's rules hold in all processes.
            cache: Keeps what was measured.
            warn: Says why nothing comes of it.
            profile: Records steps before planning begins; in all processes or in none,
                and only the first one's is recorded.
        """
        self._talk, self._source = talk, source
        self._programs, self._usual, self._tell = programs, usual, tell
        self._cache, self._warn = cache, warn
        self._lock = threading.RLock()
        self._tried: set[int] = {USUAL}
        self._told = USUAL
        self._step = 0
        self._agenda = Agenda(0, next=FIRST_MEETING)
        self._before = USUAL
        self._meeting, self._met = Interruptible(), Agenda(0)
        self._leader: OnlineLeader | None = None
        self._profile: StepProfile | None = None
        if talk.group.leads:
            self._leader = OnlineLeader(name, source, cache)
            self._profile = profile
        # Not with the first step, which would share this machine with it.
        self._begins = 1 if profile is None else step_profile.LAST
        self.candidates: list[OnlineCandidate] = []
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

    def program(self, stages: Stages, candidate: int | None = None) -> Built | None:
        """The program of a candidate, or of what runs next; None for that as it was."""
        choice = self.running
        if candidate is not None:
            choice = self.candidates[candidate].choice if candidate else None
        return self._programs.planned(stages, choice) if choice is not None else None

    def run(self, stages: Stages, call: StepCall) -> Any:
        """Runs the step.

        Args:
            stages: The kind of its arguments.
            call: The arguments.

        Raises:
            InDoubtError: What other processes run cannot be known.
        """
        if self.over:
            return self._called(self.program(stages), call)
        with self._lock:
            if self._step == self._agenda.next and not self.over:
                self._meet()
            number = self._step
            candidate = self._agenda.candidate(number, self._before)
            self._step += 1
        try:
            result = self._profiled(number, candidate, stages, call)
        except REFUSALS:
            # Nothing has run: it was no step.
            with self._lock:
                self._step -= 1
            raise
        if number == self._begins:
            self._work.start()
        return result

    def _called(self, program: Built | None, call: StepCall) -> Any:
        if program is not None:
            return call.of(program)
        return self._usual(*call.args, **call.kwargs)

    def _profiled(
        self, number: int, candidate: int, stages: Stages, call: StepCall
    ) -> Any:
        profile = self._profile
        if profile is None or number > step_profile.LAST:
            return self._run(candidate, stages, call)
        profile.before(number)
        try:
            result = self._run(candidate, stages, call)
        except BaseException:
            profile.give_up()
            raise
        profile.after(number, result)
        return result

    def _run(self, candidate: int, stages: Stages, call: StepCall) -> Any:
        program = self.program(stages, candidate)
        if candidate != self._told:
            choice = self.candidates[candidate].choice
            try:
                self._tell(choice.rules if choice is not None else None)
            except InDoubtError:
                raise
            except LagomError as error:
                # All know of it, and go on with what they have.
                self._leave(self._told, error)
                return self._called(self.program(stages, self._told), call)
            self._told = candidate
        began = time.perf_counter()
        if program is not None and candidate not in self._tried:
            result = self._run_first(candidate, program, call)
        else:
            result = self._called(program, call)
        if self._leader is not None and not self.over:
            self._leader.started(candidate, began, result, counts=self._step > 1)
        return result

    def _run_first(self, candidate: int, program: Built, call: StepCall) -> Any:
        """The first step of a plan's program, after which it is known to run."""
        choice = self.candidates[candidate].choice
        assert choice is not None
        # Other processes may be inside a collective, and wait there for this one.
        usual = None if self._programs.several else self._usual
        cache = self._cache if self._talk.group.leads else None
        result, error = first_step(choice.plan, program, call, usual, cache)
        if error is not None:
            self._leave(USUAL, error)
        else:
            self._tried.add(candidate)
        return result

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
        # Who is called away meanwhile comes back to it with the next step.
        error = self._meeting.error(self._meets)
        if isinstance(error, InDoubtError):
            raise error
        if error is not None:
            candidate = self._agenda.candidate(self._step, self._before)
            self._leave(candidate, self._failed or error)
            return
        agenda = self._met
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

    def _meets(self) -> tuple[Callable[[], None], Callable[[], None]]:
        failed = self._failed
        own = self._state if failed is None else str(failed)
        word = Word(f"step {self._step}", own, refuses=failed is not None)

        def meet() -> None:
            self._met = Agenda.from_json(self._talk.agree(word, self._decided))

        return meet, lambda: None

    def _take(self, offered: str) -> None:
        try:
            self.candidates += self._source.taken(self.candidates, offered)
        except Exception as error:
            # None of them runs before all have met again, and then this one says so.
            LOG.debug("further candidates cannot be taken", exc_info=True)
            self._failed = error

    def _leave(self, candidate: int, error: BaseException) -> None:
        self._warn(error)
        self._end(candidate)

    def _end(self, candidate: int) -> None:
        self._agenda = Agenda(self._step)
        self._before = candidate
        if self._leader is not None:
            self._leader.stop()
        self._source.close()
        self._programs.keep(self.running)

    def _decided(self, words: tuple[Word, ...]) -> str:
        """The agenda, as the first process decides it."""
        assert self._leader is not None
        states = [word.own for word in words]
        return self._leader.decided(self._step, states, self.candidates)
