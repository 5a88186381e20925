"""Agreement of the processes of a job on one decision, without a collective.

They talk through the coordination service of `jax.distributed`, which lives in process
0: a table of values, and barriers. No backend starts and no program is compiled, so
what NCCL reads when it starts can still be decided.

What the service does was tried on jax 0.10.2 and 0.12.0.1:

- Values have no limit of size in practice: 100 MB pass.
- A barrier passes for all or for none. The limit is that of the first process to come,
  looked at once a second; those who come later learn at once that it has failed. The
  service goes on after that, and the next barrier passes.
- A process that dies is noticed by others after `heartbeat_timeout_seconds` of
  `jax.distributed.initialize`, 100 by default. Then jax ends all of them, unless
  `jax_enable_recoverability` is set. When process 0 dies, jax ends the others at once.
  Nothing here can keep it from that.
- While process 0 stands still as a whole (stopped, swapping), every call but the wait
  for a value hangs, until the same time has passed and jax ends the process. No call is
  therefore waited for longer than its limit and a few seconds.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from lagom_jax.errors import LagomError
from lagom_jax.runtime.parcel import ParcelError, pack, unpack

T = TypeVar("T")

_LOG = logging.getLogger("lagom_jax")
# How late the service may be: it looks at limits once a second, on a busy machine.
_SLACK_SECONDS = 5.0
_SHARED, _SAID = "shared", "said"
_LONGEST_MS = 2**31 - 1
_LONGEST_REASON = 500
_SHOWN, _SHOWN_BEFORE, _SHOWN_WORDS = 60, 20, 4

# Of the process and not of `Peers`: the n-th use here meets the n-th use elsewhere,
# whoever made it.
_lock = threading.Lock()
_uses: Counter[str] = Counter()
_written: defaultdict[str, list[str]] = defaultdict(list)


class NoAgreementError(LagomError):
    """The processes of the job did not come to one decision."""


class TooLateError(NoAgreementError):
    """Not all of them came in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peers:
    """This process among all of the job.

    The processes say what they speak about by a topic, a text. A topic can be used any
    number of times: the first use in one process meets the first use in the others, and
    so on. All processes therefore use it equally often, one use after the other, with
    the same limit of time. Different topics do not wait for each other.

    Example:
        >>> alone = Peers(index=0, count=1)
        >>> alone.share("plan", lambda: b"a plan", seconds=60)
        b'a plan'
        >>> alone.gather("versions", "jax 0.12", seconds=60)
        ('jax 0.12',)
    """

    index: int
    """The index of this process."""
    count: int
    """The number of processes."""

    @classmethod
    def here(cls) -> Peers:
        """The processes that `jax.distributed` knows; starts no backend.

        Example:
            >>> Peers.here()
            Peers(index=0, count=1)
        """
        state = _jax_state()
        if state.client is None:
            return cls(0, 1)
        return cls(int(state.process_id), int(state.num_processes))

    def share(self, topic: str, make: Callable[[], bytes], *, seconds: float) -> bytes:
        """Sends the bytes that process 0 makes to all processes.

        Some may have it while others gave up waiting: before anything depends on it,
        let all say whether they have it, with `unanimous` on the same topic. That also
        lets the service forget it.

        Args:
            topic: What it is about.
            make: Called in process 0 alone, for as long as it takes; what it raises is
                raised there.
            seconds: How long the others wait for it.

        Raises:
            NoAgreementError: It was not made, did not come in time, or did not come as
                it was sent.

        Example:
            >>> Peers(0, 1).share("plan", lambda: b"a plan", seconds=60)
            b'a plan'
        """
        if self.count == 1:
            return make()
        if self.index == 0:
            return _make_and_send(topic, make, seconds)
        use = _Use.next(topic, _SHARED, seconds)
        _LOG.debug("%s: waiting up to %g s for process 0", use, seconds)
        return use.opened(use.wait(use.folder), by="process 0")

    def gather(self, topic: str, said: str, *, seconds: float) -> tuple[str, ...]:
        """Collects the words of all processes, in the order of their indices.

        All get the same answer, or all get a NoAgreementError. Only if process 0 stands
        still or dies at the very end, or the answer is lost on the way, can one fail
        where others do not.

        Args:
            topic: What it is about.
            said: The word of this process on it; short.
            seconds: How long the first to come waits for the last.

        Raises:
            NoAgreementError: Not all came in time, or somebody's word did not come as
                it was sent.

        Example:
            >>> Peers(0, 1).gather("versions", "jax 0.12", seconds=60)
            ('jax 0.12',)
        """
        if self.count == 1:
            return (said,)
        use = _Use.next(topic, _SAID, seconds)
        keys = [f"{use.folder}/{index}" for index in range(self.count)]
        _LOG.debug("%s: waiting up to %g s for %d processes", use, seconds, self.count)
        use.write(keys[self.index], pack(_encoded(said)))
        use.meet(keys)
        found = use.read_all()
        words: list[str] = []
        for index, key in enumerate(keys):
            if key not in found:
                use.fail(f"the word of process {index} was removed")
            content = use.opened(found[key], by=f"process {index}")
            words.append(content.decode("utf-8", "surrogatepass"))
        use.forget_earlier()
        return tuple(words)

    def unanimous(self, topic: str, said: str, *, seconds: float) -> str:
        """The word of all processes, if it is the same.

        Args:
            topic: What it is about.
            said: The word of this process on it.
            seconds: How long the first to come waits for the last.

        Raises:
            NoAgreementError: As `gather`, or they do not say the same; the message is
                the same in all processes.

        Example:
            >>> Peers(0, 1).unanimous("versions", "jax 0.12", seconds=60)
            'jax 0.12'
        """
        words = self.gather(topic, said, seconds=seconds)
        if len(set(words)) > 1:
            raise NoAgreementError(f"{topic!r}: {_difference(words)}")
        return said


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """One use of a topic."""

    topic: str
    number: int
    folder: str
    """The key of what is written for it, or the start of the keys; also the name of
    its barrier."""
    seconds: float
    until: float
    """When the last call that may wait has to answer."""
    client: Any

    @classmethod
    def next(cls, topic: str, kind: str, seconds: float) -> _Use:
        client = _jax_state().client
        if client is None:
            raise NoAgreementError(
                f"{topic!r}: jax.distributed has been shut down; agree before that"
            )
        with _lock:
            _uses[topic] += 1
            number = _uses[topic]
        folder = f"lagom_jax/{quote(topic, safe='')}:{number}/{kind}"
        until = time.monotonic() + seconds + _SLACK_SECONDS
        return cls(topic, number, folder, seconds, until, client)

    def __str__(self) -> str:
        return f"{self.topic!r} ({self.number})"

    @property
    def milliseconds(self) -> int:
        return max(1, int(min(self.seconds * 1000, _LONGEST_MS)))

    def fail(self, reason: str) -> NoReturn:
        _LOG.debug("%s: %s", self, reason)
        raise NoAgreementError(f"{self.topic!r}: {reason}")

    def call(self, method: str, *arguments: object) -> Any:
        """Calls a method of the client; jax's errors pass."""
        from lagom_jax.compile._jax_internals import internal

        try:
            return _within(
                max(self.until - time.monotonic(), _SLACK_SECONDS),
                lambda: internal(self.client, method)(*arguments),
            )
        except TimeoutError:
            self.fail(
                "jax's coordination service has not answered in time; look at what "
                "process 0 does, in which it runs"
            )

    def wait(self, key: str) -> bytes:
        try:
            return self.call("blocking_key_value_get_bytes", key, self.milliseconds)
        except RuntimeError as error:
            if _timed_out(error):
                self.fail(
                    f"nothing came from process 0 within {self.seconds:g} s; allow "
                    "more time, or look at what process 0 does"
                )
            self.fail(_broken(error))

    def write(self, key: str, value: bytes) -> None:
        try:
            self.call("key_value_set_bytes", key, value)
        except RuntimeError as error:
            self.fail(_broken(error))
        with _lock:
            _written[self.topic].append(key)

    def read_all(self) -> dict[str, bytes]:
        try:
            return dict(self.call("key_value_dir_get_bytes", self.folder))
        except RuntimeError as error:
            self.fail(_broken(error))

    def meet(self, keys: Sequence[str]) -> None:
        """Waits for all processes.

        Args:
            keys: What each of them has written before it comes.
        """
        try:
            self.call("wait_at_barrier", self.folder, self.milliseconds)
        except RuntimeError as error:
            if not _timed_out(error):
                self.fail(_broken(error))
            found = self.read_all()
            missing = [index for index, key in enumerate(keys) if key not in found]
            absent = f"; no word from {_processes(missing)}" if missing else ""
            raise TooLateError(
                f"{self.topic!r}: not all {len(keys)} processes came within "
                f"{self.seconds:g} s of the first{absent}; look at what the late ones "
                "do, or allow more time"
            ) from None

    def opened(self, parcel: bytes, *, by: str) -> bytes:
        try:
            content, is_result = unpack(parcel)
        except ParcelError as error:
            self.fail(
                f"what {by} sent was changed on the way: {error}; nothing but "
                "lagom_jax may write keys that begin with lagom_jax/"
            )
        if not is_result:
            reason = content.decode("utf-8", "surrogatepass")
            self.fail(f"{by} could not make it: {reason}")
        return content

    def forget_earlier(self) -> None:
        """Removes what this process wrote for earlier uses of the topic.

        Everybody has come to this use, so nobody still waits for what was before.
        """
        with _lock:
            written = _written[self.topic]
            earlier = [key for key in written if not key.startswith(self.folder)]
            _written[self.topic] = [key for key in written if key not in earlier]
        for key in earlier:
            try:
                self.call("key_value_delete", key)
            except (RuntimeError, LagomError) as error:
                _LOG.debug("%s: %s stays: %s", self, key, error)
                return


def _make_and_send(topic: str, make: Callable[[], bytes], seconds: float) -> bytes:
    try:
        made = make()
    except BaseException as error:
        _LOG.debug("%r: not made", topic, exc_info=True)
        reason = _encoded(_shortened(f"{type(error).__name__}: {error}"))
        try:
            use = _Use.next(topic, _SHARED, seconds)
            use.write(use.folder, pack(reason, result=False))
        except LagomError as unheard:
            _LOG.debug("%r: the others do not know: %s", topic, unheard)
        raise
    parcel = pack(made)
    use = _Use.next(topic, _SHARED, seconds)
    use.write(use.folder, parcel)
    _LOG.debug("%s: %d bytes sent as %d", use, len(made), len(parcel))
    return made


def _jax_state() -> Any:
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile._jax_internals import distributed_state

    return distributed_state()


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Returns a call's result if it comes in time.

    It runs in a thread: jax's calls neither end when they should nor hear Ctrl-C.

    Raises:
        TimeoutError: It does not answer in time.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="lagom_jax agreement", daemon=True).start()
    return answer.result(min(seconds, threading.TIMEOUT_MAX))


def _timed_out(error: Exception) -> bool:
    return str(error).startswith("DEADLINE_EXCEEDED")


def _broken(error: Exception) -> str:
    first = _shortened(str(error).partition("\n")[0])
    return (
        f"jax's coordination service refuses: {first}; look for the first error in the "
        "logs of all processes"
    )


def _encoded(text: str) -> bytes:
    # What comes from the environment need not be Unicode.
    return text.encode("utf-8", "surrogatepass")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "…"


def _difference(words: Sequence[str]) -> str:
    """A message that lists processes by their words, from where the words differ."""
    who: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        who.setdefault(word, []).append(index)
    ranked = sorted(who, key=lambda word: (-len(who[word]), who[word]))
    start = max(0, _same(ranked) - _SHOWN_BEFORE)
    shown = [
        f"{_processes(who[word])} {_excerpt(word, start)!r}"
        for word in ranked[:_SHOWN_WORDS]
    ]
    if len(ranked) > _SHOWN_WORDS:
        others = [index for word in ranked[_SHOWN_WORDS:] for index in who[word]]
        shown.append(f"{_processes(sorted(others))} other things still")
    return (
        f"the processes do not say the same: {', '.join(shown)}; start all of them "
        "with the same versions, flags and inputs"
    )


def _same(words: Sequence[str]) -> int:
    """With how many letters all of them begin."""
    letters = enumerate(zip(*words, strict=False))
    differ = (place for place, at_place in letters if len(set(at_place)) > 1)
    return next(differ, min(map(len, words)))


def _excerpt(word: str, start: int) -> str:
    end = start + _SHOWN
    before, after = "…" if start else "", "…" if end < len(word) else ""
    return f"{before}{word[start:end]}{after}"


def _processes(indices: Iterable[int]) -> str:
    """Indices in ascending order, as people write them."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    written = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    one = len(runs) == 1 and len(runs[0]) == 1
    return f"{'process' if one else 'processes'} {', '.join(written)}"
