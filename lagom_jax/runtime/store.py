"""Entries of rounds in the coordination service of `jax.distributed`.

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

import dataclasses
import json
import logging
import threading
import zlib
from typing import Any, Final, Protocol

from lagom_jax.errors import ToolchainError
from lagom_jax.runtime.protocol import (
    Entry,
    Get,
    Put,
    Reply,
    StoreAnswer,
    Verdict,
    Word,
)
from lagom_jax.runtime.waiting import in_background

_LOG = logging.getLogger("lagom_jax")
# How late the service may be: it looks at limits once a second, on a busy machine.
_SLACK_SECONDS: Final = 5.0
_LONGEST_MS: Final = 2**31 - 1


class WriteOnceTable(Protocol):
    """A table whose values are written once."""

    def put(self, key: str, value: bytes, *, replaces: bool = False) -> StoreAnswer:
        """Writes a value where there is none, or in any case."""
        ...

    def get(self, key: str, seconds: float = 0.0) -> bytes | StoreAnswer:
        """Reads a value, or waits for one."""
        ...

    def listed(self, folder: str) -> dict[str, bytes] | StoreAnswer:
        """All values whose keys begin so."""
        ...


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

    def listed(self, folder: str) -> dict[str, bytes] | StoreAnswer:
        """All values whose keys begin so."""
        try:
            return dict(self._call("key_value_dir_get_bytes", 0.0, folder))
        except (RuntimeError, ToolchainError) as error:
            _LOG.debug("%s was not listed: %s", folder, error)
            return StoreAnswer.LOST

    def _call(self, method: str, seconds: float, *arguments: object) -> Any:
        """Calls a method of the client in a thread: some do not end when they should.

        Raises:
            RuntimeError: The service refuses, or does not answer in time.
        """
        from lagom_jax.compile._internal import internal

        call = internal(self._client, method)
        try:
            longest = min(seconds + _SLACK_SECONDS, threading.TIMEOUT_MAX)
            return in_background(lambda: call(*arguments)).result(longest)
        except TimeoutError:
            raise RuntimeError("the coordination service does not answer") from None


class RoundEntries:
    """The entries of one round, as one process writes and reads them."""

    def __init__(self, table: WriteOnceTable, room: str) -> None:
        """Takes the table, and what the keys of the round begin with."""
        self._table, self._room = table, room
        self._words: dict[str, bytes] = {}
        self._lists, self._alone = True, 1

    def put(self, asked: Put) -> StoreAnswer:
        """Writes an entry."""
        return self._table.put(self._key(asked.kind, asked.member), packed(asked.value))

    def sign(self, count: int) -> None:
        """Says that the leader works."""
        key = self._key(Entry.SIGN, 0)
        self._table.put(key, str(count).encode(), replaces=True)

    def get(self, asked: Get, seconds: float) -> Reply:
        """Reads an entry, and waits so long for it where that is asked for."""
        key = self._key(asked.kind, asked.member)
        found = self._words.get(key)
        if found is None and asked.kind is Entry.WORD:
            found = self._listed(key)
        if found is None:
            found = self._table.get(key, seconds if asked.waits else 0.0)
        if isinstance(found, StoreAnswer):
            return found
        try:
            return unpacked(asked.kind, found)
        except (ValueError, TypeError, zlib.error) as error:
            _LOG.warning("%s is not as it was written: %s", key, error)
            return StoreAnswer.LOST

    def _listed(self, key: str) -> bytes | None:
        """A word among all that are there, which take as long to read as a few.

        They are read again when as many were read alone as there had been, so that the
        bytes of all words pass a few times at most. Where they cannot be listed, each
        is read alone.
        """
        self._alone += 1
        if self._lists and self._alone > len(self._words):
            found = self._table.listed(f"{self._room}/{Entry.WORD.value}/")
            self._lists, self._alone = isinstance(found, dict), 0
            self._words = found if isinstance(found, dict) else {}
        return self._words.get(key)

    def _key(self, kind: Entry, member: int) -> str:
        return f"{self._room}/{kind.value}/{member}"


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
