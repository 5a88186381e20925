"""The matmul next to a collective in a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction
from lagom_jax.program.program import Kernel, Program

_HOPS = 4
"""Instructions between a collective and its matmul: norms, casts, tuples."""


def kernels_by_id(program: Program) -> dict[int, Kernel]:
    """The kernels of a program, by their instructions."""
    return {
        kernel.instruction.id: kernel
        for kernel, _, _ in program.tasks()
        if isinstance(kernel, Kernel) and kernel.instruction is not None
    }


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
