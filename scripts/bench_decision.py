"""The time and the bytes of one decision, however many processes there are.

`bench_decision.py [--processes 1024 ...]`: each simulated process goes through the
round of the protocol as a real one does, with words as long as those of a real step and
a plan of 8 kB. The round is made twice: over a table in memory, which is the cost of
the protocol itself, and over the coordination service of `jax.distributed`, as it runs
in process 0. The processes take turns here; on a cluster all but the first run beside
one another.
"""

from __future__ import annotations

import argparse
import socket
import time
from typing import Protocol

import jax

from lagom_jax.runtime.coordination import KeyValueStore, coordinator, packed, unpacked
from lagom_jax.runtime.protocol import (
    Decide,
    Get,
    Member,
    Put,
    Reply,
    StoreAnswer,
    Verdict,
    Word,
    after,
    request,
)

WORD = Word("\n".join(f"xla_gpu_flag_{n}={n * 7919}" for n in range(40)))
PLAN = "a plan, " * 1000


class Store(Protocol):
    """A table whose values are written once."""

    def put(self, key: str, value: bytes) -> StoreAnswer:
        """Writes a value where there is none."""
        ...

    def get(self, key: str) -> bytes | StoreAnswer:
        """Reads a value."""
        ...


class MemoryStore:
    """A table in memory."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> StoreAnswer:
        """Writes a value where there is none."""
        if self._values.setdefault(key, value) is not value:
            return StoreAnswer.TAKEN
        return StoreAnswer.DONE

    def get(self, key: str) -> bytes | StoreAnswer:
        """Reads a value."""
        return self._values.get(key, StoreAnswer.NOTHING)


def decided(count: int, store: Store) -> int:
    """Takes many processes through one round; the bytes that they write and read."""
    members = tuple(range(count))
    running = {me: Member(me, members, WORD) for me in members}
    verdict = Verdict(True, WORD.same, PLAN)
    moved = 0
    while running:
        for me in tuple(running):
            running[me], nbytes = as_far_as_it_goes(running[me], store, verdict)
            moved += nbytes
            if running[me].over:
                assert running.pop(me).verdict == verdict
    return moved


def as_far_as_it_goes(
    member: Member, store: Store, verdict: Verdict
) -> tuple[Member, int]:
    """A process at the point where it has to wait for others, and the bytes till then.

    It asks again when they have had their turn, and does not ask in vain meanwhile.
    """
    room, moved = f"benchmark/{len(member.members)}", 0
    while not member.over:
        asked = request(member)
        reply: Reply = verdict
        if not isinstance(asked, Decide):
            reply, nbytes = answered(asked, store, room)
            moved += nbytes
            if reply is StoreAnswer.NOTHING and isinstance(asked, Get):
                assert asked.waits
                break
        member = after(member, reply)
    return member, moved


def answered(asked: Put | Get, store: Store, room: str) -> tuple[Reply, int]:
    """A store's reply, and the bytes that have passed."""
    key = f"{room}/{asked.kind.value}/{asked.member}"
    if isinstance(asked, Put):
        value = packed(asked.value)
        return store.put(key, value), len(value)
    found = store.get(key)
    if isinstance(found, StoreAnswer):
        return found, 0
    return unpacked(asked.kind, found), len(found)


def service() -> KeyValueStore:
    """The coordination service, with this process as its only one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
    here = coordinator()
    assert here is not None
    return here.store


def main() -> None:
    """Prints a line for each number of processes and each store."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--processes", type=int, nargs="+", default=[128, 1024])
    wanted = arguments.parse_args()
    stores: dict[str, Store] = {
        "a table in memory": MemoryStore(),
        "the coordination service": service(),
    }
    for name, store in stores.items():
        for count in wanted.processes:
            clocks = (time.perf_counter, time.process_time)
            start = [clock() for clock in clocks]
            moved = decided(count, store)
            waited, worked = (
                clock() - begun for clock, begun in zip(clocks, start, strict=True)
            )
            print(
                f"{count} processes over {name}: {waited:.2f} s, {worked:.2f} s of a "
                f"processor, {moved:,} bytes, {moved / count:.0f} for each process",
                flush=True,
            )
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
