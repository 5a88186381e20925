"""The meeting of regions that are processes: it decides whose messages count.

All regions send to one place, which closes an exchange when everyone who takes part
has given a message, or when nobody wants to wait any longer, and then sends the same
set of messages to all. So all regions take in the same mean, whoever is late or gone.
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


@dataclasses.dataclass(slots=True, eq=False)
class _Member:
    connection: socket.socket
    region: int = -1
    since: int = -1
    """The first exchange that it takes part in; -1 before it has joined."""
    outbox: queue.SimpleQueue[Frame | None] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )


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
        self._open: dict[int, dict[int, bytes]] = {}
        self._closed: collections.OrderedDict[int, dict[int, bytes]] = (
            collections.OrderedDict()
        )
        self._timers: dict[int, threading.Timer] = {}
        self._asking: dict[int, _Member] = {}
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
                # Perhaps it was the one who had been asked.
                self._ask(asking, region)

    def _heed(self, member: _Member, frame: Frame) -> None:
        if frame.kind == Kind.JOIN:
            member.region, member.since = frame.region, frame.number
            self._awaited.discard(frame.region)
            for number in list(self._open):
                self._close_if_complete(number)
        elif frame.kind == Kind.GIVE:
            self._given(member, frame)
        elif frame.kind == Kind.ASK:
            self._ask(member, frame.region)
        elif frame.kind == Kind.STATE:
            asking = self._asking.pop(frame.region, None)
            if asking is not None:
                asking.region, asking.since = frame.region, frame.number
                asking.outbox.put(frame)

    def _given(self, member: _Member, frame: Frame) -> None:
        number = frame.number
        if number in self._closed:
            self._answer(member, number)
            return
        if number not in self._open:
            self._open[number] = {}
            timer = threading.Timer(self._patience, self._close_late, (number,))
            timer.daemon = True
            self._timers[number] = timer
            timer.start()
        self._open[number][frame.region] = frame.data
        self._close_if_complete(number)

    def _close_if_complete(self, number: int) -> None:
        expected = {m.region for m in self._members if 0 <= m.since <= number}
        if not self._awaited and expected <= self._open[number].keys():
            self._close(number)

    def _close_late(self, number: int) -> None:
        with self._lock:
            if number in self._open and not self._ended:
                self._close(number)

    def _close(self, number: int) -> None:
        self._timers.pop(number).cancel()
        given = self._open.pop(number)
        self._closed[number] = given
        while len(self._closed) > _KEPT:
            self._closed.popitem(last=False)
        for member in self._members:
            if member.region in given:
                self._answer(member, number)

    def _answer(self, member: _Member, number: int) -> None:
        # Its own message it has; an empty one says whether it counts.
        given = {
            region: b"" if region == member.region else data
            for region, data in self._closed[number].items()
        }
        frame = Frame(Kind.RESULT, number, member.region, pack(given))
        member.outbox.put(frame)

    def _ask(self, member: _Member, region: int) -> None:
        others = [m for m in self._members if m.since >= 0 and m.region != region]
        if others:
            self._asking[region] = member
            donor = min(others, key=lambda m: m.region)
            donor.outbox.put(Frame(Kind.ASK, 0, region))
        else:
            self._asking.pop(region, None)
            member.outbox.put(Frame(Kind.STATE, 0, region))


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
