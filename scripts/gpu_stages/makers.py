"""Who computes the matrix products of a program: libraries, or XLA, and with what."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lagom_jax.hlo.config import backend_config, section
from lagom_jax.hlo.module import Instruction
from lagom_jax.schedule.program import Kernel, Program
from lagom_jax.units import counted


@dataclasses.dataclass(frozen=True, slots=True)
class Maker:
    """What computes a product.

    Example:
        >>> Maker("Triton", "tiles of 64 x 128").words()
        'Triton with tiles of 64 x 128'
    """

    name: str
    detail: str = ""

    def words(self) -> str:
        """For people."""
        return f"{self.name} with {self.detail}" if self.detail else self.name


def maker(instruction: Instruction) -> Maker:
    """What computes the product of an instruction.

    Its name is the target of a custom call, `Triton` for what XLA generates by it, or
    the kind of fusion.
    """
    if instruction.opcode == "custom-call":
        return Maker(instruction.proto.custom_call_target)
    fusion = section(backend_config(instruction), "fusion_backend_config")
    kind = str(fusion.get("kind", instruction.opcode))
    if "triton" not in kind:
        return Maker(kind)
    return Maker("Triton", _tiles(fusion))


def sentences(first: Program, second: Program) -> Iterator[str]:
    """How two programs of one step differ in who computes what.

    Args:
        first: The one compiled without a GPU.
        second: The one compiled on it.
    """
    a, b = (Counter(map(maker, _products(one))) for one in (first, second))
    names_a, names_b = (_by_name(makers) for makers in (a, b))
    if names_a != names_b:
        yield (
            f"products by what computes them: {_listed(names_a)} without a GPU, "
            f"{_listed(names_b)} on it"
        )
    elif a != b:
        other = sum((a - b).values())
        yield (
            f"{other} of {counted(sum(a.values()), 'product')} on other tiles: "
            f"{_listed(_by_words(a - b))} without a GPU, "
            f"{_listed(_by_words(b - a))} on it"
        )
    kernels_a, kernels_b = (_by_kind(one) for one in (first, second))
    if kernels_a != kernels_b:
        yield (
            "kernels by kind: "
            + ", ".join(
                f"{kernels_a[kind]} {kind} without a GPU and {kernels_b[kind]} on it"
                for kind in sorted(kernels_a | kernels_b)
                if kernels_a[kind] != kernels_b[kind]
            )
        )


def _products(program: Program) -> Iterator[Instruction]:
    for task, _, _ in program.tasks():
        if isinstance(task, Kernel) and task.work.matmuls and task.instruction:
            yield task.instruction


def _tiles(fusion: Any) -> str:
    block = section(fusion, "block_level_fusion_config")
    tiles = [
        " x ".join(map(str, tile.get("sizes", ())))
        for tile in block.get("output_tiles", ())
    ]
    if tiles:
        return f"tiles of {', '.join(tiles)}"
    gemm = section(fusion, "triton_gemm_config")
    sizes = [gemm[name] for name in ("block_m", "block_n", "block_k") if name in gemm]
    return f"tiles of {' x '.join(map(str, sizes))}" if sizes else ""


def _by_name(makers: Counter[Maker]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one, count in makers.items():
        found[one.name] += count
    return found


def _by_words(makers: Counter[Maker]) -> Counter[str]:
    return Counter({one.detail: count for one, count in makers.items()})


def _by_kind(program: Program) -> Counter[str]:
    return Counter(
        task.work.kind for task, _, _ in program.tasks() if isinstance(task, Kernel)
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
