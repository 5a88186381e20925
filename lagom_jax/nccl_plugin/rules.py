"""Rules of the plugin: answers to NCCL's calls, by size or by place."""

from __future__ import annotations

import dataclasses
from typing import Final

from lagom_jax.errors import TunerError
from lagom_jax.plan.setting import CHUNK_GRAIN, MOST_CHANNELS, PROTOCOLS, largest_chunk

FUNCTIONS: Final = (
    "broadcast",
    "reduce",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
)
"""Functions that a tuner is asked about, in the order of NCCL's numbers."""
ALGORITHMS: Final = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
"""As NCCL numbers them; its protocols are numbered like `plan.setting.PROTOCOLS`."""
LEAST_CHUNK: Final = 16 << 10
"""Below this NCCL's own rounding could leave nothing of a chunk."""
MOST_BYTES: Final = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call; None leaves that part to NCCL.

    Example:
        >>> str(Answer("ring", "simple", 8, 1 << 20)), str(Answer(channels=4)), str(
        ...     Answer())
        ('ring/simple, 8 channels, chunk 1048576', '4 channels', 'as NCCL chooses')
    """

    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    """Of one operand: NCCL adds up those of a group."""
    chunk_bytes: int | None = None

    def __post_init__(self) -> None:
        """Checks that NCCL has this."""
        if (self.algorithm is None) != (self.protocol is None):
            raise TunerError("NCCL takes an algorithm and a protocol together")
        if self.algorithm is not None and self.algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise TunerError(f"no algorithm {self.algorithm!r}; known are {known}")
        if self.protocol is not None and self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise TunerError(f"no protocol {self.protocol!r}; known are {known}")
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise TunerError(f"{self.channels} channels: NCCL has 1 to {MOST_CHANNELS}")
        if self.chunk_bytes is not None and not 1 <= self.chunk_bytes < 1 << 32:
            raise TunerError(f"a chunk of {self.chunk_bytes} bytes is none")

    def __str__(self) -> str:
        """In words."""
        parts = [f"{self.algorithm}/{self.protocol}"] * (self.algorithm is not None)
        if self.channels is not None:
            parts.append(f"{self.channels} channel{'s' * (self.channels > 1)}")
        if self.chunk_bytes is not None:
            parts.append(f"chunk {self.chunk_bytes}")
        return ", ".join(parts) or "as NCCL chooses"


IN_SLOTS: Final = ("nvls", "nvls_tree")
"""Algorithms that stage through slots of their own: their chunks never grow."""


def possible_chunk(chunk: int, algorithm: str, protocol: str) -> int:
    """The chunk nearest to one that the default buffers and the grain allow.

    Example:
        >>> possible_chunk(5_000_000, "ring", "simple"), possible_chunk(
        ...     20_000, "ring", "ll128"), possible_chunk(1, "tree", "simple")
        (2097152, 19200, 16384)
    """
    grain = CHUNK_GRAIN[protocol]
    least = -(-LEAST_CHUNK // grain) * grain
    most = largest_chunk(algorithm, protocol)
    return min(max(chunk // grain * grain, least), most)


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """An answer for all calls of a function in a range of sizes.

    Example:
        >>> Rule("all-gather", 1024, 512, Answer())
        Traceback (most recent call last):
        ...
        lagom_jax.errors.TunerError: no size is at least 1024 and at most 512 bytes
    """

    function: str
    """One of `FUNCTIONS`."""
    least: int
    """Bytes of a call as NCCL adds them up, on the larger side; both ends count."""
    most: int
    answer: Answer
    pipe_ops: int | None = None
    """NCCL's number of operations in a pipeline; None takes any."""

    def __post_init__(self) -> None:
        """Checks the key."""
        _function(self.function)
        if not 0 <= self.least <= self.most <= MOST_BYTES:
            raise TunerError(
                f"no size is at least {self.least} and at most {self.most} bytes"
            )
        if self.pipe_ops is not None and not 1 <= self.pipe_ops < 1 << 31:
            raise TunerError(f"{self.pipe_ops} operations: there is at least 1")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One call in a communicator's sequence of calls.

    Example:
        >>> Place("all-to-all", 64, None)
        Traceback (most recent call last):
        ...
        lagom_jax.errors.TunerError: no tuner is asked about 'all-to-all', only about
        broadcast, reduce, all-gather, reduce-scatter, all-reduce
    """

    function: str
    nbytes: int
    answer: Answer | None
    """None: what the rules say for its size."""

    def __post_init__(self) -> None:
        """Checks the key."""
        _function(self.function)
        if not 0 <= self.nbytes <= MOST_BYTES:
            raise TunerError(f"a call of {self.nbytes} bytes is none")


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The communicators of one shape, and what holds for their calls.

    Example:
        >>> ring = Answer("ring", "simple", 4)
        >>> inside = Scope(8, domains=1, rules=(Rule("all-gather", 1, 1 << 20, ring),))
        >>> inside.takes(8, 1, 1), inside.takes(8, 2, 2)
        (True, False)
    """

    ranks: int
    hosts: int | None = None
    """NCCL's nodes; None takes any number."""
    domains: int | None = None
    """NVLink domains; None takes any number."""
    rules: tuple[Rule, ...] = ()
    """The first that fits a call counts."""
    sequences: tuple[tuple[Place, ...], ...] = ()
    """Repeated calls of a communicator; several where communicators of this shape do
    different things. A place goes before the rules."""

    def __post_init__(self) -> None:
        """Checks the shape."""
        for what, number in (
            ("ranks", self.ranks),
            ("hosts", self.hosts),
            ("domains", self.domains),
        ):
            if number is not None and not 1 <= number < 1 << 31:
                raise TunerError(f"{number} {what}: there is at least 1")
        if not all(self.sequences):
            raise TunerError("a sequence without a call repeats nothing")

    def takes(self, ranks: int, hosts: int, domains: int) -> bool:
        """True if a communicator is one of these."""
        return (
            self.ranks == ranks
            and self.hosts in (None, hosts)
            and self.domains in (None, domains)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """All rules of the plugin.

    Example:
        >>> Rules((Scope(8), Scope(16))).scope_of(4, 1, 1) is None
        True
    """

    scopes: tuple[Scope, ...]
    """A communicator has the rules of the first that takes it, and no others."""

    def scope_of(self, ranks: int, hosts: int, domains: int) -> Scope | None:
        """The scope that matches a communicator.

        Example:
            >>> wide, narrow = Scope(8), Scope(8, domains=1)
            >>> Rules((narrow, wide)).scope_of(8, 2, 2) is wide
            True
        """
        return next((s for s in self.scopes if s.takes(ranks, hosts, domains)), None)


def without_places(rules: Rules) -> Rules:
    """The rules without sequences, for a call of which only the size is known.

    Example:
        >>> rules = Rules((Scope(8, sequences=((Place("reduce", 1, None),),)),))
        >>> without_places(rules).scopes[0].sequences
        ()
    """
    return Rules(
        tuple(dataclasses.replace(scope, sequences=()) for scope in rules.scopes)
    )


def _function(name: str) -> None:
    if name not in FUNCTIONS:
        known = ", ".join(FUNCTIONS)
        raise TunerError(f"no tuner is asked about {name!r}, only about {known}")
