"""Exchange between regions that are processes, while their steps go on.

A message leaves through a thread of its own, and the answer arrives in another; the
jitted step only hands over and takes what has arrived. It waits where an answer is
later than its delay allows, and `waited_s` says for how long it did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import queue
import socket
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lagom_jax.cluster import Link
from lagom_jax.errors import RegionError
from lagom_jax.regions import compression
from lagom_jax.regions.compression import Message
from lagom_jax.regions.frames import Frame, Kind, read_frame, unpack
from lagom_jax.regions.outer_state import OuterOptimizer, OuterState

_RETRY_S = 0.2


class MessagePart(NamedTuple):
    """One part of a region's message, of how many."""

    part: int
    parts: int


@dataclasses.dataclass(slots=True)
class _Flight:
    """An exchange that this region takes part in, or a part of one."""

    place: MessagePart
    data: bytes
    size: int
    bits: int
    answer: tuple[np.ndarray, int] | None = None


class Exchange:
    """One region's end of the way to all others; give it as `axis`.

    Args:
        address: Of the meeting: `host:port`.
        region: Which region this is, from 0; by default jax's process index.
        patience: For how many seconds an answer is waited for. After that the exchange
            counts as missed, and this region goes on without it.
        process: Which process of its region this is, from 0; where a region is several,
            each gives what its own devices hold (see `within`).
        processes: How many processes a region is; the same in all regions.
        emulated: A link whose bandwidth and latency are imitated, by holding back what
            this region sends; for trials on one machine.

    Raises:
        RegionError: Nobody listens there.
    """

    def __init__(
        self,
        address: str,
        region: int | None = None,
        patience: float = 120.0,
        process: int = 0,
        processes: int = 1,
        emulated: Link | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise RegionError(f"{address!r} is no address: write host:port")
        self.region = jax.process_index() if region is None else region
        if not 0 <= process < processes:
            raise RegionError(f"process={process} is none of {processes}: count from 0")
        self.process, self._processes = process, processes
        self._address = (host, int(port))
        self._patience = patience
        self._emulated = emulated
        self._since = 0
        self._changed = threading.Condition()
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._state: bytes | None = None
        self._refused: str | None = None
        self._asked: dict[int, int] = {}
        self._outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._ended = False
        self.waited_s = 0.0
        """Seconds for which steps have waited for answers, in all."""
        self.waits = 0
        """Arrivals that a step had to wait for."""
        self.missed = 0
        """Exchanges without an answer in time."""
        self._connection = self._connect(patience)
        for target in (self._listen, self._speak):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """Leaves the meeting."""
        self._ended = True
        self._outbox.put(None)

    def give(
        self, number: int, place: MessagePart, parts: Message, bits: int, *, sound: bool
    ) -> None:
        """Hands a message over; at once, and only once.

        Args:
            number: Of the exchange.
            place: The part of the region's message that this is.
            parts: The message's arrays.
            bits: Of each number in it.
            sound: Whether it is finite; if not it does not count.
        """
        data = compression.to_bytes(parts) if sound else b""
        size = parts[0].size * (2 if bits == 4 else 1)
        with self._changed:
            if (number, place.part) in self._flights:
                return
            self._flights[number, place.part] = _Flight(place, data, size, bits)
        self._outbox.put(_given(number, self.region, place, data))

    def take(
        self, number: int, place: MessagePart, parts: Message, bits: int, *, sound: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mean over the regions whose messages counted, and how many they were.

        Waits if it is late, and takes the same arguments as `give`: a process that was
        started anew has sent nothing yet.

        Raises:
            RegionError: The regions are not laid out or cut alike.
        """
        self.give(number, place, parts, bits, sound=sound)
        began = time.monotonic()
        with self._changed:
            flight = self._flights[number, place.part]
            if flight.answer is None:
                self.waits += 1
                self._changed.wait_for(
                    lambda: flight.answer is not None or self._refused is not None,
                    self._patience,
                )
                self.waited_s += time.monotonic() - began
            del self._flights[number, place.part]
        self._check()
        if flight.answer is None:
            self.missed += 1
            return np.zeros(flight.size, np.float32), np.array(0, np.int32)
        mean, members = flight.answer
        return mean, np.array(members, np.int32)

    # Leaving and coming back.

    def join(
        self, outer: OuterOptimizer, params: Any, state: OuterState
    ) -> tuple[Any, OuterState] | None:
        """Takes part from now on: from others' global parameters if there are any.

        Args:
            outer: The optimiser that uses this exchange.
            params: This region's, of which only the shapes count.
            state: Likewise.

        Returns:
            Parameters and state to go on from, at the step of the region that gave
            them; None where no other region is there, or none answers in time.
        """
        self._state = None
        layout = (self.process, self._processes)
        self._outbox.put(Frame(Kind.ASK, 0, self.region, *layout))
        with self._changed:
            self._changed.wait_for(
                lambda: self._state is not None or self._refused is not None,
                self._patience,
            )
        self._check()
        if not self._state:
            self.enter(outer, state)
            return None
        common = _from_bytes(self._state, state.common)
        del params
        params, state = outer.join(common)
        self._since = _following(outer, state)
        return params, state

    def enter(self, outer: OuterOptimizer, state: OuterState) -> None:
        """Takes part from now on, with a state of one's own.

        For the first start of all regions, and where all go on from checkpoints.
        """
        # What is under way in the state may have to be sent again.
        arriving = int(state.common.step) - outer.cadence.delay
        self._enter(max(1, arriving // outer.cadence.interval + 1))

    def offer(self, outer: OuterOptimizer, state: OuterState) -> bool:
        """Gives the state to a region that has asked for it; call it between steps.

        Returns:
            Whether anyone had asked.
        """
        following = _following(outer, state)
        with self._changed:
            asked = {r for r, after in self._asked.items() if following >= after}
            for region in asked:
                del self._asked[region]
        if not asked:
            return False
        data, step = _to_bytes(state.common), int(state.common.step)
        # From this one on it is waited for, before anything else is sent from here.
        for region in asked:
            layout = (self.process, self._processes)
            self._outbox.put(Frame(Kind.STATE, following, region, *layout, step, data))
        return True

    # Threads.

    def _enter(self, since: int) -> None:
        self._since = since
        layout = (self.process, self._processes)
        self._outbox.put(Frame(Kind.JOIN, since, self.region, *layout))

    def _check(self) -> None:
        if self._refused is not None:
            raise RegionError(self._refused)

    def _listen(self) -> None:
        while not self._ended:
            try:
                while True:
                    self._heed(read_frame(self._connection))
            except OSError:
                if self._ended:
                    return
            self._reconnect()

    def _heed(self, frame: Frame) -> None:
        with self._changed:
            flight = self._flights.get((frame.number, frame.part))
            if frame.kind == Kind.RESULT and flight is not None:
                try:
                    flight.answer = _mean(unpack(frame.data), self.region, flight)
                except ValueError as error:
                    self._refused = f"the regions' parameters differ: {error}"
            elif frame.kind == Kind.REFUSED:
                # What follows from the first refusal explains less.
                text = frame.data.decode(errors="replace")
                self._refused = self._refused or text
            elif frame.kind == Kind.ASK:
                self._asked[frame.region] = frame.number
            elif frame.kind == Kind.STATE:
                self._state = frame.data
            self._changed.notify_all()

    def _speak(self) -> None:
        while (frame := self._outbox.get()) is not None:
            if self._emulated is not None and not self._ended:
                size = len(frame.to_bytes())
                time.sleep(self._emulated.latency_s + size / self._emulated.bytes_per_s)
            # What is lost with the connection is sent again with the next one.
            with contextlib.suppress(OSError):
                self._connection.sendall(frame.to_bytes())
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _connect(self, patience: float) -> socket.socket:
        end = time.monotonic() + patience
        while True:
            try:
                connection = socket.create_connection(self._address, timeout=patience)
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            except OSError as error:
                if time.monotonic() > end or self._ended:
                    raise RegionError(
                        f"no meeting of regions at {':'.join(map(str, self._address))}"
                        f" ({error}): start one with `lagom regions meet`"
                    ) from error
            time.sleep(_RETRY_S)

    def _reconnect(self) -> None:
        while not self._ended:
            with contextlib.suppress(RegionError):
                self._connection = self._connect(_RETRY_S)
                break
        with self._changed:
            waiting = [
                (number, flight)
                for (number, _), flight in self._flights.items()
                if flight.answer is None
            ]
        if self._since:
            self._enter(self._since)
        for number, flight in waiting:
            self._outbox.put(_given(number, self.region, flight.place, flight.data))


def _following(outer: OuterOptimizer, state: OuterState) -> int:
    """The number of the next exchange."""
    return int(state.common.step) // outer.cadence.interval + 1


def _given(number: int, region: int, place: MessagePart, data: bytes) -> Frame:
    sent = b"1" + data if data else b"0"
    return Frame(Kind.GIVE, number, region, place.part, place.parts, data=sent)


def _to_bytes(tree: Any) -> bytes:
    """This process's part of a tree: each piece under its place in its leaf."""
    arrays: dict[str, np.ndarray] = {}
    for n, leaf in enumerate(jax.tree.leaves(tree)):
        for shard in leaf.addressable_shards:
            piece = np.asarray(shard.data)
            # numpy's own format knows no bfloat16, and float32 holds all of it.
            plain = piece.astype(np.float32) if piece.dtype.kind == "V" else piece
            arrays.setdefault(_key(n, shard.index, leaf.shape), plain)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _from_bytes(data: bytes, like: Any) -> Any:
    """A tree laid out as another one, of what `_to_bytes` wrote."""
    leaves, structure = jax.tree.flatten(like)
    with np.load(io.BytesIO(data)) as arrays:

        def restored(n: int, leaf: jax.Array) -> jax.Array:
            def piece(index: Any) -> np.ndarray:
                key = _key(n, index, leaf.shape)
                if key not in arrays:
                    raise RegionError(
                        "the state of the other region is cut in another way: lay "
                        "out the same mesh in all regions"
                    )
                return np.asarray(jnp.asarray(arrays[key], leaf.dtype))

            return jax.make_array_from_callback(leaf.shape, leaf.sharding, piece)

        new = [restored(n, leaf) for n, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, new)


def _key(n: int, index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    cuts = [s.indices(size)[:2] for s, size in zip(index, shape, strict=True)]
    return "_".join([str(n), *(f"{a}-{b}" for a, b in cuts)])


def _mean(
    messages: dict[int, bytes], region: int, flight: _Flight
) -> tuple[np.ndarray, int]:
    """The mean of the messages that are sound, in the order of the regions."""
    total, count = np.zeros(flight.size, np.float32), 0
    for sender, data in sorted(messages.items()):
        sound = bool(flight.data) if sender == region else data[:1] == b"1"
        if sound:
            raw = flight.data if sender == region else data[1:]
            message = compression.from_bytes(raw, flight.size, flight.bits)
            total += compression.decode(message, flight.bits)
            count += 1
    return total / max(count, 1), count
