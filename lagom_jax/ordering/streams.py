"""Which collectives may run beside others, on a second stream of their own.

XLA launches all collectives on one stream, so that one over NVLink waits for one over
the network that was launched before it, although neither needs what the other uses.
Those inside of domains get the second stream here, where others leave them.

Two collectives that have more than one device in common must not be under way on
different streams: if two devices begin them in different orders, each may wait for the
other for ever. XLA's own scheduler keeps the same rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import (
    Block,
    Branch,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Task,
    Wait,
)

Clashes: TypeAlias = Mapping[int, frozenset[int]]
"""By token of a launch: those that must not be under way at its side."""

_STREAMS = frozenset({Stream.COLLECTIVE, Stream.ASIDE})
# The share of the kernels' time from which on collectives are in each other's way.
_CROWDED = 0.8


def inside_domains(program: Program, cluster: Cluster) -> frozenset[int]:
    """Tokens of the launches that may go to the second stream.

    None where all collectives use the same links, where the program names streams
    itself, or where it has two under way at once that would clash.

    Args:
        program: A step in the order that is given.
        cluster: What it runs on.

    Example:
        >>> inside_domains(Program("p", (), 8), Cluster.parse("h100:2x8"))
        frozenset()
    """
    launches = [*_launches(program.body)]
    chosen = {one.token for one in launches if _is_inside(one, cluster)}
    others = {one.token for one in launches}.difference(chosen)
    if not others or any(one.stream is Stream.ASIDE for one in launches):
        return frozenset()
    clashing = clashes(launches, chosen)
    under_way: set[int] = set()
    if any(
        not clashing.get(token, frozenset()).isdisjoint(beside)
        for token, beside in _begun(program.body, under_way)
    ):
        return frozenset()
    return frozenset(chosen)


def is_crowded(program: Program, seconds: Callable[[Task], float]) -> bool:
    """Whether collectives alone keep one stream busy for most of some part of a step.

    Elsewhere there is room for one after another, and a second stream would only bring
    them into each other's way.

    Args:
        program: The step.
        seconds: What a task takes alone.

    Example:
        >>> is_crowded(Program("p", (), 8), lambda task: 1.0)
        False
    """
    return any(
        flying > _CROWDED * working for working, flying in _busy(program.body, seconds)
    )


def clashes(launches: Iterable[Launch], aside: Collection[int] = ()) -> Clashes:
    """Which launches must not be under way at each other's side.

    Args:
        launches: Some launches; what is not of a collective's stream does not matter.
        aside: Tokens of those that go to the second stream, beside those that are
            there.

    Example:
        >>> clashes([])
        {}
    """
    first: list[Launch] = []
    second: list[Launch] = []
    for one in launches:
        if one.stream is Stream.ASIDE or one.token in aside:
            second.append(one)
        elif one.stream is Stream.COLLECTIVE:
            first.append(one)
    known: dict[tuple[bytes, bytes], bool] = {}
    found: defaultdict[int, set[int]] = defaultdict(set)
    for one in first:
        for other in second:
            assert isinstance(one.task, Collective)
            assert isinstance(other.task, Collective)
            groups, others = one.task.groups, other.task.groups
            key = groups.members.tobytes(), others.members.tobytes()
            if key not in known:
                known[key] = groups.most_shared(others) > 1
            if known[key]:
                found[one.token].add(other.token)
                found[other.token].add(one.token)
    return {token: frozenset(beside) for token, beside in found.items()}


def _busy(
    block: Block, seconds: Callable[[Task], float]
) -> Iterator[tuple[float, float]]:
    """By body: the time of its kernels, and of the collectives that it launches."""
    working = flying = 0.0
    for node in block:
        if isinstance(node, Run):
            working += seconds(node.task)
        elif isinstance(node, Launch) and node.stream in _STREAMS:
            flying += seconds(node.task)
        elif isinstance(node, Loop):
            yield from _busy(node.body, seconds)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _busy(arm, seconds)
    yield working, flying


def _is_inside(launch: Launch, cluster: Cluster) -> bool:
    assert isinstance(launch.task, Collective)
    members = launch.task.groups.members
    return all(cluster.domains_of(group) == 1 for group in members.tolist())


def _launches(block: Block) -> Iterator[Launch]:
    """The launches on streams for collectives."""
    for node in block:
        if isinstance(node, Launch) and node.stream in _STREAMS:
            yield node
        elif isinstance(node, Loop):
            yield from _launches(node.body)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _launches(arm)


def _begun(block: Block, under_way: set[int]) -> Iterator[tuple[int, frozenset[int]]]:
    """Each launch, and what is under way when it begins.

    Args:
        block: What is run.
        under_way: Tokens of what is under way at its beginning; at its end, after.
    """
    for node in block:
        if isinstance(node, Launch):
            yield node.token, frozenset(under_way)
            under_way.add(node.token)
        elif isinstance(node, Wait):
            under_way.difference_update(node.tokens)
        elif isinstance(node, Loop):
            # The second time with what the first has left under way.
            for _ in range(min(2, node.trips)):
                yield from _begun(node.body, under_way)
        elif isinstance(node, Branch):
            before = frozenset(under_way)
            for arm in node.arms:
                inside = {*before}
                yield from _begun(arm, inside)
                under_way |= inside
