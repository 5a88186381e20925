"""Windows: stretches of a step that have nothing to do with each other.

Where everything that was launched has been waited for, the streams are empty whatever
the tasks took. What runs before such a place and what runs after it cannot get in each
other's way, so a step's time is the sum of its windows' times. XLA lets only so many
collectives be under way at once, and most windows hold one or two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lagom_jax.schedule.program import Block, Branch, Launch, Loop, Program, Wait


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A stretch of a step that begins and ends with nothing under way."""

    block: Block
    times: int
    """How often it runs in a step."""


def windows(program: Program) -> tuple[Window, ...]:
    """Cuts a step into windows.

    A loop with nothing under way at its edges is cut inside; another one is part of a
    window as a whole, and so is a branch.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.schedule.program import Kernel, Run, Stream
        >>> a, b = (Kernel(name, Work("copy", 0.0, 1, 1)) for name in "ab")
        >>> body = (Launch(a, Stream.COPY, 1), Run(b), Wait((1,)), Run(b))
        >>> step = Program("p", (Loop("l", body, 3, True),), 1)
        >>> [(len(window.block), window.times) for window in windows(step)]
        [(3, 3), (1, 3)]
    """
    return tuple(_cut(program.body, 1))


def _cut(block: Block, times: int) -> Iterator[Window]:
    stretch: list[Block] = []
    under_way: set[int] = set()

    def done() -> Iterator[Window]:
        if stretch:
            yield Window(tuple(node for nodes in stretch for node in nodes), times)
            stretch.clear()

    quiet = True
    for node in block:
        if isinstance(node, Loop) and not under_way and not _left_under_way(node.body):
            yield from done()
            yield from _cut(node.body, times * node.trips)
            quiet = True
            continue
        launched, waited = _tokens((node,))
        if launched and quiet:
            # Kernels with nothing beside them need not share a window with others.
            yield from done()
            quiet = False
        stretch.append((node,))
        under_way |= launched
        under_way -= waited
        if not under_way and not quiet:
            yield from done()
            quiet = True
    yield from done()


def _left_under_way(block: Block) -> set[int]:
    """Tokens that a body's edges see: launched or waited for on one side only."""
    open_: set[int] = set()
    foreign: set[int] = set()
    for node in block:
        launched, waited = _tokens((node,))
        foreign |= waited - open_ - launched
        open_ |= launched
        open_ -= waited
    return open_ | foreign


def _tokens(block: Block) -> tuple[set[int], set[int]]:
    """Tokens that a block launches, and those it waits for."""
    launched: set[int] = set()
    waited: set[int] = set()
    for node in block:
        if isinstance(node, Launch):
            launched.add(node.token)
        elif isinstance(node, Wait):
            waited.update(node.tokens)
        elif isinstance(node, Loop):
            inner = _tokens(node.body)
            launched |= inner[0]
            waited |= inner[1]
        elif isinstance(node, Branch):
            for arm in node.arms:
                inner = _tokens(arm)
                launched |= inner[0]
                waited |= inner[1]
    return launched, waited
