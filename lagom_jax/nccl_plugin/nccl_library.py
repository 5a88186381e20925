"""Check that an NCCL library will load the plugin: by the interfaces of both."""

from __future__ import annotations

import ctypes.util
import dataclasses
import importlib.util
import mmap
import re
from pathlib import Path
from typing import Final

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.library import VERSIONS

_SYMBOL: Final = re.compile(rb"ncclTunerPlugin_v(\d+)\0")
_RELEASE: Final = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_WITH_CHUNKS: Final = 6


@dataclasses.dataclass(frozen=True, slots=True)
class NcclLibrary:
    """An NCCL library, by what stands in its file: nothing of it is run.

    Example:
        >>> library = NcclLibrary(Path("libnccl.so.2"), "2.28.3", (2, 3, 4, 5))
        >>> library.speaks, library.takes_chunks
        (5, False)
    """

    path: Path
    release: str | None
    looks_for: tuple[int, ...]
    """Versions of a tuner's interface, in ascending order."""

    @property
    def speaks(self) -> int | None:
        """The version in which it would ask the plugin; None if it cannot."""
        common = set(self.looks_for) & set(VERSIONS)
        return max(common, default=None)

    @property
    def takes_chunks(self) -> bool:
        """True if it asks the plugin for chunk sizes."""
        return self.speaks is not None and self.speaks >= _WITH_CHUNKS


def find_nccl() -> Path:
    """The library of the wheel that jax uses, or the system's.

    Raises:
        TunerError: There is neither.
    """
    try:
        wheel = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        wheel = None
    places = [] if wheel is None else list(wheel.submodule_search_locations or ())
    for place in places:
        for path in sorted(Path(place, "lib").glob("libnccl.so*")):
            return path
    # Without a folder the loader would look for it as NCCL's users do.
    name = ctypes.util.find_library("nccl")
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
    ):
        if name and (path := Path(folder, name)).exists():
            return path
    raise TunerError(
        "no NCCL library here: give the path of a libnccl.so.2, or install jax[cuda12]"
    )


def read_nccl(path: Path) -> NcclLibrary:
    """A library's version, and the tuner interfaces that it looks for.

    Raises:
        TunerError: It cannot be read, or is no NCCL library.

    Example:
        >>> read_nccl(Path("/bin/sh"))
        Traceback (most recent call last):
        ...
        lagom_jax.errors.TunerError: /bin/sh looks for no tuner plugin: it is no NCCL
        library, or one before 2.21
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            versions = {int(found) for found in _SYMBOL.findall(content)}
            release = _RELEASE.search(content)
            text = release[1].decode() if release else None
    except (OSError, ValueError) as error:
        raise TunerError(f"cannot read {path}: {error}") from None
    if not versions:
        raise TunerError(
            f"{path} looks for no tuner plugin: it is no NCCL library, or one before "
            "2.21"
        )
    return NcclLibrary(path, text, tuple(sorted(versions)))
