"""Combine thresholds at which other collectives are put together.

XLA's combiner goes through a computation and puts collectives of one kind and the same
groups together for as long as their results stay within a threshold, and none of them
needs another. So only sums of results matter as thresholds: between two of them nothing
changes. It does so before bodies of loops are doubled: those of one iteration are never
together with those of the next.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation
from lagom_jax.program.program import Block, Branch, Launch, Loop, Run

COMBINED: Final = {
    "all-gather": "xla_gpu_all_gather_combine_threshold_bytes",
    "all-reduce": "xla_gpu_all_reduce_combine_threshold_bytes",
    "reduce-scatter": "xla_gpu_reduce_scatter_combine_threshold_bytes",
}
"""The kinds that XLA combines, and the option that says how far."""
_MOST_SUMS = 64
_LOOP_BODY = "while/body"
"""jax's name for the inside of a loop."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """The effect of a threshold on a program."""

    threshold: int
    saved_seconds: float
    """Time of the collectives alone that it would save in a step."""
    launches: int
    """The number that there would be in a step."""


Family = tuple[tuple[Collective, ...], int]
"""Collectives of one computation that could go together, and how often they run."""


def families(block: Block, kind: str) -> list[Family]:
    """The collectives of a kind, computation by computation, with equal groups.

    Args:
        block: The program's body.
        kind: One of `COMBINED`.
    """
    return [
        (iteration, times)
        for inside, times, copies in _computations(block, 1, 1)
        for family in _alike(inside, kind)
        for iteration in _iterations(family, copies)
    ]


def groupings(
    found: Iterable[Family], seconds: Callable[[Collective], float]
) -> list[Grouping]:
    """Every grouping that some threshold makes, the smallest threshold first.

    None takes apart what is already combined.

    Args:
        found: What could go together.
        seconds: What a collective takes alone.
    """
    members = list(found)
    sums: set[int] = set()
    for family, _ in members:
        sizes = [site.result_bytes for site in family]
        for begin, end in itertools.combinations(range(len(sizes) + 1), 2):
            sums.add(sum(sizes[begin:end]))
    # Below these what is together already would be taken apart.
    least = max(
        (
            s.result_bytes
            for family, _ in members
            for s in family
            if s.operand_count > 1
        ),
        default=0,
    )
    chosen = sorted(total for total in sums if total >= least)
    if len(chosen) > _MOST_SUMS:
        step = len(chosen) / _MOST_SUMS
        chosen = [chosen[int(step * n)] for n in range(_MOST_SUMS - 1)] + chosen[-1:]
    made: list[Grouping] = []
    needed = [_needed(family) for family, _ in members]
    for threshold in chosen:
        saved, launches = 0.0, 0
        for (family, times), needs in zip(members, needed, strict=True):
            parts = _greedy(family, threshold, needs)
            together = sum(seconds(_joined(part)) for part in parts)
            saved += times * (sum(map(seconds, family)) - together)
            launches += times * len(parts)
        if not made or launches != made[-1].launches:
            made.append(Grouping(threshold, saved, launches))
    return made


def _greedy(
    family: Sequence[Collective], threshold: int, needs: Mapping[Collective, int]
) -> list[tuple[Collective, ...]]:
    parts: list[list[Collective]] = []
    room, inside = -1, 0
    for number, site in enumerate(family):
        if parts and site.result_bytes <= room and not needs[site] & inside:
            parts[-1].append(site)
        else:
            parts.append([site])
            room, inside = threshold, 0
        room -= site.result_bytes
        inside |= 1 << number
    return [tuple(part) for part in parts]


def _needed(family: Sequence[Collective]) -> dict[Collective, int]:
    """For each, as bits, the others of the family whose results it is made from."""
    bits = {
        site.instruction.id: 1 << number
        for number, site in enumerate(family)
        if site.instruction is not None
    }
    place = family[0].computation
    above = {} if place is None else _above(place, bits)
    return {
        site: above.get(site.instruction.id, 0) if site.instruction else 0
        for site in family
    }


def _above(place: Computation, bits: Mapping[int, int]) -> dict[int, int]:
    """For each instruction, the bits of those that its operands come from."""
    above: dict[int, int] = {}
    for instruction in place.instructions.values():
        found = 0
        for operand in instruction.operand_ids:
            found |= above.get(operand, 0) | bits.get(operand, 0)
        above[instruction.id] = found
    return above


def _joined(part: tuple[Collective, ...]) -> Collective:
    if len(part) == 1:
        return part[0]
    return dataclasses.replace(
        part[0],
        operands=tuple(operand for site in part for operand in site.operands),
        result_bytes=sum(site.result_bytes for site in part),
    )


def _computations(
    block: Block, times: int, copies: int
) -> Iterator[tuple[list[Collective], int, int]]:
    """The collectives of each computation, those of loops inside apart.

    With them how often it runs, and how many iterations it has one after another.
    """
    own: list[Collective] = []
    for node in block:
        if isinstance(node, Run | Launch):
            if isinstance(node.task, Collective):
                own.append(node.task)
        elif isinstance(node, Loop):
            yield from _computations(node.body, times * node.trips, node.copies)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _computations(arm, times, 1)
    yield own, times, copies


def _alike(inside: list[Collective], kind: str) -> Iterator[tuple[Collective, ...]]:
    families: dict[tuple[object, ...], list[Collective]] = {}
    for site in inside:
        if site.kind == kind and not site.one_shot_kernel:
            members = site.groups.members
            # What XLA took out of a loop was still inside when it combined.
            key = (members.shape, members.tobytes(), site.op_name.count(_LOOP_BODY))
            families.setdefault(key, []).append(site)
    yield from map(tuple, families.values())


def _iterations(
    family: tuple[Collective, ...], copies: int
) -> list[tuple[Collective, ...]]:
    """The collectives of each iteration; all together where nothing tells them apart.

    Args:
        family: Of a body.
        copies: Iterations that it has one after another.
    """
    same: defaultdict[tuple[object, ...], list[Collective]] = defaultdict(list)
    for site in family:
        same[site.op_name, site.operand_count, site.result_bytes].append(site)
    if any(len(sites) % copies for sites in same.values()):
        return [family]
    of: dict[Collective, int] = {}
    for sites in same.values():
        of.update((site, n * copies // len(sites)) for n, site in enumerate(sites))
    return [tuple(s for s in family if of[s] == copy) for copy in range(copies)]
