"""Windows: stretches of a step that have nothing to do with each other.

Where everything that was launched has been waited for, the streams are empty whatever
the tasks took. What runs before such a place and what runs after it cannot get in each
other's way, so a step's time is the sum of its windows' times. XLA lets only so many
collectives be under way at once, and most windows hold one or two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lagom_jax.program.program import (
    Block,
    Branch,
    Launch,
    Loop,
    Node,
    Program,
    Wait,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A stretch of a step that begins and ends with nothing under way."""

    block: Block
    times: int
    """The number of times that it runs in a step."""


def windows(program: Program) -> tuple[Window, ...]:
    """Cuts a step into windows.

    A loop with nothing under way at its edges is cut inside; another one is part of a
    window as a whole, and so is a branch.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.program.program import Kernel, Run, Stream
        >>> a, b = (Kernel(name, Work("copy", 0.0, 1, 1)) for name in "ab")
        >>> body = (Launch(a, Stream.COPY, 1), Run(b), Wait((1,)), Run(b))
        >>> step = Program("p", (Loop("l", body, 3, True),), 1)
        >>> [(len(window.block), window.times) for window in windows(step)]
        [(3, 3), (1, 3)]
    """
    return tuple(_cut(program.body, 1))


def _cut(block: Block, times: int) -> Iterator[Window]:
    stretch: list[Node] = []
    under_way: frozenset[int] = frozenset()

    def done() -> Iterator[Window]:
        if stretch:
            yield Window(tuple(stretch), times)
            stretch.clear()

    quiet = True
    for node in block:
        # A body that begins with nothing under way and leaves nothing under way is
        # the same each time.
        if isinstance(node, Loop) and not under_way and not _left(node.body):
            yield from done()
            yield from _cut(node.body, times * node.trips)
            quiet = True
            continue
        if quiet and _launches(node):
            # Kernels with nothing beside them need not share a window with others.
            yield from done()
            quiet = False
        stretch.append(node)
        under_way = _left((node,), under_way)
        if not under_way and not quiet:
            yield from done()
            quiet = True
    yield from done()


def _left(block: Block, under_way: frozenset[int] = frozenset()) -> frozenset[int]:
    """Tokens that may be under way after a block."""
    for node in block:
        if isinstance(node, Launch):
            under_way |= {node.token}
        elif isinstance(node, Wait):
            under_way -= frozenset(node.tokens)
        elif isinstance(node, Loop):
            # Once says it all: what an iteration leaves, the next one leaves too.
            after = _left(node.body, under_way)
            under_way = after if node.trips else under_way
        elif isinstance(node, Branch) and node.arms:
            # Any arm may be taken.
            under_way = frozenset[int]().union(
                *(_left(arm, under_way) for arm in node.arms)
            )
    return under_way


def _launches(node: Node) -> bool:
    if isinstance(node, Loop):
        return any(map(_launches, node.body))
    if isinstance(node, Branch):
        return any(_launches(inner) for arm in node.arms for inner in arm)
    return isinstance(node, Launch)
