"""Device memory that XLA's scheduler keeps below, and the option that lets it use more.

XLA schedules a step so that it stays below a limit: what a schedule decides about may
take `SLOP` per cent of what is left of four fifths of the GPU's memory, once arguments
and results are taken off. Where the limit binds, the scheduler hides less, and what
could be kept is computed and gathered again. Seen on jax 0.10.2, deepseek-moe-16b with
experts on 16 A40: at 95 to 101 per cent the step has instructions made again, at 104
its peak is 39.09 GB of a limit of 39.12.

XLA counts more than a step takes in the end: where it still makes things again below
the limit that it was given, the limit may be higher by as much.
"""

from __future__ import annotations

import dataclasses
from typing import Final

SLOP: Final = "xla_gpu_memory_limit_slop_factor"
"""The option: a share in per cent."""
PERCENT: Final = 95
"""XLA's own value of it."""
_OF_DEVICE = 0.8
_NEAR = 0.9
"""The share of the limit from which on it is taken to bind."""
_MORE = 1.05
"""A new value is so many times the present one, or it is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Device memory of a step, in bytes, and what it may take."""

    peak_bytes: int
    """At the fullest moment, as it is scheduled."""
    kept_bytes: int
    """Arguments and results, donated ones once: what no schedule changes."""
    limit_bytes: int
    """Limit of the step."""
    device_bytes: int
    """Memory of the device."""
    present: int = PERCENT
    """The option's value under which it was scheduled."""

    @property
    def scheduler_limit(self) -> int:
        """Bytes that XLA's scheduler keeps the step below.

        Example:
            >>> MemoryRoom(70, 20, 90, 100).scheduler_limit
            77
        """
        return self.kept_bytes + int(self._left * self.present / 100)

    @property
    def is_near_limit(self) -> bool:
        """True if the step takes nearly all that XLA's scheduler lets it take.

        Example:
            >>> MemoryRoom(75, 20, 90, 100).is_near_limit
            True
        """
        return self.peak_bytes >= _NEAR * self.scheduler_limit

    @property
    def percent(self) -> int | None:
        """The option's value with which XLA uses what the step may take.

        It is for a step that XLA's limit binds; None where there is no more to use.

        Example:
            >>> MemoryRoom(75, 20, 90, 100).percent, MemoryRoom(75, 20, 77, 100).percent
            (120, None)
        """
        used, may = (
            self.peak_bytes - self.kept_bytes,
            self.limit_bytes - self.kept_bytes,
        )
        if self._left <= 0 or used <= 0 or may <= 0:
            return None
        by_xla = 100 * may / self._left
        percent = int(max(by_xla, self.present * may / used))
        return percent if percent >= _MORE * self.present else None

    @property
    def _left(self) -> float:
        return _OF_DEVICE * self.device_bytes - self.kept_bytes
