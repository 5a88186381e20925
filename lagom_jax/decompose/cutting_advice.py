"""Advice on cutting a collective and the matmul next to it, by the cost model.

The form and its transport are one decision: messages between neighbours are the finest
cut, but NCCL gives them few channels; parts of the collective itself keep its rate, and
leave the last part, or the first, with nothing to hide it. Both are priced here, with
what the matmul loses in slices. What a schedule makes of it, a compile has to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from lagom_jax.cost.prices import Prices
from lagom_jax.cost.timeline import Timeline
from lagom_jax.decompose.form import Form
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.module import Computation, Instruction
from lagom_jax.plan.rewrite import CollectiveCut
from lagom_jax.program.program import Kernel, Program

_KINDS = ("all-gather", "reduce-scatter", "all-reduce")
_HOPS = 4
"""Instructions between a collective and its matmul: norms, casts, tuples."""
_CHUNKS = (2, 4, 8)
_LEAST = 1e-3
"""Less than this share of the step is not worth a line."""


@dataclasses.dataclass(frozen=True, slots=True)
class CuttingAdvice:
    """One collective next to a matmul, and the form that would expose the least.

    Attributes:
        collective: Its name in the schedule.
        kind: Its kind.
        source: The user's line, `file:line`; empty where the compiler dropped it.
        matmul: The name of the matmul next to it.
        form: The best form.
        saved_seconds: Seconds of a step less, at most; 0 or less where nothing pays.
        memory_bytes: Bytes for a slice to send and one to receive.
        ring_seconds: Seconds of a step less with rings, for comparison.
    """

    collective: str
    kind: str
    source: str
    matmul: str
    form: Form
    saved_seconds: float
    memory_bytes: int
    ring_seconds: float

    def stated(self) -> CollectiveCut:
        """The same, as a plan states it."""
        return CollectiveCut(
            self.collective,
            self.kind,
            self.source,
            self.matmul,
            self.form.label,
            self.saved_seconds,
            self.memory_bytes,
            self.ring_seconds,
        )

    @property
    def pays(self) -> bool:
        """True if a cut would make the step shorter."""
        return self.saved_seconds > 0.0


def advise(
    program: Program, timeline: Timeline, prices: Prices
) -> tuple[CuttingAdvice, ...]:
    """Advice for every exposed collective with a matmul next to it, the best first.

    Args:
        program: The step.
        timeline: Its replay.
        prices: What collectives and kernels take alone, also others than it has.
    """
    kernels = kernels_by_id(program)
    found: list[CuttingAdvice] = []
    for site, times in timeline.collectives().items():
        worth = times.exposed_seconds >= _LEAST * timeline.step_seconds
        if site.kind in _KINDS and worth and site.groups.size > 1:
            matmul = neighbour(site, kernels)
            if matmul is not None:
                exposed = times.exposed_seconds / times.executions
                found.append(_advice(site, matmul, exposed, times.executions, prices))
    return tuple(sorted(found, key=lambda one: -one.saved_seconds))


def kernels_by_id(program: Program) -> dict[int, Kernel]:
    """The kernels of a program, by their instructions."""
    return {
        kernel.instruction.id: kernel
        for kernel, _, _ in program.tasks()
        if isinstance(kernel, Kernel) and kernel.instruction is not None
    }


def _advice(
    site: Collective, matmul: Kernel, exposed: float, runs: float, prices: Prices
) -> CuttingAdvice:
    saved: dict[Form, float] = {
        Form("chunks", slices=count): _by_chunks(site, matmul, count, exposed, prices)
        for count in _CHUNKS
    }
    ring = Form("ring")
    saved[ring] = _by_ring(site, matmul, exposed, prices)
    best = max(saved, key=lambda form: saved[form])
    parts = site.groups.size if best.kind == "ring" else best.slices
    return CuttingAdvice(
        collective=site.name,
        kind=site.kind,
        source=site.source,
        matmul=matmul.name,
        form=best,
        saved_seconds=runs * saved[best],
        memory_bytes=2 * site.bytes // parts,
        ring_seconds=runs * saved[ring],
    )


def _by_chunks(
    site: Collective, matmul: Kernel, count: int, exposed: float, prices: Prices
) -> float:
    """Seconds saved by parts: one has nothing to hide it, the others a slice each."""
    message = prices.collective(part_of(site, count)).seconds
    piece, lost = in_slices(matmul, count, prices)
    return exposed - message - (count - 1) * max(0.0, message - piece) - lost


def _by_ring(site: Collective, matmul: Kernel, exposed: float, prices: Prices) -> float:
    """Seconds saved by messages between neighbours: all have a slice to hide behind."""
    ranks = site.groups.size
    message = prices.collective(message_of(site)).seconds
    piece, lost = in_slices(matmul, ranks, prices)
    tail = 0.0
    if site.kind == "all-reduce":
        # The sums are gathered again, whole, and nothing is left to hide that.
        gathered = dataclasses.replace(site, kind="all-gather")
        tail = prices.collective(gathered).seconds
    return exposed - (ranks - 1) * max(0.0, message - piece) - lost - tail


def in_slices(matmul: Kernel, count: int, prices: Prices) -> tuple[float, float]:
    """Seconds of one slice, and what all of them take more than the whole."""
    whole = prices.kernel(matmul).seconds
    piece = prices.kernel(slice_of(matmul, count)).seconds
    return piece, max(0.0, count * piece - whole)


def slice_of(matmul: Kernel, count: int) -> Kernel:
    """A matmul of one part of the rows: the longer of the sides that are not summed.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> whole = Matmul(1, 4096, 1024, 512, "bf16", "bf16", "bf16")
        >>> kernel = Kernel("dot", Work("matmul", 1e9, 800, 400, (whole,)))
        >>> slice_of(kernel, 4).work.matmuls[0].m, slice_of(kernel, 4).work.flops
        (1024, 250000000.0)
    """
    work = matmul.work
    return Kernel(
        f"{matmul.name}, a slice",
        dataclasses.replace(
            work,
            flops=work.flops / count,
            bytes_read=work.bytes_read // count,
            bytes_written=work.bytes_written // count,
            matmuls=tuple(_rows_of(one, count) for one in work.matmuls),
        ),
    )


def _rows_of(matmul: Matmul, count: int) -> Matmul:
    if matmul.m >= matmul.n:
        return dataclasses.replace(matmul, m=max(1, matmul.m // count))
    return dataclasses.replace(matmul, n=max(1, matmul.n // count))


def part_of(site: Collective, count: int) -> Collective:
    """The same collective for a part of its bytes."""
    return dataclasses.replace(
        site,
        operands=tuple((kind, -(-size // count)) for kind, size in site.operands),
        result_bytes=-(-site.result_bytes // count),
    )


def message_of(site: Collective) -> Collective:
    """The message of a rank to the next one in a ring: one slice."""
    members = site.groups.members
    pairs = np.stack([members, np.roll(members, -1, axis=1)], axis=-1).reshape(-1, 2)
    size = -(-site.bytes // site.groups.size)
    kind = site.element_types[0] if site.element_types else "bf16"
    return dataclasses.replace(
        site,
        kind="collective-permute",
        operands=((kind, size),),
        result_bytes=size,
        groups=Groups(pairs, point_to_point=True),
    )


def neighbour(site: Collective, kernels: Mapping[int, Kernel]) -> Kernel | None:
    """The nearest matmul that needs what is gathered, or makes what is reduced."""
    if site.instruction is None or site.computation is None:
        return None
    users = _users(site.computation) if site.kind == "all-gather" else None
    seen = {site.instruction.id}
    level = [site.instruction]
    for _ in range(_HOPS):
        near: list[Instruction] = []
        for one in level:
            around = (
                site.computation.operands(one)
                if users is None
                else users.get(one.id, [])
            )
            near += [other for other in around if other.id not in seen]
            seen.update(other.id for other in around)
        for other in near:
            kernel = kernels.get(other.id)
            if kernel is not None and kernel.work.matmuls:
                return kernel
        level = near
    return None


def _users(computation: Computation) -> dict[int, list[Instruction]]:
    found: dict[int, list[Instruction]] = {}
    for one, needed in _edges(computation):
        found.setdefault(needed, []).append(one)
    return found


def _edges(computation: Computation) -> Iterator[tuple[Instruction, int]]:
    for one in computation.instructions.values():
        for needed in one.operand_ids:
            yield one, needed
