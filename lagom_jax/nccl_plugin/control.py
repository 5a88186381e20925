"""Rules that change while a job runs, at the same call on every rank.

Each process has a control page of its own, which the plugin in that process reads. A
new generation of rules is written beside the one that holds, and holds from the moment
when the page names it. That moment is a fence: no process is calling NCCL, and all have
agreed. `docs/reference/tuner.md` says why that is enough.
"""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from lagom_jax.errors import InDoubtError, TunerError
from lagom_jax.nccl_plugin.image import LARGEST, checksum, unpack

VARIABLE: Final = "LAGOM_TUNER_CONTROL"
"""The plugin finds the page by it, when NCCL starts it in this process."""
MAGIC: Final = b"LAGOMCTL"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQ")
_WORD: Final = struct.Struct("<Q")
_WORD_AT: Final = 24
_FIRST_SLOT: Final = 4096
_SLOTS: Final = 2

Agree: TypeAlias = Callable[[str, str], bool]
"""Called by every process with the same first text; returns, in every process, whether
all said the same second one. It returns when all have come, and raises only where that
cannot be found out any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """Rules that lie in a page: their number, and their checksum.

    Example:
        >>> str(Generation(3, 0xABC))
        '3:00000abc'
    """

    number: int
    checksum: int

    def __str__(self) -> str:
        """Number and checksum, as processes compare them."""
        return f"{self.number}:{self.checksum:08x}"


class Control:
    """The control page of this process.

    Example:
        >>> from lagom_jax.nccl_plugin.image import pack
        >>> from lagom_jax.nccl_plugin.rules import Rules
        >>> with Control() as control:
        ...     first = control.prepare(pack(Rules(())))
        ...     before = control.active
        ...     control.activate(first)
        ...     before, control.active == first
        (None, True)
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        """Makes a page on which no rules hold.

        Args:
            capacity: Bytes that the largest image may have.

        Raises:
            TunerError: They are more than the plugin reads.
        """
        slot = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        if _FIRST_SLOT + _SLOTS * slot > LARGEST:
            raise TunerError(
                f"two images of {capacity} bytes do not fit a control page: the plugin "
                f"reads no page of more than {LARGEST} bytes"
            )
        # Memory that only this process can name, and that nobody can cut short.
        self._file = os.memfd_create(
            "lagom-tuner", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        os.ftruncate(self._file, _FIRST_SLOT + _SLOTS * slot)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, seals)
        self._page = mmap.mmap(self._file, 0)
        self._slot = slot
        self._prepared: Generation | None = None
        self._page[: _HEADER.size] = _HEADER.pack(MAGIC, VERSION, os.getpid(), slot, 0)

    def __enter__(self) -> Control:
        """The page itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the page."""
        self.close()

    def close(self) -> None:
        """Gives this side of it up; a plugin that has it keeps what holds."""
        self._page.close()
        os.close(self._file)

    def environment(self) -> dict[str, str]:
        """Variables to set in this process before NCCL makes a communicator."""
        return {VARIABLE: f"/proc/self/fd/{self._file}"}

    @property
    def active(self) -> Generation | None:
        """The generation that holds; None while none does."""
        (word,) = _WORD.unpack_from(self._page, _WORD_AT)
        return Generation(word >> 32, word & 0xFFFFFFFF) if word else None

    def prepare(self, image: bytes) -> Generation:
        """Writes the next generation where no plugin looks yet.

        Raises:
            TunerError: It is no image, or too large for the page.
        """
        if len(image) > self._slot:
            raise TunerError(
                f"rules of {len(image)} bytes do not fit a control page for "
                f"{self._slot}: make the page with a larger capacity"
            )
        unpack(image, "what should be the next generation")
        active = self.active
        number = active.number + 1 if active else 1
        at = _FIRST_SLOT + number % _SLOTS * self._slot
        self._page[at : at + len(image)] = image
        self._prepared = Generation(number, checksum(image))
        return self._prepared

    def activate(self, generation: Generation) -> None:
        """Lets a generation hold, from the next call of NCCL on.

        Only at a fence, and when every process has prepared the same: `exchange`.

        Raises:
            TunerError: It is not what was prepared last.
        """
        if generation != self._prepared:
            raise TunerError(f"generation {generation} was not prepared")
        word = generation.number << 32 | generation.checksum
        _WORD.pack_into(self._page, _WORD_AT, word)
        self._prepared = None


def exchange(control: Control, image: bytes, agree: Agree) -> bool:
    """Lets new rules hold in all processes, or in none.

    Every process calls it at the same point of the job, between two steps, when no
    thread of it is calling NCCL, and calls NCCL again only when this has returned.

    Args:
        control: The page of this process.
        image: The new rules.
        agree: How processes find out that they agree.

    Returns:
        Whether the new rules hold now; if not, what held before still does.

    Raises:
        InDoubtError: Nobody can say. A process that goes on may answer NCCL
            otherwise than the others do, so it must not run another step.

    Example:
        >>> from lagom_jax.nccl_plugin.image import pack
        >>> from lagom_jax.nccl_plugin.rules import Rules
        >>> with Control() as control:
        ...     exchange(control, pack(Rules(())), lambda point, said: True)
        True
    """
    number, prepared = 0, None
    try:
        before = control.active
        number = before.number if before else 0
        prepared = control.prepare(image)
        said = str(prepared)
    except Exception as error:
        # The others wait for this process, whatever has become of its rules.
        said = f"none, since {error}"
    try:
        agreed = agree(f"after {number}", said)
    except Exception as error:
        raise InDoubtError(
            f"whether all processes have the rules {said} cannot be found out "
            f"({error}): stop this process, and start the job again"
        ) from error
    if not agreed or prepared is None:
        return False
    try:
        control.activate(prepared)
    except Exception as error:
        raise InDoubtError(
            f"the others have the rules {said} now, and this process does not "
            f"({error}): stop it, and start the job again"
        ) from error
    return True
