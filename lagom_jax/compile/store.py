"""Compiled steps, and orders of instructions, that were found before, a file each.

An entry is found by what it was made from: a compile by the program without the places
that it was written at, options, order, target, and the versions of all that took part.
Nothing is found twice under different contents, so an entry is never wrong, only
missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from lagom_jax.compile import files, wire

EntryKind: TypeAlias = Literal["compile", "order"]
"""Also the ending of the file that an entry is in."""

LOG = logging.getLogger("lagom_jax")

VARIABLE: Final = "LAGOM_STORE"
"""The environment variable that names the folder, or is `off`."""
MOST_BYTES: Final = 2 * 1024**3
"""All entries together; the oldest go first."""
_FORMAT: Final = b"lagom compile 1\n"
_UNFINISHED_SECONDS: Final = 3600.0
# How many devices jax pretends to have on the CPU: a compile for GPUs is the same.
_OF_THE_CPU: Final = "--xla_force_host_platform_device_count="
# What may name a file, whose content is no part of a key, or makes the compiler write.
_FILES = re.compile(r"(^|_)(dump|file|filename|path|dir|directory)(_|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A folder of compiled steps and orders; two processes may share it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder) / "store")
        ...     store.keep("0" * 64, {"ok": True}, b"module")
        ...     store.find("0" * 64), store.find("1" * 64)
        (({'ok': True}, b'module'), None)
    """

    folder: Path
    most_bytes: int = MOST_BYTES

    @classmethod
    def usual(cls, environ: Mapping[str, str] = os.environ) -> Store | None:
        """The store in the user's cache folder, or where `LAGOM_STORE` says.

        Args:
            environ: The environment variables.

        Example:
            >>> Store.usual({"LAGOM_STORE": "off"}) is None
            True
            >>> Store.usual({"XDG_CACHE_HOME": "/c"}).folder
            PosixPath('/c/lagom_jax/compiles')
        """
        named = environ.get(VARIABLE, "")
        if named.lower() in ("off", "0", "false", "no"):
            return None
        if named:
            return cls(Path(named).expanduser())
        root = environ.get("XDG_CACHE_HOME")
        if not root:
            try:
                root = Path.home() / ".cache"
            except RuntimeError:
                # There is no home folder.
                return None
        return cls(Path(root) / "lagom_jax" / "compiles")

    def find(
        self, key: str, kind: EntryKind = "compile"
    ) -> tuple[dict[str, Any], bytes] | None:
        """The header and the payload of an entry; None where there is none to trust."""
        file = self._file(key, kind)
        try:
            data = files.read(file)
            if data is None:
                return None
            found = _unpacked(data)
            # What was used lately stays longest.
            os.utime(file)
        except (OSError, ValueError, zlib.error) as error:
            LOG.warning("a kept %s is not used: %s: %s", kind, file, error)
            return None
        return found

    def keep(
        self,
        key: str,
        header: Mapping[str, Any],
        payload: bytes = b"",
        kind: EntryKind = "compile",
    ) -> None:
        """Writes an entry, if it can be written, and lets the oldest go."""
        body = zlib.compress(wire.pack(header, payload), level=1)
        try:
            files.write(
                self._file(key, kind), _FORMAT + hashlib.sha256(body).digest() + body
            )
            self._shrink()
        except OSError as error:
            LOG.warning("the %s is not kept for the next time: %s", kind, error)

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """All entries, those that were used last at the end."""
        found = [
            one
            for kind in get_args(EntryKind)
            for one in _statuses(self.folder, f"*.{kind}")
        ]
        return sorted(found, key=lambda one: one[1].st_mtime)

    def _shrink(self) -> None:
        kept = self.entries()
        size = sum(status.st_size for _, status in kept)
        for file, status in kept:
            if size <= self.most_bytes:
                break
            file.unlink(missing_ok=True)
            size -= status.st_size
        # Whoever began to write these was killed.
        for file, status in _statuses(self.folder, ".new-*"):
            if time.time() - status.st_mtime > _UNFINISHED_SECONDS:
                file.unlink(missing_ok=True)

    def _file(self, key: str, kind: EntryKind) -> Path:
        return self.folder / f"{key}.{kind}"


def _statuses(folder: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for file in folder.glob(pattern):
        # Another process may have removed it.
        with contextlib.suppress(FileNotFoundError):
            yield file, file.stat()


def _unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(_FORMAT)
    digest, body = data[start : start + 32], data[start + 32 :]
    if not data.startswith(_FORMAT):
        raise ValueError("it is of another format")
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("it is damaged")
    frame = wire.unpack(io.BytesIO(zlib.decompress(body)))
    if frame is None:
        raise ValueError("it is damaged")
    return frame


def key_of(
    request: Mapping[str, Any], program: str, versions: Mapping[str, str]
) -> str:
    """The key under which a compile is stored.

    Args:
        request: All that the compiler is asked for, but for the program.
        program: A digest of the program, without where its operations come from.
        versions: Of all that takes part.

    Example:
        >>> one = key_of({"options": {}}, "module {}", {"jaxlib": "1"})
        >>> one == key_of({"options": {"a": True}}, "module {}", {"jaxlib": "1"})
        False
    """
    stated = {
        "format": _FORMAT.decode(),
        "program": program,
        "request": request,
        "versions": dict(versions),
        "flags": [
            word
            for word in os.environ.get("XLA_FLAGS", "").split()
            if not word.startswith(_OF_THE_CPU)
        ],
    }
    text = json.dumps(stated, sort_keys=True, default=bytes.hex)
    return hashlib.sha256(text.encode()).hexdigest()


def depends_on_files(options: Mapping[str, Any]) -> bool:
    """True if a compile reads or writes files that its key does not cover.

    Args:
        options: The compiler options that are set for it.

    Example:
        >>> depends_on_files({"xla_dump_to": "/tmp"}), depends_on_files({})
        (True, False)
        >>> depends_on_files({"fdo_profile": b""})
        False
    """
    words = [*options, *os.environ.get("XLA_FLAGS", "").split()]
    names = [word.lstrip("-").partition("=")[0] for word in words]
    return any(map(_FILES.search, names))
