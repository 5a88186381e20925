"""Pictures of meshes as SVG: who sends how much to whom, and where time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np
import numpy.typing as npt

from lagom_jax.cost.span import wire_bytes
from lagom_jax.markup import LONGEST_NAME, printable
from lagom_jax.mesh.choosing import MeshAdvice, MeshChoice
from lagom_jax.mesh.flows import flows
from lagom_jax.mesh.sizes import AXES, MeshSizes
from lagom_jax.units import in_bytes, in_seconds

Matrix = npt.NDArray[np.float64]
_MOST_CELLS: Final = 64
_CELL: Final = 8
_PARTS: Final = ("compute", "contention", "bubble", "communication")
_STYLE: Final = """
text{font:11px sans-serif;fill:#222}.ground{fill:#fff}.inside{fill:#f7f7f7}
.compute{fill:#4878a8}.contention{fill:#9a6fb0}.bubble{fill:#b8b8b8}.communication{fill:#d0743c}
.cell{fill:#b5482a}.edge{stroke:#888;stroke-width:.6}
.range{stroke:#222;fill:none}
"""
"""Of a picture alone; a page has its own, light and dark."""


def communication_matrix(
    advice: MeshAdvice, sizes: MeshSizes, block: int = 1
) -> Matrix:
    """Bytes that each GPU sends to each other in a step.

    Rings send to the next of their group; what all exchange goes to all; stages of a
    pipeline send to their neighbours, one half each way.

    Args:
        advice: The model, the batch and the framework.
        sizes: The mesh.
        block: GPUs, neighbours by their ids, that are taken together.

    Returns:
        A row for each sender or block of them, in the order of their ids.

    Example:
        >>> from lagom_jax.mesh.choosing import choose
        >>> found = choose("llama-3-8b", cluster="h100:1x4", tokens=8192, sequence=2048)
        >>> matrix = communication_matrix(found, MeshSizes(fsdp=4))
        >>> (matrix > 0).sum(axis=1).tolist()
        [1, 1, 1, 1]
    """
    count = math.ceil(sizes.devices / block)
    matrix = np.zeros((count, count))
    for flow in flows(advice.shape, sizes, advice.batch, advice.framework):
        if flow.kind == "collective-permute":
            pairs = sizes.pairs(flow.axes[0]).members // block
            half = flow.total / 2
            np.add.at(matrix, (pairs[:, 0], pairs[:, 1]), half)
            np.add.at(matrix, (pairs[:, 1], pairs[:, 0]), half)
            continue
        members = sizes.groups(flow.axes).members // block
        size = members.shape[1]
        sent = wire_bytes(flow.kind, flow.total, size)
        if flow.kind == "all-to-all":
            for step in range(1, size):
                others = np.roll(members, -step, axis=1)
                np.add.at(matrix, (members, others), sent / (size - 1))
        else:
            np.add.at(matrix, (members, np.roll(members, -1, axis=1)), sent)
    return matrix


def matrix_svg(advice: MeshAdvice, choice: MeshChoice, *, styled: bool = True) -> str:
    """The communication matrix as a picture; large ones in blocks of GPUs.

    Args:
        advice: What `choose` returned.
        choice: One of its choices.
        styled: Whether it has its own colours; on a page it takes the page's.

    Example:
        >>> from lagom_jax.mesh.choosing import choose
        >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536,
        ...                sequence=2048)
        >>> matrix_svg(found, found.best).startswith("<svg")
        True
    """
    devices = choice.sizes.devices
    block = math.ceil(devices / _MOST_CELLS)
    shown = communication_matrix(advice, choice.sizes, block)
    most = float(shown.max()) or 1.0
    side, left, top = len(shown) * _CELL, 44, 40
    parts = [
        f'<text x="{left}" y="16">{_named(_title(advice, choice))}</text>',
        f'<text x="{left}" y="32">row sends to column, a step; strongest: '
        f"{in_bytes(most)}</text>",
        f'<rect x="{left}" y="{top}" width="{side}" height="{side}" class="inside"/>',
    ]
    for row, column in np.argwhere(shown > 0):
        # Shades by magnitude: kinds of traffic differ by powers of ten.
        depth = 1 + math.log10(float(shown[row, column]) / most) / 4
        shade = max(0.08, min(1.0, depth))
        parts.append(
            f'<rect x="{left + column * _CELL}" y="{top + row * _CELL}" '
            f'width="{_CELL}" height="{_CELL}" class="cell" '
            f'fill-opacity="{shade:.2f}"/>'
        )
    hosts = advice.cluster.scale_up_size
    # Of many hosts only as many edges as there are cells.
    for edge in range(0, devices + 1, max(hosts, block)):
        at = edge / block * _CELL
        parts.append(
            f'<path d="M{left + at:g} {top}v{side}M{left} {top + at:g}h{side}" '
            'class="edge"/>'
        )
    parts.append(
        f'<text x="{left}" y="{top + side + 16}">lines: where links are fast '
        f"({hosts} GPUs); {block} GPU{'s' * (block > 1)} a cell</text>"
    )
    return _svg(
        *(left + max(side, 420) + 12, top + side + 28, parts),
        name=f"Bytes that each GPU sends to each other: {_title(advice, choice)}",
        styled=styled,
    )


def chart_svg(advice: MeshAdvice, most: int = 12, *, styled: bool = True) -> str:
    """Step time of each choice as a bar: kernels, contention, bubbles and waiting.

    Args:
        advice: What `choose` returned.
        most: Bars, at most.
        styled: Whether it has its own colours; on a page it takes the page's.

    Example:
        >>> from lagom_jax.mesh.choosing import choose
        >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536,
        ...                sequence=2048)
        >>> chart_svg(found).count("<rect") > 3
        True
    """
    shown = advice.choices[:most]
    longest = max((choice.step_high for choice in shown), default=1.0)
    left, width, high = 390, 380, 20
    parts = [
        f'<text x="8" y="16">{_named(advice.shape.name)} on '
        f"{escape(advice.cluster.name)}: predicted step</text>"
    ]
    for place, name in enumerate(_PARTS):
        at = left + 110 * place
        parts.append(
            f'<rect x="{at}" y="24" width="10" height="10" class="{name}"/>'
            f'<text x="{at + 14}" y="33">{name}</text>'
        )
    for place, choice in enumerate(shown):
        parts += _bar(choice, left, 44 + place * high, width / longest)
    return _svg(
        *(left + width + 90, 56 + len(shown) * high, parts),
        name=f"Predicted step of each mesh of {advice.shape.name}",
        styled=styled,
    )


def _bar(choice: MeshChoice, left: int, top: int, scale: float) -> list[str]:
    found, at = choice.estimate, float(left)
    lengths = {
        "compute": found.compute_seconds,
        "contention": found.contention_seconds,
        "bubble": found.bubble_seconds,
        "communication": found.exposed_seconds,
    }
    words = axes_words(choice.sizes)
    parts = [
        f'<text x="{left - 6}" y="{top + 11}" text-anchor="end">{escape(words)}</text>'
    ]
    for name, seconds in lengths.items():
        length = seconds * scale
        if length > 0:
            parts.append(
                f'<rect x="{at:.1f}" y="{top}" width="{length:.1f}" height="14" '
                f'class="{name}"/>'
            )
        at += length
    low, high = left + choice.step_low * scale, left + choice.step_high * scale
    parts.append(
        f'<path d="M{low:.1f} {top + 7}H{high:.1f}M{low:.1f} {top + 3}v8'
        f'M{high:.1f} {top + 3}v8" class="range"/>'
        f'<text x="{high + 6:.1f}" y="{top + 11}">'
        f"{in_seconds(choice.step_seconds)}</text>"
    )
    return parts


def axes_words(sizes: MeshSizes) -> str:
    """The axes of a mesh that cut something, shortly.

    Example:
        >>> axes_words(MeshSizes(fsdp=8, tensor=4, tensor_sequence=True))
        'tensor 4 with sequence, fsdp 8, batch 1, remat full'
        >>> axes_words(MeshSizes(pipeline=4, interleave=2, remat="none"))
        'pipeline 4x2, batch 1, remat none'
    """
    words = [f"{axis} {sizes.of(axis)}" for axis in AXES if sizes.of(axis) > 1]
    if sizes.tensor_sequence:
        words[0] += " with sequence"
    if sizes.interleave > 1:
        words[-1] += f"x{sizes.interleave}"
    words += [f"batch {sizes.micro_batch}", f"remat {sizes.remat}"]
    return ", ".join(words)


def _title(advice: MeshAdvice, choice: MeshChoice) -> str:
    return f"{advice.shape.name} on {advice.cluster.name}: {axes_words(choice.sizes)}"


def _named(text: str) -> str:
    return escape(printable(text, 2 * LONGEST_NAME))


def _svg(
    width: float, height: float, parts: Sequence[str], *, name: str, styled: bool
) -> str:
    style = f"<style>{_STYLE}</style>" if styled else ""
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{_named(name)}">'
        f'{style}<rect width="100%" height="100%" class="ground"/>{body}</svg>\n'
    )
