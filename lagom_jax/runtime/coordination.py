"""Rounds of real processes, over the coordination service of `jax.distributed`.

The service is a table of values in process 0. No backend starts and no program is
compiled, so that what NCCL reads when it starts can still be decided. Seen on jax
0.10.2 and 0.12.0.1:

- A value can be written once, unless one asks to replace it; 100 MB pass.
- While process 0 stands still as a whole, calls hang beyond their limit. So each runs
  in a thread, and is given up a few seconds after its limit.
- A process that dies is noticed after `heartbeat_timeout_seconds` of
  `jax.distributed.initialize`, 100 by default. Then jax ends the others, unless
  `jax_enable_recoverability` is set; when process 0 dies, jax ends them at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final
from urllib.parse import quote

from lagom_jax.errors import InDoubtError, LagomError, RefusedError
from lagom_jax.runtime.protocol import (
    Decide,
    Entry,
    Get,
    Member,
    Put,
    Reply,
    RoundStep,
    StoreAnswer,
    Verdict,
    Word,
    after,
    request,
)
from lagom_jax.runtime.waiting import in_background

_LOG = logging.getLogger("lagom_jax")
# How late the service may be: it looks at limits once a second, on a busy machine.
_SLACK_SECONDS: Final = 5.0
_LONGEST_MS: Final = 2**31 - 1
_SIGNS_IN_PATIENCE: Final = 4

Deciding = Callable[[tuple[Word, ...]], str]
"""Makes the content of a verdict in the leader; what it raises is a refusal."""


class KeyValueStore:
    """The service's table, as the protocol asks for it."""

    def __init__(self, client: Any) -> None:
        """Takes the client of `jax.distributed`."""
        self._client = client

    def put(self, key: str, value: bytes, *, replaces: bool = False) -> StoreAnswer:
        """Writes a value where there is none, or in any case."""
        try:
            self._call("key_value_set_bytes", 0.0, key, value, replaces)
        except RuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return StoreAnswer.TAKEN
            _LOG.debug("%s was not written: %s", key, error)
            return StoreAnswer.LOST
        return StoreAnswer.DONE

    def get(self, key: str, seconds: float = 0.0) -> bytes | StoreAnswer:
        """Reads a value, or waits for one."""
        try:
            if seconds <= 0:
                return self._call("key_value_try_get_bytes", 0.0, key)
            milliseconds = max(1, int(min(1000 * seconds, _LONGEST_MS)))
            method = "blocking_key_value_get_bytes"
            return self._call(method, seconds, key, milliseconds)
        except RuntimeError as error:
            if any(word in str(error) for word in ("NOT_FOUND", "DEADLINE_EXCEEDED")):
                return StoreAnswer.NOTHING
            _LOG.debug("%s was not read: %s", key, error)
            return StoreAnswer.LOST

    def _call(self, method: str, seconds: float, *arguments: object) -> Any:
        """Calls a method of the client in a thread: some do not end when they should.

        Raises:
            RuntimeError: The service refuses, or does not answer in time.
        """
        from lagom_jax.compile._jax_internals import internal

        call = internal(self._client, method)
        try:
            longest = min(seconds + _SLACK_SECONDS, threading.TIMEOUT_MAX)
            return in_background(lambda: call(*arguments)).result(longest)
        except TimeoutError:
            raise RuntimeError("the coordination service does not answer") from None


@dataclasses.dataclass(eq=False)
class Coordinator:
    """A run of the coordination service that this process belongs to."""

    store: KeyValueStore
    client: Any
    index: int
    begun: Counter[str] = dataclasses.field(default_factory=Counter[str])
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def number(self, room: str) -> int:
        """Counts the decisions of a room."""
        with self.lock:
            self.begun[room] += 1
            return self.begun[room]


_current: list[Coordinator] = []


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
        _current.clear()
        return None
    if not _current or _current[0].client is not state.client:
        store = KeyValueStore(state.client)
        _current[:] = [Coordinator(store, state.client, int(state.process_id))]
    return _current[0]


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
        member = self._driven(member, decide, self.group.coordinator.store)
        self.returned |= member.returned
        _LOG.debug("%s, round %d: %s", self.topic, self.rounds, member.step.value)
        if member.step is RoundStep.LEFT:
            # So that nobody waits for this process in the next one.
            self.rounds += 1
            why = f"process {member.me} does not know what was decided"
            self._put(Put(Entry.VERDICT, 0, Verdict(False, content=why)))
            raise RefusedError(f"jax's coordination service does not answer; {why}")
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

    def _driven(self, member: Member, decide: Deciding, store: KeyValueStore) -> Member:
        until = time.monotonic() + self.patience
        with self._signs(store) if member.leads else contextlib.nullcontext():
            while not member.over:
                asked = request(member)
                reply: Reply
                if isinstance(asked, Decide):
                    reply = _decided(member, decide, asked)
                elif isinstance(asked, Put):
                    reply = self._put(asked)
                else:
                    left = until - time.monotonic() if member.leads else self.patience
                    reply = self._get(asked, left if asked.waits else 0.0)
                member = after(member, reply)
        return member

    @contextlib.contextmanager
    def _signs(self, store: KeyValueStore) -> Generator[None, None, None]:
        """Lets the others see that the leader works."""
        over, key = threading.Event(), self._key(Entry.SIGN, 0)

        def run() -> None:
            count = 0
            while not over.wait(self.patience / _SIGNS_IN_PATIENCE):
                count += 1
                store.put(key, str(count).encode(), replaces=True)

        threading.Thread(target=run, name="lagom_jax signs", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _put(self, asked: Put) -> StoreAnswer:
        assert self.group.coordinator is not None
        key = self._key(asked.kind, asked.member)
        return self.group.coordinator.store.put(key, packed(asked.value))

    def _get(self, asked: Get, seconds: float) -> Reply:
        assert self.group.coordinator is not None
        key = self._key(asked.kind, asked.member)
        found = self.group.coordinator.store.get(key, seconds)
        if isinstance(found, StoreAnswer):
            return found
        try:
            return unpacked(asked.kind, found)
        except (ValueError, TypeError, zlib.error) as error:
            _LOG.warning("%s is not as it was written: %s", key, error)
            return StoreAnswer.LOST

    def _key(self, kind: Entry, member: int) -> str:
        return f"{self.topic}.{self.rounds}/{kind.value}/{member}"


def _decided(member: Member, decide: Deciding, asked: Decide) -> Verdict:
    try:
        return Verdict(True, member.word.same, decide(asked.words))
    except Exception as error:
        _LOG.debug("nothing was decided", exc_info=True)
        return Verdict(False, content=f"process {member.me}: {told(error)}")


def told(error: BaseException) -> str:
    """An error as others are told of it."""
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def packed(value: Word | Verdict) -> bytes:
    """An entry as it is written: small, and with a checksum.

    Example:
        >>> unpacked(Entry.WORD, packed(Word("a", "b")))
        Word(same='a', own='b', refuses=False)
    """
    # What comes from the environment need not be Unicode; JSON escapes it.
    return zlib.compress(json.dumps(dataclasses.astuple(value)).encode("ascii"), 1)


def unpacked(kind: Entry, value: bytes) -> Word | Verdict | int:
    """The value that `packed` has packed.

    Raises:
        ValueError, TypeError, zlib.error: It has not.
    """
    if kind is Entry.SIGN:
        return int(value)
    form = Word if kind is Entry.WORD else Verdict
    return form(*json.loads(zlib.decompress(value)))
