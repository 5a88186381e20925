"""The meeting of regions that are processes: it decides whose messages count.

All regions send to one place, which closes an exchange when everyone who takes part
has given a message, or when nobody wants to wait any longer, and then sends the same
set of messages to all. So all regions take in the same mean, whoever is late or gone.

A region may be several processes, and its message may come in parts, one from each of
its devices. It counts when all parts are there, and then in every part.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import queue
import socket
import threading
from typing import Final

from lagom_jax.regions.frames import Frame, Kind, pack, read_frame

_KEPT: Final = 64
"""Exchanges that are closed and still known, for those who come late."""
_AHEAD: Final = 3
"""Exchanges from the newest one known to the one after which a region of several
processes gives its state: none of them may have passed it when the question comes."""


@dataclasses.dataclass(slots=True, eq=False)
class _Member:
    """One process of a region."""

    connection: socket.socket
    region: int = -1
    process: int = 0
    processes: int = 1
    since: int = -1
    """The first exchange that it takes part in; -1 before it has joined."""
    gave: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    """Exchanges that are open, and the parts that it gave to them."""
    outbox: queue.SimpleQueue[Frame | None] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )


@dataclasses.dataclass(slots=True)
class _Opened:
    """Messages of an exchange that is not closed, by region and part."""

    given: dict[int, dict[int, bytes]] = dataclasses.field(default_factory=dict)
    parts: int = 0

    def complete(self) -> dict[int, dict[int, bytes]]:
        """The regions whose message is whole."""
        return {
            region: parts
            for region, parts in self.given.items()
            if len(parts) == self.parts
        }


@dataclasses.dataclass(slots=True)
class _Asking:
    """A region that wants the state of another, process by process."""

    members: dict[int, _Member] = dataclasses.field(default_factory=dict)
    states: dict[int, Frame] = dataclasses.field(default_factory=dict)


class Meeting:
    """A server for the exchanges of regions.

    Args:
        address: Host and port to listen on; port 0 takes a free one.
        regions: How many there are; nothing is closed before all have joined once.
        patience: For how many seconds after a first message the others are waited for.

    Example:
        >>> with Meeting(("127.0.0.1", 0), regions=2) as meeting:
        ...     meeting.address[0]
        '127.0.0.1'
    """

    def __init__(
        self, address: tuple[str, int], regions: int, patience: float = 60.0
    ) -> None:
        self._listener = socket.create_server(address, backlog=64)
        self._awaited = set(range(regions))
        self._patience = patience
        self._lock = threading.RLock()
        self._members: set[_Member] = set()
        self._open: dict[int, _Opened] = {}
        self._closed: collections.OrderedDict[int, dict[int, dict[int, bytes]]] = (
            collections.OrderedDict()
        )
        self._timers: dict[int, threading.Timer] = {}
        self._asking: dict[int, _Asking] = {}
        self._newest = 0
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._listener.getsockname()[:2]

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the meeting; the regions go on for themselves."""
        with self._lock:
            self._ended = True
            for timer in self._timers.values():
                timer.cancel()
            for member in self._members:
                member.outbox.put(None)
                _shut(member.connection)
        _shut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            member = _Member(connection)
            with self._lock:
                self._members.add(member)
            threading.Thread(target=self._listen, args=(member,), daemon=True).start()
            threading.Thread(target=_speak, args=(member,), daemon=True).start()

    def _listen(self, member: _Member) -> None:
        with contextlib.suppress(OSError):
            while True:
                frame = read_frame(member.connection)
                with self._lock:
                    self._heed(member, frame)
        with self._lock:
            self._members.discard(member)
            member.outbox.put(None)
            for number in list(self._open):
                self._close_if_complete(number)
            for region, asking in list(self._asking.items()):
                # Perhaps it was the one who had been asked, or the one who asked.
                if asking.members.get(member.process) is member:
                    del self._asking[region]
                else:
                    self._pass_on(region)

    def _heed(self, member: _Member, frame: Frame) -> None:
        if frame.kind in (Kind.JOIN, Kind.ASK):
            if not self._laid_out_alike(member, frame):
                return
            member.region = frame.region
            member.process, member.processes = frame.part, frame.parts
        if frame.kind == Kind.JOIN:
            self._joined(member, frame.number)
        elif frame.kind == Kind.GIVE:
            self._given(member, frame)
        elif frame.kind == Kind.ASK:
            asking = self._asking.setdefault(frame.region, _Asking())
            asking.members[frame.part] = member
            self._pass_on(frame.region)
        elif frame.kind == Kind.STATE:
            self._handed_over(frame)

    def _laid_out_alike(self, member: _Member, frame: Frame) -> bool:
        for other in self._members:
            if other.region >= 0 and other.processes != frame.parts:
                text = (
                    f"region {frame.region} has {frame.parts} processes, but region "
                    f"{other.region} {other.processes}: all must be laid out alike"
                )
                data = text.encode()
                member.outbox.put(Frame(Kind.REFUSED, 0, frame.region, data=data))
                return False
        return True

    def _joined(self, member: _Member, since: int) -> None:
        member.since = since
        self._awaited -= self._present()
        for number in list(self._open):
            self._close_if_complete(number)

    def _present(self, number: int | None = None) -> set[int]:
        """Regions all of whose processes take part, in an exchange or at all."""
        there: dict[int, set[int]] = collections.defaultdict(set)
        for member in self._members:
            if member.since >= 0 and (number is None or member.since <= number):
                there[member.region].add(member.process)
        return {
            member.region
            for member in self._members
            if len(there[member.region]) == member.processes
        }

    def _given(self, member: _Member, frame: Frame) -> None:
        number = frame.number
        self._newest = max(self._newest, number)
        if number in self._closed:
            self._answer(member, number, frame.part)
            return
        if number not in self._open:
            self._open[number] = _Opened(parts=frame.parts)
            timer = threading.Timer(self._patience, self._close_late, (number,))
            timer.daemon = True
            self._timers[number] = timer
            timer.start()
        opened = self._open[number]
        if frame.parts != opened.parts:
            text = (
                f"region {frame.region} cuts its parameters into {frame.parts} parts, "
                f"another one into {opened.parts}: all must be cut alike"
            )
            data = text.encode()
            member.outbox.put(Frame(Kind.REFUSED, number, frame.region, data=data))
            return
        member.gave.add((number, frame.part))
        opened.given.setdefault(frame.region, {})[frame.part] = frame.data
        self._close_if_complete(number)

    def _close_if_complete(self, number: int) -> None:
        complete = self._open[number].complete().keys()
        if not self._awaited and self._present(number) <= complete:
            self._close(number)

    def _close_late(self, number: int) -> None:
        with self._lock:
            if number in self._open and not self._ended:
                self._close(number)

    def _close(self, number: int) -> None:
        self._timers.pop(number).cancel()
        self._closed[number] = self._open.pop(number).complete()
        while len(self._closed) > _KEPT:
            self._closed.popitem(last=False)
        for member in self._members:
            for part in sorted(part for n, part in member.gave if n == number):
                member.gave.discard((number, part))
                self._answer(member, number, part)

    def _answer(self, member: _Member, number: int, part: int) -> None:
        # Its own message it has; an empty one says whether it counts.
        given = {
            region: b"" if region == member.region else parts[part]
            for region, parts in self._closed[number].items()
        }
        frame = Frame(Kind.RESULT, number, member.region, part, data=pack(given))
        member.outbox.put(frame)

    def _pass_on(self, region: int) -> None:
        """Asks another region's processes, once all of the region's own have asked."""
        asking = self._asking[region]
        processes = next(iter(asking.members.values())).processes
        if len(asking.members) < processes:
            return
        others = self._present() - {region}
        if not others:
            del self._asking[region]
            for member in asking.members.values():
                member.outbox.put(Frame(Kind.STATE, 0, region))
            return
        donor = min(others)
        asking.states.clear()
        after = self._newest + _AHEAD if processes > 1 else 0
        for member in self._members:
            if member.region == donor:
                member.outbox.put(Frame(Kind.ASK, after, region))

    def _handed_over(self, frame: Frame) -> None:
        asking = self._asking.get(frame.region)
        if asking is None:
            return
        asking.states[frame.part] = frame
        if len(asking.states) < len(asking.members):
            return
        if len({state.step for state in asking.states.values()}) > 1:
            # Some of them had passed the exchange when they were asked.
            self._newest += _AHEAD
            self._pass_on(frame.region)
            return
        del self._asking[frame.region]
        for process, member in asking.members.items():
            state = asking.states[process]
            # From this one on it is waited for, before anything else is sent from here.
            member.since = state.number
            member.outbox.put(state)


def _speak(member: _Member) -> None:
    """Sends what is in a member's box, so that a slow link holds up nobody else."""
    while (frame := member.outbox.get()) is not None:
        try:
            member.connection.sendall(frame.to_bytes())
        except OSError:
            break
    _shut(member.connection)
    member.connection.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
