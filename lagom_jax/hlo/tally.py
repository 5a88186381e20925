"""Running totals of a kernel while its operations are walked."""

from __future__ import annotations

from lagom_jax.hlo.matmul import Matmul

HEROES = (
    "matmul",
    "attention",
    "convolution",
    "collective",
    "solve",
    "sort",
    "scatter",
    "fft",
    "custom",
    "reduction",
    "transpose",
    "gather",
    "fusion",
    "copy",
)
"""Kinds of kernel, the one that decides how long it takes first."""

_RANK = {kind: rank for rank, kind in enumerate(HEROES)}


class Tally:
    """Running totals of one kernel."""

    __slots__ = (
        "arithmetic",
        "extra_read",
        "extra_written",
        "flops",
        "matmuls",
        "rank",
        "target",
    )

    def __init__(self) -> None:
        self.flops = 0.0
        self.matmuls: list[Matmul] = []
        self.rank = len(HEROES)
        self.arithmetic = False
        """Some data was computed with; arithmetic on a single index is not meant."""
        self.target = ""
        self.extra_read = 0
        """Bytes of further passes over data that was read before."""
        self.extra_written = 0

    def hero(self, kind: str) -> None:
        """Notes an operation of this kind; the weightiest names the kernel."""
        self.rank = min(self.rank, _RANK[kind])

    @property
    def kind(self) -> str:
        """The weightiest kind noted; empty if none was.

        Example:
            >>> tally = Tally()
            >>> tally.hero("reduction"), tally.hero("matmul"), tally.kind
            (None, None, 'matmul')
        """
        return HEROES[self.rank] if self.rank < len(HEROES) else ""


def share(whole: int, elements: int, count: int) -> int:
    """The part of `whole` that stands for `elements` of `count`, rounded up.

    Example:
        >>> share(512, 10, 20), share(3, 1, 2), share(512, 30, 20)
        (256, 2, 512)
    """
    if elements >= count:
        return whole
    return -(-whole * elements // count)
