"""The matmuls next to a collective in a schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from lagom_jax.decompose.site_forms import by_partitioner
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction
from lagom_jax.program.program import Kernel, Program

Users = dict[int, list[Instruction]]
"""The instructions that need each, by its id."""
_HOPS = 4
"""Instructions between a collective and its matmul: norms, casts, tuples."""
_NAMES = frozenset({"bitcast", "get-tuple-element", "tuple", "opt-barrier"})
_IN_SLICES = frozenset({"fusion", "reduction", "copy", "transpose"})


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulsBeside:
    """The matmuls next to a collective, and who else needs what they share."""

    matmuls: tuple[Kernel, ...]
    """None where there is no matmul near."""
    between: tuple[Kernel, ...] = ()
    """Kernels between the first of these and the collective."""
    turned: tuple[Kernel, ...] = ()
    """Transposes of all rows between the collective and any matmul: collectives have
    rows in the order of ranks in memory, and matmuls in that of examples. No form but
    the plain one needs them."""
    sums: tuple[Kernel, ...] = ()
    """Matmuls that sum over what is gathered, as gradients of weights do."""
    keeps_rows: bool = True
    """False if all matmuls sum over what is gathered."""
    late_sums: bool = False
    """True if such a matmul needs what the others make, and so comes after them."""
    joined_bytes: float = 0.0
    """Bytes of what would come out in slices and is needed whole at once; kernels that
    XLA writes take slices, and put them together by the way."""

    @property
    def whole_rows(self) -> bool:
        """True if a matmul sums over what is gathered."""
        return bool(self.sums)


def kernels_by_id(program: Program) -> dict[int, Kernel]:
    """The kernels of a program, by their instructions."""
    return {
        kernel.instruction.id: kernel
        for kernel, _, _ in program.tasks()
        if isinstance(kernel, Kernel) and kernel.instruction is not None
    }


def matmuls_beside(site: Collective, kernels: Mapping[int, Kernel]) -> MatmulsBeside:
    """The nearest matmuls that need what is gathered, or make what is reduced.

    Several matmuls may need the same rows, and a matmul may add to what another made.
    Those that sum over what is gathered, as gradients of weights do, count only where
    there are no others.
    """
    if site.instruction is None or site.computation is None:
        return MatmulsBeside(())
    users = _users(site.computation)
    gathers = site.kind == "all-gather"
    begun = site.instruction
    led_by = {begun.id: begun}
    level = [begun]
    for _ in range(_HOPS):
        near: list[Instruction] = []
        for one in level:
            around = (
                users.get(one.id, []) if gathers else site.computation.operands(one)
            )
            new = [other for other in around if other.id not in led_by]
            led_by.update((other.id, one) for other in new)
            near += new
        found = [other for other in near if _multiplies(other, kernels)]
        if found and gathers:
            return _taking(site, found, users, led_by, kernels)
        if found:
            whole = _is_needed_whole(begun, users, kernels)
            made = tuple(_with_addends(found[0], site.computation, kernels))
            between = tuple(_between(found[0], led_by, kernels))
            turned: tuple[Kernel, ...] = ()
            if _takes_less_than_it_makes(made):
                turned = tuple(one for one in between if _turns(one, site))
            return MatmulsBeside(
                made,
                between=tuple(one for one in between if one not in turned),
                turned=turned,
                joined_bytes=site.result_bytes if whole else 0.0,
            )
        level = near
    return MatmulsBeside(())


def _taking(
    site: Collective,
    found: list[Instruction],
    users: Users,
    led_by: Mapping[int, Instruction],
    kernels: Mapping[int, Kernel],
) -> MatmulsBeside:
    """The matmuls that take what is gathered."""
    apart = _of_one_kind(found, site, kernels)
    sums = [one for one in found if one not in apart]
    whole = [one for one in apart if _is_needed_whole(one, users, kernels)]
    between = tuple(_between(apart[0], led_by, kernels))
    ways = (one for matmul in found for one in _between(matmul, led_by, kernels))
    width = _width(site)
    return MatmulsBeside(
        tuple(kernels[one.id] for one in apart),
        tuple(one for one in between if not _turns(one, site)),
        tuple(dict.fromkeys(one for one in ways if _turns(one, site))),
        tuple(kernels[one.id] for one in sums),
        any(each.k == width for one in apart for each in kernels[one.id].work.matmuls),
        _leads_to(apart, sums, users),
        float(sum(kernels[one.id].work.bytes_written for one in whole)),
    )


def _between(
    matmul: Instruction,
    led_by: Mapping[int, Instruction],
    kernels: Mapping[int, Kernel],
) -> Iterator[Kernel]:
    """The kernels on the way from a matmul to its collective."""
    one = led_by[matmul.id]
    while led_by[one.id] is not one:
        if one.id in kernels:
            yield kernels[one.id]
        one = led_by[one.id]


def _turns(kernel: Kernel, site: Collective) -> bool:
    """True for a transpose of all that a function's collective gathers or scatters."""
    if site.kind == "all-reduce" or by_partitioner(site):
        return False
    return kernel.work.kind == "transpose" and kernel.work.bytes_written >= site.bytes


def _takes_less_than_it_makes(matmuls: Sequence[Kernel]) -> bool:
    """True if rows that are multiplied are fewer numbers than those that come of it.

    Only then they are put into the order of ranks in place of the result.
    """
    products = [one for kernel in matmuls for one in kernel.work.matmuls]
    taken = sum(one.batch * max(one.m, one.n) * one.k for one in products)
    return taken <= max(one.batch * one.m * one.n for one in products)


def _is_needed_whole(
    one: Instruction, users: Users, kernels: Mapping[int, Kernel]
) -> bool:
    """True if a matmul, a library or another collective takes a result as it is."""
    todo, seen = [one], {one.id}
    while todo:
        for user in users.get(todo.pop().id, []):
            if user.id in seen:
                continue
            seen.add(user.id)
            kernel = kernels.get(user.id)
            if kernel is None and (
                user.opcode in _NAMES or user.opcode.endswith("-done")
            ):
                todo.append(user)
            elif kernel is None or kernel.work.kind not in _IN_SLICES:
                return True
    return False


def _multiplies(one: Instruction, kernels: Mapping[int, Kernel]) -> bool:
    kernel = kernels.get(one.id)
    return kernel is not None and bool(kernel.work.matmuls)


def _with_addends(
    matmul: Instruction, computation: Computation, kernels: Mapping[int, Kernel]
) -> Iterator[Kernel]:
    """A matmul, and those whose results matmuls add theirs to."""
    todo: Instruction | None = matmul
    while todo is not None:
        yield kernels[todo.id]
        # A library's matmul takes what it adds to as its third operand.
        addends = computation.operands(todo)[2:]
        todo = next((one for one in addends if _multiplies(one, kernels)), None)


def _leads_to(
    begin: list[Instruction],
    ends: list[Instruction],
    users: Users,
) -> bool:
    """True if one of some instructions needs what others make."""
    todo, seen = [*begin], set[int]()
    while todo:
        for user in users.get(todo.pop().id, []):
            if user.id not in seen:
                seen.add(user.id)
                todo.append(user)
    return any(one.id in seen for one in ends)


def _of_one_kind(
    found: list[Instruction], site: Collective, kernels: Mapping[int, Kernel]
) -> list[Instruction]:
    """Matmuls that keep gathered rows apart; the first, where none does."""
    width = _width(site)
    apart = [
        one
        for one in found
        if any(each.k == width for each in kernels[one.id].work.matmuls)
    ]
    return apart or found[:1]


def _width(site: Collective) -> int:
    """Numbers of each gathered row: what a matmul of rows sums over."""
    assert site.instruction is not None
    whole = max(site.instruction.shape.leaves, key=lambda one: one.byte_size)
    (dimension, *_) = (*site.instruction.proto.dimensions, 0)
    return math.prod(whole.dimensions[dimension + 1 :])


def _users(computation: Computation) -> Users:
    found: Users = {}
    for one, needed in _edges(computation):
        found.setdefault(needed, []).append(one)
    return found


def _edges(computation: Computation) -> Iterator[tuple[Instruction, int]]:
    for one in computation.instructions.values():
        for needed in one.operand_ids:
            yield one, needed
