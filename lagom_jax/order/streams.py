"""Second stream: collectives that may run beside others.

XLA launches all collectives on one stream, so that one over NVLink waits for one over
the network that was launched before it, although neither needs what the other uses.
Those inside of domains get the second stream here, where others leave them.

Two collectives that have more than one device in common must not be under way on
different streams: if two devices begin them in different orders, each may wait for the
other for ever. XLA's own scheduler keeps the same rule. What XLA makes synchronous, and
so puts on the compute stream, is kept apart by `Descent`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.program.program import (
    Block,
    Branch,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Task,
    Wait,
    nodes_in,
)

Clashes: TypeAlias = Mapping[int, frozenset[int]]
"""By token of a launch: those that must not be under way at its side."""

_STREAMS = frozenset({Stream.COLLECTIVE, Stream.ASIDE})
# The share of the kernels' time from which on collectives are in each other's way.
_CROWDED = 0.8


def inside_domains(program: Program, cluster: Cluster) -> frozenset[int]:
    """Tokens of the launches that may go to the second stream.

    None where all collectives use the same links, where the program names the second
    stream itself or has sends and receives, or where two are under way at once that
    would clash.

    Args:
        program: A step in the order that is given.
        cluster: The hardware.

    Example:
        >>> inside_domains(Program("p", (), 8), Cluster.parse("h100:2x8"))
        frozenset()
    """
    launches = [*_launches(program.body)]
    others = {one.token for one in launches if not _is_inside(one, cluster)}
    chosen = {one.token for one in launches}.difference(others)
    named = any(one.stream is Stream.ASIDE for one in launches)
    # XLA has sends and receives on the stream of the collectives, or on the second one.
    if not others or named or any(map(_is_in_pairs, program.tasks())):
        return frozenset()
    if _meet(program.body, clashes(launches, chosen)):
        return frozenset()
    return frozenset(chosen)


def is_crowded(program: Program, seconds: Callable[[Task], float]) -> bool:
    """True if collectives keep one stream busy for most of some part of a step.

    Elsewhere there is room for one after another, and a second stream would only bring
    them into each other's way.

    Args:
        program: The step.
        seconds: Time that a task takes alone.

    Example:
        >>> is_crowded(Program("p", (), 8), lambda task: 1.0)
        False
    """
    return any(
        flying > _CROWDED * working for working, flying in _busy(program.body, seconds)
    )


def clashes(launches: Iterable[Launch], second: Collection[int] = ()) -> Clashes:
    """Launches that must not be under way at each other's side.

    Args:
        launches: Some launches; what is on no stream for collectives does not matter.
        second: Tokens of those that go to the second stream, beside those that are
            there.

    Example:
        >>> clashes([])
        {}
    """
    listed = [*launches]
    streams = {one.token: _stream_of(one, second) for one in listed if _has_groups(one)}
    apart = {
        token: frozenset(one for one in beside if streams[one] != streams[token])
        for token, beside in sharing(listed).items()
    }
    return {token: beside for token, beside in apart.items() if beside}


def sharing(launches: Iterable[Launch]) -> Clashes:
    """Launches that have more than one device of a group in common.

    Args:
        launches: As for `clashes`.

    Example:
        >>> sharing([])
        {}
    """
    members: defaultdict[tuple[object, ...], list[Launch]] = defaultdict(list)
    for one in launches:
        if _has_groups(one):
            groups = _groups_of(one).members
            members[groups.shape, groups.tobytes()].append(one)
    found: defaultdict[int, set[int]] = defaultdict(set)
    alike = list(members.values())
    for some, others in itertools.combinations_with_replacement(alike, 2):
        if _groups_of(some[0]).most_shared(_groups_of(others[0])) > 1:
            for one in some:
                found[one.token].update(other.token for other in others)
            for other in others:
                found[other.token].update(one.token for one in some)
    return {token: frozenset(found[token] - {token}) for token in found}


def meet_and_clash(program: Program) -> bool:
    """True if two are under way at once that must not be.

    Example:
        >>> meet_and_clash(Program("p", (), 8))
        False
    """
    return _meet(program.body, clashes(_launches(program.body)))


def most_sms_held(
    program: Program,
    channels: Callable[[Collective], int],
    second: Collection[int] = (),
) -> int:
    """SMs that collectives of all streams hold at once, at most.

    While that is no more than a GPU has, no circle of devices can wait for each other:
    a stream has one collective at a time, each of its blocks finds an SM as soon as the
    kernels before it are done, and kernels wait for nothing that runs beside them. Of
    the collectives that are not done on some device take the first in the program. All
    that was launched before it is done, so every device of its group reaches it, and
    all of its blocks run; so it ends, and so do all. That holds where all devices run
    one program.

    Args:
        program: The step.
        channels: SMs that a collective holds.
        second: Tokens of launches that go to the second stream, beside those that are
            there.

    Example:
        >>> most_sms_held(Program("p", (), 8), lambda collective: 24)
        0
    """
    launches = {one.token: one for one in _launches(program.body)}
    held: dict[int, tuple[int, int]] = {}
    for token, one in launches.items():
        assert isinstance(one.task, Collective)
        held[token] = _stream_of(one, second), channels(one.task)
    most = 0
    for token, beside in _begun(program.body, set()):
        if token not in held:
            continue
        own_stream, own = held[token]
        by_stream: dict[int, int] = {}
        for other in beside:
            if other in held and held[other][0] != own_stream:
                stream, sms = held[other]
                by_stream[stream] = max(by_stream.get(stream, 0), sms)
        most = max(most, own + sum(by_stream.values()))
    return most


def most_sms_in_any_order(
    program: Program,
    channels: Callable[[Collective], int],
    second: Collection[int] = (),
) -> int:
    """Value of `most_sms_held` if the launches came in another order.

    Example:
        >>> most_sms_in_any_order(Program("p", (), 8), lambda collective: 24)
        0
    """
    most: dict[int, int] = {}
    for one in _launches(program.body):
        assert isinstance(one.task, Collective)
        stream = _stream_of(one, second)
        most[stream] = max(most.get(stream, 0), channels(one.task))
    return sum(most.values())


def _meet(block: Block, clashing: Clashes) -> bool:
    return any(
        not clashing.get(token, frozenset()).isdisjoint(beside)
        for token, beside in _begun(block, set())
    )


def _stream_of(launch: Launch, second: Collection[int]) -> int:
    assert isinstance(launch.task, Collective)
    if launch.task.stream:
        return launch.task.stream
    return int(launch.stream is Stream.ASIDE or launch.token in second)


def _groups_of(launch: Launch) -> Groups:
    assert isinstance(launch.task, Collective)
    return launch.task.groups


def _has_groups(launch: Launch) -> bool:
    return launch.stream in _STREAMS


def _busy(
    block: Block, seconds: Callable[[Task], float]
) -> Iterator[tuple[float, float]]:
    """By body: the time of its compute stream, and of the collectives it launches."""
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


def _is_in_pairs(task: tuple[Task, int, bool]) -> bool:
    return isinstance(task[0], Collective) and task[0].kind in ("send", "recv")


def _is_inside(launch: Launch, cluster: Cluster) -> bool:
    members = _groups_of(launch).members
    return all(cluster.domains_of(group) == 1 for group in members.tolist())


def _launches(block: Block) -> Iterator[Launch]:
    """The launches on streams for collectives."""
    for node in nodes_in(block):
        if isinstance(node, Launch) and node.stream in _STREAMS:
            yield node


def _begun(block: Block, under_way: set[int]) -> Iterator[tuple[int, frozenset[int]]]:
    """Each launch, and what is under way when it begins.

    Args:
        block: The nodes that are run.
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
            for _ in range(min(2, node.trips) if node.trips_known else 2):
                yield from _begun(node.body, under_way)
        elif isinstance(node, Branch):
            before = frozenset(under_way)
            for arm in node.arms:
                inside = {*before}
                yield from _begun(arm, inside)
                under_way |= inside
