"""Kernels that XLA has compiled before, kept for the next compile.

XLA reads the file of its option `xla_gpu_kernel_cache_file` whole when it begins and
writes it whole when it ends, so two compiles that share one lose what the other wrote,
and may read half of it. Here every compile gets a copy of its own, and what it added is
merged afterwards.

The file is a protobuf message of which only the outer form is looked at: a map from the
names of kernels to what is known of each, its fingerprint first, and numbers behind it.
XLA refuses a file in which two kernels share a name or a fingerprint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from lagom_jax.compile import files

LOG = logging.getLogger("lagom_jax")
FILE_OPTION: Final = "xla_gpu_kernel_cache_file"
SPLIT_OPTION: Final = "xla_gpu_enable_llvm_module_compilation_parallelism"
"""Without it jaxlib 0.10.2 compiles all kernels as one, and keeps none; 0.12.0.1 lacks
it, and does always what it asks for."""
QUICK_OPTION: Final = "xla_backend_optimization_level"
"""LLVM's effort for each kernel, spent after schedule and memory are settled."""

_MOST_BYTES: Final = 64 * 1024 * 1024
# A field's number and its kind are one byte.
_FIRST, _SECOND = 0x0A, 0x12


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """The contents of such a file."""

    by_fingerprint: Mapping[bytes, tuple[bytes, bytes]]
    """The name of each, and what is known of it."""
    rest: bytes = b""
    """The bytes behind them."""

    @classmethod
    def read(cls, data: bytes) -> Kernels:
        r"""Reads a file.

        Raises:
            ValueError: It is none, or damaged.

        Example:
            >>> data = b"\n\x08\n\x01k\x12\x03\n\x01f\x10\x01"
            >>> Kernels.read(data)
            Kernels(by_fingerprint={b'f': (b'k', b'\n\x01f')}, rest=b'\x10\x01')
            >>> Kernels.read(data).written() == data
            True
        """
        found: dict[bytes, tuple[bytes, bytes]] = {}
        at = 0
        while at < len(data) and data[at] == _FIRST:
            entry, at = _field(data, at, _FIRST)
            name, value_at = _field(entry, 0, _FIRST)
            value, _ = _field(entry, value_at, _SECOND)
            fingerprint, _ = _field(value, 0, _FIRST)
            found[fingerprint] = name, value
        if data and not found:
            raise ValueError("this is no kernel cache of XLA")
        return cls(found, data[at:])

    def written(self) -> bytes:
        """The file."""
        parts: list[bytes] = []
        names: set[bytes] = set()
        for fingerprint, (first_name, value) in self.by_fingerprint.items():
            name = first_name
            if name in names:
                name += b"_" + hashlib.sha256(fingerprint).hexdigest()[:16].encode()
            names.add(name)
            entry = _written(_FIRST, name) + _written(_SECOND, value)
            parts.append(_written(_FIRST, entry))
        return b"".join(parts) + self.rest

    def with_(self, other: Kernels) -> Kernels:
        """With those of another file."""
        return Kernels({**self.by_fingerprint, **other.by_fingerprint}, other.rest)


class KernelCache:
    """Kernels for one kind of GPU and one version of the compiler.

    Example:
        >>> with KernelCache(None).copy() as file:
        ...     file.exists()
        False
    """

    def __init__(self, file: Path | None) -> None:
        """Reads what was kept.

        Args:
            file: Where they are kept between processes; None keeps them for this one.
        """
        self._file = file
        self._known = self._kept()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def copy(self) -> Iterator[Path]:
        """A file for one compile; what it holds at the end is kept.

        Yields:
            The file's path; there is no such file where nothing is known yet.

        Raises:
            OSError: There is no room for temporary files.
        """
        with tempfile.TemporaryDirectory(prefix="lagom-kernels-") as folder:
            file = Path(folder) / "kernels"
            with self._lock:
                known = self._known
            if known.by_fingerprint:
                file.write_bytes(known.written())
            yield file
            try:
                made = Kernels.read(file.read_bytes())
            except (OSError, ValueError):
                # Nothing was compiled, or its process was killed while it wrote.
                return
            if made.by_fingerprint.keys() - known.by_fingerprint.keys():
                self._keep(made)

    def _keep(self, made: Kernels) -> None:
        with self._lock:
            self._known = self._known.with_(made)
            if self._file is None:
                return
            # Other processes may have added theirs.
            merged = self._kept().with_(self._known)
            data = merged.written()
            if len(data) > _MOST_BYTES:
                merged, data = made, made.written()
            self._known = merged
            try:
                files.write(self._file, data)
            except OSError as error:
                LOG.warning("compiled kernels are not kept: %s", error)
                self._file = None

    def _kept(self) -> Kernels:
        if self._file is None:
            return Kernels({})
        try:
            return Kernels.read(files.read(self._file) or b"")
        except (OSError, ValueError) as error:
            LOG.warning("kept kernels are not used: %s: %s", self._file, error)
            return Kernels({})


def _field(data: bytes, at: int, kind: int) -> tuple[bytes, int]:
    """The bytes of a field, and where the next one begins."""
    if data[at : at + 1] != bytes([kind]):
        raise ValueError("this is no kernel cache of XLA")
    length, at = _varint(data, at + 1)
    if at + length > len(data):
        raise ValueError("a kernel cache ends inside an entry")
    return data[at : at + length], at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        value |= (data[place] & 0x7F) << shift
        shift += 7
        if not data[place] & 0x80:
            return value, place + 1
    raise ValueError("a kernel cache ends inside a length")


def _written(kind: int, content: bytes) -> bytes:
    head = bytearray([kind])
    length = len(content)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content


def asked_by_user(options: Iterable[str]) -> bool:
    """True if the user has chosen a place for kernels, or how they are kept.

    Args:
        options: Names of the options that are set for the compile.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    return any(name in flags or name in options for name in (FILE_OPTION, SPLIT_OPTION))
