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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from lagom_jax.cluster import Link
from lagom_jax.errors import RegionError
from lagom_jax.regions import compression
from lagom_jax.regions.carriers import Held
from lagom_jax.regions.compression import Message
from lagom_jax.regions.frames import Frame, Kind, read_frame, unpack
from lagom_jax.regions.outer_state import OuterOptimizer, OuterState

_RETRY_S = 0.2


@dataclasses.dataclass(slots=True)
class _Flight:
    """An exchange that this region takes part in."""

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
        emulated: Link | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise RegionError(f"{address!r} is no address: write host:port")
        self.region = jax.process_index() if region is None else region
        self._address = (host, int(port))
        self._patience = patience
        self._emulated = emulated
        self._since = 0
        self._changed = threading.Condition()
        self._flights: dict[int, _Flight] = {}
        self._state: bytes | None = None
        self._asked: set[int] = set()
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

    # The carrier's part, called while a step is traced.

    def held(self, size: int, bits: int) -> Held:
        """The message, in case this process is not the one that sent it."""
        whole = jax.ShapeDtypeStruct((), jnp.int32)
        return Held((), (compression.shapes(size, bits), whole, whole))

    def send(
        self, number: jax.Array, message: Message, sound: jax.Array, bits: int
    ) -> Held:
        """Hands the message over."""

        def launch(number: Any, sound: Any, *parts: Any) -> np.ndarray:
            self._give(int(number), bool(sound), parts, bits)
            return np.array(1, np.int32)

        token = io_callback(
            launch, jax.ShapeDtypeStruct((), jnp.int32), number, sound, *message
        )
        return Held((), (message, sound.astype(jnp.int32), token))

    def receive(
        self, number: jax.Array, held: Held, size: int, bits: int
    ) -> tuple[jax.Array, jax.Array]:
        """Takes the mean, and waits for it only if it is late."""
        message, sound, token = held.own

        def land(number: Any, sound: Any, _: Any, *parts: Any) -> Any:
            return self._take(int(number), bool(sound), parts, size, bits)

        shapes = (
            jax.ShapeDtypeStruct((size,), jnp.float32),
            jax.ShapeDtypeStruct((), jnp.int32),
        )
        return io_callback(land, shapes, number, sound, token, *message)

    def first(self, params: Any) -> Any:
        """These very parameters: every region starts with the same."""
        return params

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
        self._outbox.put(Frame(Kind.ASK, 0, self.region))
        with self._changed:
            self._changed.wait_for(lambda: self._state is not None, self._patience)
        found = self._state
        if not found:
            self.enter(outer, state)
            return None
        leaves, structure = jax.tree.flatten(state.common)
        with np.load(io.BytesIO(found)) as arrays:
            new = [
                jnp.asarray(arrays[str(n)].reshape(leaf.shape), leaf.dtype)
                for n, leaf in enumerate(leaves)
            ]
        del params
        params, state = outer.join(jax.tree.unflatten(structure, new))
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
        with self._changed:
            asked, self._asked = self._asked, set()
        if not asked:
            return False
        file = io.BytesIO()
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state.common)]
        # numpy's own format knows no bfloat16, and float32 holds all of it.
        plain = {
            str(n): x.astype(np.float32) if x.dtype.kind == "V" else x
            for n, x in enumerate(arrays)
        }
        np.savez(file, allow_pickle=False, **plain)
        # From this one on it is waited for, before anything else is sent from here.
        following = _following(outer, state)
        for region in asked:
            self._outbox.put(Frame(Kind.STATE, following, region, file.getvalue()))
        return True

    # Threads.

    def _enter(self, since: int) -> None:
        self._since = since
        self._outbox.put(Frame(Kind.JOIN, since, self.region))

    def _give(self, number: int, sound: bool, parts: Any, bits: int) -> None:
        data = compression.to_bytes(parts) if sound else b""
        size = parts[0].size * (2 if bits == 4 else 1)
        with self._changed:
            if number in self._flights:
                return
            self._flights[number] = _Flight(data, size, bits)
        self._outbox.put(_given(number, self.region, data))

    def _take(
        self, number: int, sound: bool, parts: Any, size: int, bits: int
    ) -> tuple[np.ndarray, np.ndarray]:
        # A process that was started anew has sent nothing yet.
        self._give(number, sound, parts, bits)
        began = time.monotonic()
        with self._changed:
            flight = self._flights[number]
            if flight.answer is None:
                self.waits += 1
                self._changed.wait_for(
                    lambda: flight.answer is not None, self._patience
                )
                self.waited_s += time.monotonic() - began
            del self._flights[number]
        if flight.answer is None:
            self.missed += 1
            return np.zeros(size, np.float32), np.array(0, np.int32)
        mean, members = flight.answer
        return mean, np.array(members, np.int32)

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
            if frame.kind == Kind.RESULT and frame.number in self._flights:
                flight = self._flights[frame.number]
                flight.answer = _mean(unpack(frame.data), self.region, flight)
            elif frame.kind == Kind.ASK:
                self._asked.add(frame.region)
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
                (number, flight.data)
                for number, flight in self._flights.items()
                if flight.answer is None
            ]
        if self._since:
            self._enter(self._since)
        for number, data in waiting:
            self._outbox.put(_given(number, self.region, data))


def _following(outer: OuterOptimizer, state: OuterState) -> int:
    """The number of the next exchange."""
    return int(state.common.step) // outer.cadence.interval + 1


def _given(number: int, region: int, data: bytes) -> Frame:
    return Frame(Kind.GIVE, number, region, b"1" + data if data else b"0")


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
