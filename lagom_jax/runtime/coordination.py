"""Rounds of real processes, over the coordination service of `jax.distributed`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final
from urllib.parse import quote

from lagom_jax.errors import InDoubtError, LagomError, RefusedError
from lagom_jax.runtime.protocol import (
    Decide,
    Entry,
    Member,
    Put,
    Reply,
    RoundStep,
    Verdict,
    Word,
    after,
    request,
)
from lagom_jax.runtime.say import told
from lagom_jax.runtime.store import KeyValueStore, RoundEntries, WriteOnceTable
from lagom_jax.runtime.waiting import every

_LOG = logging.getLogger("lagom_jax")
_SIGNS_IN_PATIENCE: Final = 4

Deciding = Callable[[tuple[Word, ...]], str]
"""Makes the content of a verdict in the leader; what it raises is a refusal."""


@dataclasses.dataclass(eq=False)
class Coordinator:
    """A run of the coordination service that this process belongs to."""

    store: WriteOnceTable
    index: int
    begun: Counter[str] = dataclasses.field(default_factory=Counter[str])
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def number(self, room: str) -> int:
        """Counts the decisions of a room."""
        with self.lock:
            self.begun[room] += 1
            return self.begun[room]


def coordinator() -> Coordinator | None:
    """The one of now; a job that `jax.distributed` starts again has a new one.

    Example:
        >>> coordinator() is None
        True
    """
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile._jax_internals import distributed_state

    state = distributed_state()
    if state.client is None:
        _joined.cache_clear()
        return None
    return _joined(state.client, int(state.process_id))


@functools.lru_cache(maxsize=1)
def _joined(client: Any, index: int) -> Coordinator:
    return Coordinator(KeyValueStore(client), index)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes that own devices of a step.

    Example:
        >>> ProcessGroup.of([]).members
        (0,)
    """

    index: int
    """The index of this process."""
    members: tuple[int, ...]
    """All of them, the leader first."""
    coordinator: Coordinator | None = None

    @classmethod
    def of(cls, devices: Iterable[Any]) -> ProcessGroup:
        """The processes that devices belong to.

        Args:
            devices: All that the step runs on.

        Raises:
            LagomError: They cannot talk to each other.
        """
        members = tuple(sorted({int(device.process_index) for device in devices}))
        if len(members) < 2:
            return cls(0, (0,))
        here = coordinator()
        if here is None:
            raise LagomError(
                "the step runs in several processes and jax.distributed is not there: "
                "call jax.distributed.initialize first, and shut it down last"
            )
        return cls(here.index, members, here)

    @property
    def leads(self) -> bool:
        """True in the process that decides."""
        return self.index == self.members[0]

    def begin(self, label: str, patience: float) -> Talk:
        """Begins a decision; the n-th in one process is the n-th in the others.

        Args:
            label: The name of what it is about, as of the function.
            patience: For how many seconds the leader waits for others, and others for
                a sign of the leader.
        """
        digest = hashlib.sha256(repr(self.members).encode()).hexdigest()[:12]
        room = f"lagom_jax/{digest}/{quote(label, safe='')}"
        number = self.coordinator.number(room) if self.coordinator else 0
        return Talk(self, f"{room}:{number}", patience)


@dataclasses.dataclass(eq=False)
class Talk:
    """One decision: rounds, one after the other."""

    group: ProcessGroup
    topic: str
    patience: float
    rounds: int = 0
    returned: bool = False
    """True if an earlier life of this process may have taken part."""

    def word(self, make: Callable[[], Word]) -> Word:
        """This process's part in a round: that it takes none, where that fails.

        Args:
            make: Makes it; what it raises is raised where there is nobody to be told.
        """
        try:
            return make()
        except Exception as error:
            if self.group.coordinator is None:
                raise
            # The others are not to wait for this process.
            _LOG.debug("this process takes no part", exc_info=True)
            return Word("", told(error), refuses=True)

    def agree(self, word: Word, decide: Deciding, *, binding: bool = True) -> str:
        """Goes through a round.

        Args:
            word: This process's part.
            decide: Makes the content of the verdict, in the leader only, for as long
                as it takes: others wait while there are signs of it.
            binding: Whether what is accepted is acted on. If not, a process that does
                not learn the verdict leaves, and no later round accepts anything.

        Returns:
            What the leader has decided, the same in all.

        Raises:
            RefusedError: All of them know that nothing is changed, or this one knows
                that nothing can be without it.
            InDoubtError: Others may act on what this process does not know.

        Example:
            >>> alone = ProcessGroup(0, (0,)).begin("step", 60.0)
            >>> alone.agree(Word("a"), lambda words: "b")
            'b'
        """
        self.rounds += 1
        if self.group.coordinator is None:
            if word.refuses:
                raise RefusedError(word.own)
            return decide((word,))
        member = Member(self.group.index, self.group.members, word, binding)
        member = self._driven(member, decide)
        self.returned |= member.returned
        _LOG.debug("%s, round %d: %s", self.topic, self.rounds, member.step.value)
        if member.step is RoundStep.LEFT:
            # So that nobody waits for this process in the next one.
            self.rounds += 1
            why = Word("", "what was decided is not known here", refuses=True)
            self._entries().put(Put(Entry.WORD, member.me, why))
            raise RefusedError(f"jax's coordination service does not answer: {why.own}")
        if member.step is RoundStep.IN_DOUBT:
            raise InDoubtError(
                f"process {member.me} cannot know whether the other processes run what "
                "was planned for this step, and two programs in one job wait for each "
                "other for ever: this process must stop. Start the job again; look for "
                "the first error in the logs of all processes"
            )
        assert member.verdict is not None
        if not member.verdict.accepted:
            raise RefusedError(member.verdict.content)
        return member.verdict.content

    def _entries(self) -> RoundEntries:
        assert self.group.coordinator is not None
        room = f"{self.topic}.{self.rounds}"
        return RoundEntries(self.group.coordinator.store, room)

    def _driven(self, member: Member, decide: Deciding) -> Member:
        entries, until = self._entries(), time.monotonic() + self.patience
        with self._signs(entries) if member.leads else contextlib.nullcontext():
            while not member.over:
                asked = request(member)
                reply: Reply
                if isinstance(asked, Decide):
                    reply = _decided(member, decide, asked)
                elif isinstance(asked, Put):
                    reply = entries.put(asked)
                else:
                    left = until - time.monotonic() if member.leads else self.patience
                    reply = entries.get(asked, left)
                member = after(member, reply)
        return member

    @contextlib.contextmanager
    def _signs(self, entries: RoundEntries) -> Generator[None, None, None]:
        """Lets the others see that the leader works."""
        count = itertools.count(1)
        seconds = self.patience / _SIGNS_IN_PATIENCE
        over = every(seconds, lambda: entries.sign(next(count)))
        try:
            yield
        finally:
            over.set()


def _decided(member: Member, decide: Deciding, asked: Decide) -> Verdict:
    try:
        return Verdict(True, member.word.same, decide(asked.words))
    except Exception as error:
        _LOG.debug("nothing was decided", exc_info=True)
        return Verdict(False, content=f"process {member.me}: {told(error)}")
