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
from collections.abc import Sized

import jax

from lagom_jax.runtime.coordination import coordinator
from lagom_jax.runtime.protocol import (
    Entry,
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
from lagom_jax.runtime.store import RoundEntries, Table

WORD = Word("\n".join(f"xla_gpu_flag_{n}={n * 7919}" for n in range(40)))
VERDICT = Verdict(True, WORD.same, "a plan, " * 1000)


class MemoryTable:
    """A table in memory."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes, *, replaces: bool = False) -> StoreAnswer:
        """Writes a value where there is none."""
        if self._values.setdefault(key, value) is not value:
            return StoreAnswer.TAKEN
        return StoreAnswer.DONE

    def get(self, key: str, seconds: float = 0.0) -> bytes | StoreAnswer:
        """Reads a value."""
        return self._values.get(key, StoreAnswer.NOTHING)

    def listed(self, folder: str) -> dict[str, bytes] | StoreAnswer:
        """All values whose keys begin so."""
        return {k: v for k, v in self._values.items() if k.startswith(folder)}


class CountedTable:
    """A table that counts the bytes which pass."""

    def __init__(self, table: Table) -> None:
        self._table, self.moved = table, 0

    def put(self, key: str, value: bytes, *, replaces: bool = False) -> StoreAnswer:
        """Writes a value."""
        self.moved += len(value)
        return self._table.put(key, value, replaces=replaces)

    def get(self, key: str, seconds: float = 0.0) -> bytes | StoreAnswer:
        """Reads a value."""
        return self._counted(self._table.get(key, seconds))

    def listed(self, folder: str) -> dict[str, bytes] | StoreAnswer:
        """All values whose keys begin so."""
        found = self._table.listed(folder)
        for value in found.values() if isinstance(found, dict) else ():
            self._counted(value)
        return found

    def _counted(self, found: bytes | StoreAnswer) -> bytes | StoreAnswer:
        self.moved += len(found) if isinstance(found, Sized) else 0
        return found


def decided(count: int, table: Table) -> int:
    """Takes many processes through one round; the bytes that they write and read.

    The first process comes first, and waits for each that is not there.
    """
    members, room = tuple(range(count)), f"benchmark/{count}"
    counted = CountedTable(table)
    leader = Member(0, members, WORD), RoundEntries(counted, room)
    leader = as_far_as_it_goes(*leader)
    others = [
        as_far_as_it_goes(Member(me, members, WORD), RoundEntries(counted, room))
        for me in members[1:]
    ]
    # Each of these requests is made once: nobody has waited for more than a word.
    leader = as_far_as_it_goes(*leader, to_the_end=True)
    others = [as_far_as_it_goes(*other, to_the_end=True) for other in others]
    assert all(member.verdict == VERDICT for member, _ in (leader, *others))
    return counted.moved


def as_far_as_it_goes(
    member: Member, entries: RoundEntries, *, to_the_end: bool = False
) -> tuple[Member, RoundEntries]:
    """A process at its end, or at the first point where it has to wait for others."""
    while not member.over:
        asked = request(member)
        reply: Reply = VERDICT
        if isinstance(asked, Put):
            reply = entries.put(asked)
        elif isinstance(asked, Get):
            if not to_the_end and asked.member != member.me:
                break
            if not to_the_end and asked.kind is Entry.VERDICT:
                break
            reply = entries.get(asked, 0.0)
        member = after(member, reply)
    return member, entries


def service() -> Table:
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
    tables: dict[str, Table] = {
        "a table in memory": MemoryTable(),
        "the coordination service": service(),
    }
    for name, table in tables.items():
        for count in wanted.processes:
            clocks = (time.perf_counter, time.process_time)
            start = [clock() for clock in clocks]
            moved = decided(count, table)
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
