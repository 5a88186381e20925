"""Settings of collectives, and the calls of NCCL that they are for."""

from __future__ import annotations

import dataclasses
from typing import Final

from lagom_jax.errors import LagomError

ALGORITHMS: Final = ("ring", "tree", "nvls", "nvls_tree", "pat", "p2p")
"""`p2p` is what all-to-all and permutes run as: sends and receives in a group."""
PROTOCOLS: Final = ("ll", "ll128", "simple")
REDUCING: Final = ("all-reduce", "all-gather", "reduce-scatter")
"""Kinds of collective for which NCCL has algorithms, and asks a tuner."""
MOST_CHANNELS: Final = 64
CHUNK_GRAIN: Final = {"ll": 16, "ll128": 1920, "simple": 512}
"""NCCL rounds a chunk down to a multiple of these bytes."""
_STEP: Final = {"ll": 32768, "ll128": 576000, "simple": 524288}
"""Payload of one of the eight steps of a channel's default buffer."""
_THREADS: Final = {"ll": (64, 512), "ll128": (160, 640), "simple": (64, 640)}
PAYLOAD: Final = {"ll": 1 / 2, "ll128": 120 / 128, "simple": 1.0}
"""Share of data in what a protocol sends: LL has a flag of 4 bytes for every 4 bytes,
LL128 one of 8 for every 120."""
_SIMPLE_ONLY: Final = ("nvls", "nvls_tree")


class SettingError(LagomError, ValueError):
    """A setting that NCCL could not run, or a text that is none."""


def largest_chunk(algorithm: str, protocol: str) -> int:
    """The largest chunk that the default buffers hold.

    Example:
        >>> largest_chunk("ring", "simple"), largest_chunk("tree", "simple")
        (2097152, 524288)
    """
    # Only the ring fills four steps of its buffer at a time, and only with Simple.
    steps = 4 if (algorithm, protocol) == ("ring", "simple") else 1
    return _STEP[protocol] * steps


def threads_range(algorithm: str, protocol: str) -> tuple[int, int]:
    """The fewest threads, and as many as NCCL takes where a message fills them.

    Example:
        >>> threads_range("ring", "simple"), threads_range("tree", "ll")
        ((64, 544), (64, 512))
    """
    low, high = _THREADS[protocol]
    if (algorithm, protocol) == ("ring", "simple"):
        return low, 544  # 512, and a warp that only synchronises
    return low, 512 if algorithm == "p2p" else high


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Algorithm, protocol, channels, threads and chunk size of one collective.

    Example:
        >>> setting = Setting("ring", "simple", 24, 544, 2097152)
        >>> str(setting)
        'ring/simple/24/544/2097152'
        >>> Setting.parse(str(setting)) == setting
        True
        >>> Setting("ring", "ll", 24, 640, 32768)
        Traceback (most recent call last):
        ...
        lagom_jax.plan.setting.SettingError: 640 threads: ll takes 64 to 512, in warps
        of 32
    """

    algorithm: str
    """One of `ALGORITHMS`."""
    protocol: str
    """One of `PROTOCOLS`."""
    channels: int
    """Thread blocks that share the work; each holds an SM while the collective runs."""
    threads: int
    """Threads in each of them, those that only synchronise included."""
    chunk_bytes: int
    """Data that a channel hands on at a time."""

    def __post_init__(self) -> None:
        """Checks the limits of NCCL's default buffers."""
        _member("algorithm", self.algorithm, ALGORITHMS)
        _member("protocol", self.protocol, PROTOCOLS)
        if self.algorithm in _SIMPLE_ONLY and self.protocol != "simple":
            raise SettingError(f"{self.algorithm} runs with the protocol simple only")
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise SettingError(
                f"{self.channels} channels: NCCL has 1 to {MOST_CHANNELS}"
            )
        low, high = _THREADS[self.protocol]
        if not low <= self.threads <= high or self.threads % 32:
            raise SettingError(
                f"{self.threads} threads: {self.protocol} takes {low} to {high}, "
                "in warps of 32"
            )
        grain = CHUNK_GRAIN[self.protocol]
        limit = largest_chunk(self.algorithm, self.protocol)
        if not grain <= self.chunk_bytes <= limit:
            raise SettingError(
                f"a chunk of {self.chunk_bytes} bytes: {self.algorithm} with "
                f"{self.protocol} takes {grain} to {limit}"
            )

    def __str__(self) -> str:
        """`algorithm/protocol/channels/threads/chunk_bytes`."""
        return "/".join(str(getattr(self, f.name)) for f in dataclasses.fields(self))

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting that `str` wrote.

        Raises:
            SettingError: The text has another form, or NCCL could not run it.

        Example:
            >>> Setting.parse("p2p/simple/32/512/524288").channels
            32
        """
        parts = text.strip().split("/")
        numbers = parts[2:]
        if len(parts) != 5 or not all(n.isascii() and n.isdigit() for n in numbers):
            raise SettingError(
                f"{text!r} is no setting; write "
                "ALGORITHM/PROTOCOL/CHANNELS/THREADS/CHUNK_BYTES, such as "
                "ring/simple/24/544/2097152"
            )
        channels, threads, chunk = map(int, numbers)
        return cls(parts[0], parts[1], channels, threads, chunk)


@dataclasses.dataclass(frozen=True, slots=True)
class Cap:
    """At most so many channels, and the rest as NCCL chooses.

    Example:
        >>> print(Cap(8))
        at most 8 channels
    """

    channels: int

    def __post_init__(self) -> None:
        """Checks the limits of NCCL."""
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise SettingError(
                f"{self.channels} channels: NCCL has 1 to {MOST_CHANNELS}"
            )

    def __str__(self) -> str:
        """In words."""
        return f"at most {self.channels} channel{'s' if self.channels > 1 else ''}"

    def of(self, usual: Setting) -> Setting:
        """A setting under the cap.

        Example:
            >>> str(Cap(8).of(Setting("ring", "simple", 24, 544, 2097152)))
            'ring/simple/8/544/2097152'
        """
        channels = min(usual.channels, self.channels)
        return dataclasses.replace(usual, channels=channels)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Call:
    """A call of NCCL as its tuner plugin sees it.

    Example:
        >>> str(Call("all-gather", 64, 8, 16 << 20))
        'all-gather of 16777216 bytes over 64 ranks in 8 domains'
    """

    function: str
    ranks: int
    domains: int
    bytes: int
    """As NCCL adds them up: on the larger side, over the operands taken together."""
    operands: int | None = dataclasses.field(default=None, compare=False)
    """Operands of the collective that makes it, among which channels are divided. The
    tuner does not see them, so calls that differ in nothing else are the same. None
    where that was not written down."""

    def __str__(self) -> str:
        """In words."""
        return (
            f"{self.function} of {self.bytes} bytes over {self.ranks} ranks in "
            f"{self.domains} domain{'s' if self.domains > 1 else ''}"
        )


def _member(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingError(f"no {what} {value!r}; known are {', '.join(known)}")
