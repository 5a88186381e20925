"""The steps of one program: what each of them runs, the same in all processes.

A guide knows candidates, and an agenda says which step runs which of them. Where that
is open beyond some step, all processes meet before it: a round of the protocol in which
the first process says what the next steps run. So no process runs what another does
not, and who does not hear stops. It is the same whether a plan runs from the first step
on, takes turns with the step as it was, or is found while the job trains.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any

from lagom_jax.errors import InDoubtError, LagomError
from lagom_jax.runtime import nccl
from lagom_jax.runtime.agenda import USUAL, Agenda, Guide
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.executables import Executables
from lagom_jax.runtime.offer import Choice
from lagom_jax.runtime.programs import REFUSALS, Built, Stages, StepCall, first_step
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import fallen_back
from lagom_jax.runtime.waiting import Interruptible
from lagom_jax.typed_json import plain, typed


class Steps:
    """The steps of one program."""

    def __init__(
        self,
        programs: Executables,
        usual: Callable[..., Any],
        talk: Talk,
        guide: Guide,
        cache: Cache,
        *,
        strict: bool,
    ) -> None:
        """Sets it up before the first of them.

        Args:
            programs: The candidates' programs, which NCCL knows rules of.
            usual: The step as it was.
            talk: The processes that run it.
            guide: The candidates, and the reasons to run one of them.
            cache: Where first steps are marked.
            strict: Whether an error of a first step is the user's.

        Raises:
            InDoubtError: Others may have made some of them.
        """
        self._programs, self._usual = programs, usual
        self._talk, self._guide = talk, guide
        self._marks = cache if talk.group.leads else Cache(None)
        # Other processes may be inside a collective, and wait there for this one.
        self._goes_back = not (programs.several or strict)
        self._lock = threading.RLock()
        self._number = 0
        self._lost = False
        """True if nobody can know whether a step has run here."""
        self._agenda = guide.first()
        self._ran = USUAL
        self._tried: set[int] = {USUAL}
        self._meeting, self._telling = Interruptible(), Interruptible()
        if not self.over:
            self._raise_if_back()

    def _raise_if_back(self) -> None:
        if self._talk.returned:
            raise InDoubtError(
                "this process has come back into a job whose programs are measured, "
                "and cannot know what the others run: start the job again, or use "
                "verify='model'"
            )

    @property
    def over(self) -> bool:
        """True if nothing changes any more."""
        return not self._agenda.next

    @property
    def settled(self) -> bool:
        """True if, besides, what runs has made a step."""
        return self.over and self._agenda.candidate(self._number) in self._tried

    @property
    def running(self) -> Choice | None:
        """The plan that runs, or is on trial."""
        return self._guide.candidates[self._spoken_of]

    def program(self, stages: Stages, candidate: int | None = None) -> Built | None:
        """A program of these steps, compiled if that is still to be done.

        Args:
            stages: The kind of its arguments.
            candidate: The candidate; by default what runs, or is on trial.

        Returns:
            None where the step runs as it was.

        Raises:
            InDoubtError: It cannot be built again, and other processes run it.
        """
        number = self._spoken_of if candidate is None else candidate
        choice = self._guide.candidates[number]
        try:
            return None if choice is None else self._programs.planned(stages, choice)
        except InDoubtError:
            raise
        except Exception as error:
            # No reason to stop a training that has come so far, strict or not.
            self._leave(error)
            return None

    @property
    def _spoken_of(self) -> int:
        trial = None if self.over else self._guide.on_trial
        return self._agenda.candidate(self._number) if trial is None else trial

    def run(self, stages: Stages, call: StepCall) -> Any:
        """Runs the next step.

        Args:
            stages: The kind of its arguments.
            call: The arguments.

        Raises:
            InDoubtError: What other processes run cannot be known.
        """
        if self._lost:
            raise InDoubtError(
                "a step whose programs are measured failed here or was called away "
                "from, so that nobody can know whether it has run: the other processes "
                "may run another program by now, and this one must stop. Start the job "
                "again"
            )
        with self._lock:
            if self._number == self._agenda.next and not self.over:
                self._meet()
            number, candidate = self._number, self._agenda.candidate(self._number)
            self._number += 1
        ready = begun = False
        try:
            candidate = self._switched(candidate)
            program = self.program(stages, candidate)
            ready = True

            def begin() -> Any:
                nonlocal begun
                if program is None:
                    result = self._usual(*call.args, **call.kwargs)
                else:
                    result = call.of(program)
                begun = True
                return result

            candidate = USUAL if program is None else candidate
            run = functools.partial(self._run, candidate, call, begin)
            if self.over:
                return run()
            return self._guide.timed(number, candidate, call, run)
        except BaseException as error:
            if not begun:
                self._not_begun(nothing=not ready or isinstance(error, REFUSALS))
            raise

    def _not_begun(self, *, nothing: bool) -> None:
        """Counts what may have been no step, for the others may not have made it."""
        with self._lock:
            if nothing:
                # It makes this step when it comes back.
                self._number -= 1
            elif self._programs.several and not self.over:
                self._lost = True

    def _switched(self, candidate: int) -> int:
        """Lets a candidate's rules of NCCL hold, or goes on with what ran before."""
        choice = self._guide.candidates[candidate]
        rules = None if choice is None else choice.rules

        def tell() -> None:
            try:
                nccl.HERE.tell(self._programs, rules, self._talk)
            except InDoubtError:
                raise
            except LagomError as error:
                # All know of it, and go on with what they have.
                self._leave(error, self._ran)
            else:
                self._ran = candidate

        if nccl.HERE.told(self._programs) is rules and not self._telling.under_way:
            self._ran = candidate
        elif error := self._telling.error(tell):
            raise error
        return self._ran

    def _run(self, candidate: int, call: StepCall, begin: Callable[[], Any]) -> Any:
        choice = self._guide.candidates[candidate]
        if choice is None or candidate in self._tried:
            return begin()
        usual = self._usual if self._goes_back else None
        result, error = first_step(choice.plan, begin, call, usual, self._marks)
        self._tried.add(candidate)
        if error is not None:
            self._leave(error)
        return result

    def _meet(self) -> None:
        """Goes through a round; who is called away meanwhile comes back to it."""
        if error := self._meeting.error(self._met):
            raise error

    def _met(self) -> None:
        if self._number != self._agenda.next or self.over:
            # The meeting has just ended that this process was called away from.
            return
        try:
            agenda = self._agreed()
        except InDoubtError:
            raise
        except Exception as error:
            self._leave(error, self._agenda.candidate(self._number))
            return
        self._raise_if_back()
        self._guide.take(agenda)
        self._agenda = agenda
        if self.over:
            self._end(agenda.candidate(self._number))

    def _agreed(self) -> Agenda:
        number = self._number
        # Whatever fails here, nothing runs before the processes have met.
        word = self._talk.word(lambda: Word(f"step {number}", self._guide.said()))

        def decide(words: tuple[Word, ...]) -> str:
            agenda = self._guide.decided(number, [word.own for word in words])
            return json.dumps(plain(agenda))

        return typed(Agenda, json.loads(self._talk.agree(word, decide)))

    def _leave(self, error: Exception, candidate: int = USUAL) -> None:
        """Goes on with a candidate for good, and says why."""
        fallen_back(error, first=self._talk.group.leads)
        self._end(candidate)

    def _end(self, candidate: int) -> None:
        self._agenda = Agenda(self._number, ((candidate, 1),))
        self._guide.stop()
        # The memory of all others is given back.
        self._programs.keep(self.running)
