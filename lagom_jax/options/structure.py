"""The structure of a program, compared to see what recompiling changed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Task,
    tasks_in,
)

_WATCHED = ("copy", "matmul")


@dataclasses.dataclass(frozen=True, slots=True)
class StepStructure:
    """A program's parts, without names."""

    digest: str
    """Equal for programs that run the same tasks in the same order."""
    contents: str
    """Equal for programs that run the same tasks, in any order."""
    loops: tuple[int, ...]
    """Trips of the loops with collectives, in the order of the program."""
    collectives: Mapping[str, tuple[int, int]]
    """By kind: runs in a step, and those of them that nothing can hide."""
    kernels: Mapping[str, int]
    """Runs in a step, by kind."""
    in_symmetric_memory: Mapping[str, int] = dataclasses.field(
        default_factory=dict[str, int]
    )
    """Of the collectives, runs of those that receive into symmetric memory, by kind."""


def structure_of(program: Program) -> StepStructure:
    """A program's structure.

    Example:
        >>> structure_of(Program("p", (), 8)).kernels
        {}
    """
    marks = list(_marks(program.body, {}))
    collectives: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    kernels: Counter[str] = Counter()
    contents: Counter[str] = Counter()
    in_symmetric_memory: Counter[str] = Counter()
    for task, runs, sync in program.tasks():
        contents[_task(task)] += runs
        if isinstance(task, Collective):
            collectives[task.kind][0] += runs
            collectives[task.kind][1] += runs if sync else 0
            if task.receives_symmetric:
                in_symmetric_memory[task.kind] += runs
        else:
            kernels[task.work.kind] += runs
    return StepStructure(
        digest=_digest(marks),
        contents=_digest(f"{mark} {runs}" for mark, runs in sorted(contents.items())),
        loops=tuple(_loops(program.body)),
        collectives={kind: (n, sync) for kind, (n, sync) in collectives.items()},
        kernels=dict(kernels),
        in_symmetric_memory=dict(in_symmetric_memory),
    )


def changes(before: StepStructure, after: StepStructure) -> str:
    """The differences in words; empty where there are none.

    Example:
        >>> one = StepStructure("a", "b", (32,), {"all-gather": (64, 0)}, {"copy": 3})
        >>> other = StepStructure("c", "d", (16,), {"all-gather": (32, 0)}, {"copy": 3})
        >>> changes(one, other)
        'a loop of 32 trips has 16; all-gathers 64 → 32'
        >>> changes(one, StepStructure("c", "b", (32,), {"all-gather": (64, 0)}, {}))
        'the same tasks in another order'
    """
    if before.digest == after.digest:
        return ""
    if before.contents == after.contents and before.loops == after.loops:
        return "the same tasks in another order"
    parts: list[str] = []
    if before.loops != after.loops:
        parts.append(_trips(before.loops, after.loops))
    for kind in sorted({*before.collectives, *after.collectives}):
        one, other = (s.collectives.get(kind, (0, 0)) for s in (before, after))
        if one[0] != other[0]:
            parts.append(f"{_plural(kind)} {one[0]} → {other[0]}")
        if one[1] != other[1]:
            parts.append(f"{_plural(kind)} that nothing hides {one[1]} → {other[1]}")
    for kind in sorted({*before.in_symmetric_memory, *after.in_symmetric_memory}):
        one, other = (s.in_symmetric_memory.get(kind, 0) for s in (before, after))
        if one != other:
            parts.append(f"{_plural(kind)} in symmetric memory {one} → {other}")
    for kind in _WATCHED:
        one, other = (s.kernels.get(kind, 0) for s in (before, after))
        if one != other:
            parts.append(f"{_plural(kind)} {one} → {other}")
    if not parts:
        parts.append("other kernels, or other sizes")
    return "; ".join(parts)


def _plural(kind: str) -> str:
    return "copies" if kind == "copy" else f"{kind}s"


def _trips(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    if len(one) == len(other):
        said = dict.fromkeys(
            f"a loop of {a} trips has {b}"
            for a, b in zip(one, other, strict=True)
            if a != b
        )
        return ", ".join(said)
    words = [", ".join(map(str, trips)) or "none" for trips in (one, other)]
    return f"trips of loops {words[0]} → {words[1]}"


def _loops(block: Block) -> Iterator[int]:
    for node in block:
        if isinstance(node, Loop):
            if any(isinstance(task, Collective) for task, _, _ in tasks_in(node.body)):
                yield node.trips
            yield from _loops(node.body)


def _marks(block: Block, tokens: dict[int, int]) -> Iterator[str]:
    for node in block:
        if isinstance(node, Run):
            yield _task(node.task)
        elif isinstance(node, Launch):
            token = tokens.setdefault(node.token, len(tokens))
            yield f"launch {node.stream.value} {token} {_task(node.task)}"
        elif isinstance(node, Loop):
            yield f"loop {node.trips}"
            yield from _marks(node.body, tokens)
            yield "end"
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield "arm"
                yield from _marks(arm, tokens)
            yield "end"
        else:
            waited = (tokens.setdefault(token, len(tokens)) for token in node.tokens)
            yield f"wait {' '.join(map(str, waited))}"


def _task(task: Task) -> str:
    if isinstance(task, Kernel):
        work = task.work
        return f"{work.kind} {work.flops} {work.bytes_read} {work.bytes_written}"
    sizes = " ".join(f"{kind}:{nbytes}" for kind, nbytes in task.operands)
    symmetric = (task.sends_symmetric, task.receives_symmetric, task.one_sided)
    where = f" {symmetric}" if any(symmetric) else ""
    return f"{task.kind} {sizes} {task.result_bytes} {task.is_sync}{where}"


def _digest(marks: Iterator[str] | list[str]) -> str:
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16]
