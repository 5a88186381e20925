"""Controls: the parts of a setting that an installation of NCCL lets one set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from lagom_jax.errors import LagomError
from lagom_jax.plan.plan import Apart, PlanControls
from lagom_jax.plan.setting import MOST_CHANNELS


class ControlsError(LagomError, ValueError):
    """No such controls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Controls:
    """Parts of a setting that can be set, and collectives that can be distinguished.

    Example:
        >>> named("tuner").sets
        ('algorithm', 'protocol', 'channels', 'chunk')
    """

    name: str
    meaning: str
    """In words, for help texts and reports."""
    tells_apart: Apart
    sets: tuple[str, ...]
    """Of `algorithm`, `protocol`, `channels`, `threads`, `chunk`."""
    most_channels: int | None = None
    """More than the communicator has by itself; None where that cannot be."""
    leaves: tuple[str, ...] = ()
    """Kinds of collective that are left alone, whatever could be gained."""

    def stated(self) -> PlanControls:
        """The part that a plan keeps.

        Example:
            >>> named("caps").stated().tells_apart
            'nothing'
        """
        return PlanControls(self.name, self.tells_apart, self.meaning)

    def keeping_sums(self) -> Controls:
        """The same, but nothing that may change in which order sums are added up.

        Example:
            >>> named("tuner").keeping_sums().leaves
            ('all-reduce', 'reduce-scatter')
        """
        return dataclasses.replace(self, leaves=("all-reduce", "reduce-scatter"))

    def coarser(self) -> Controls | None:
        """Coarser controls, whose settings these controls can express, too.

        Caps are below no tuner, which names a call's algorithm, protocol and chunk
        along with its channels, the same for all calls that it cannot distinguish.

        Example:
            >>> named("sequence").coarser().tells_apart, named("tuner").coarser()
            ('sizes', None)
        """
        if self.tells_apart == "places":
            return dataclasses.replace(self, tells_apart="sizes")
        return None


_PRESETS: Final = (
    Controls(
        "caps",
        "XLA's own caps on channels, one for collectives and one for sends",
        "nothing",
        ("channels",),
    ),
    Controls(
        "tuner",
        "a tuner plugin on a stock NCCL, which knows calls by function, ranks and size",
        "sizes",
        ("algorithm", "protocol", "channels", "chunk"),
    ),
    Controls(
        "sequence",
        "a tuner plugin that also counts calls, and so knows every collective",
        "places",
        ("algorithm", "protocol", "channels", "chunk"),
    ),
    Controls(
        "fork",
        "an NCCL that was changed to take threads per call, and up to 64 channels",
        "sizes",
        ("algorithm", "protocol", "channels", "threads", "chunk"),
        MOST_CHANNELS,
    ),
)
PRESETS: Final[Mapping[str, Controls]] = {preset.name: preset for preset in _PRESETS}
"""The controls that have a name."""


def named(name: str) -> Controls:
    """The controls of a name.

    Raises:
        ControlsError: There are none.
    """
    if name not in PRESETS:
        raise ControlsError(f"no controls {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Values that a search tries."""

    channels: tuple[int, ...]
    chunk_shares: tuple[float, ...]
    """Of the largest chunk that the buffers hold."""
    threads: tuple[int, ...]
    protocols: tuple[str, ...] = ("ll", "ll128", "simple")


FINE: Final = Grid(
    channels=(*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 56, 64),
    chunk_shares=(1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1),
    threads=(96, 128, 192, 256, 320, 384, 448, 512, 544, 640),
)
COARSE: Final = Grid(
    channels=(1, 2, 4, 8, 16, 32),
    chunk_shares=(1 / 16, 1 / 3, 1),
    threads=(512, 640),
    protocols=("ll128", "simple"),
)
"""Few enough to try every combination of a handful of groups."""
