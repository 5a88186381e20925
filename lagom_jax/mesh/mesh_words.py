"""Choices of meshes in words, the same on a page and on a terminal."""

from __future__ import annotations

from lagom_jax.markup import printable
from lagom_jax.mesh.choosing import MeshAdvice, MeshChoice
from lagom_jax.mesh.infeasible import Infeasible
from lagom_jax.mesh.pictures import axes_words
from lagom_jax.units import in_bytes, in_percent, in_seconds

COLUMNS = ("mesh", "step", "interval", "MFU", "memory", "waits", "loses by")
"""Headings of the rows of choices; `compiled` follows where some were."""


def head_words(advice: MeshAdvice) -> str:
    """The model, the cluster, the batch, and how many meshes were looked at."""
    return (
        f"{advice.shape.name} ({advice.shape.parameters / 1e9:.3g} billion weights) on "
        f"{advice.cluster.name}, {advice.batch.sequences} sequences of "
        f"{advice.batch.length} tokens a step. {advice.framework.title}. "
        f"Meshes that fit: {len(advice.candidates.found)}; priced: {advice.evaluated}, "
        f"in {in_seconds(advice.seconds)}. All figures are predicted."
    )


def was_compiled(advice: MeshAdvice) -> bool:
    """True if some of the choices were compiled, or refused."""
    return any(compiled_words(one) for one in advice.choices)


def choice_cells(choice: MeshChoice) -> tuple[str, ...]:
    """The cells of a choice's row, in the order of `COLUMNS`."""
    loss = choice.loses_by
    return (
        axes_words(choice.sizes),
        in_seconds(choice.step_seconds),
        f"{in_signed_percent(choice.step_low, choice.step_seconds)} to "
        f"{in_signed_percent(choice.step_high, choice.step_seconds)}",
        in_percent(choice.mfu, 1),
        in_bytes(choice.estimate.memory.total),
        in_percent(choice.estimate.communication_share, 1),
        f"{loss.part} {in_seconds(loss.seconds)}" if loss else "",
    )


def compiled_words(choice: MeshChoice) -> str:
    """Seconds of the compiled step, or that it was refused; empty if neither."""
    if choice.verified_step_seconds is not None:
        return in_seconds(choice.verified_step_seconds)
    return "refused" if choice.refused else ""


def refused_lines(advice: MeshAdvice) -> list[str]:
    """A line for each choice that could not be compiled: its mesh and the reason."""
    return [
        f"{axes_words(one.sizes)}: {printable(one.refused, 500)}"
        for one in advice.choices
        if one.refused
    ]


def refusal_words(why: Infeasible) -> str:
    """The limit that binds, and the smallest changes that would do."""
    words = {
        "memory": f"No mesh fits into memory: the smallest step takes "
        f"{in_bytes(why.least_memory_bytes or 0)} of {in_bytes(why.memory_bytes)}",
        "batch": "No mesh fits the batch: its sequences do not divide",
        "model": "No mesh divides the model: heads, layers, experts or widths",
        "host": "No mesh keeps tensor parallelism where links are fast",
    }[why.limit]
    ways = [f"{remedy.what} {remedy.value}" for remedy in why.remedies]
    also = f"; what would do: {', or '.join(ways)}" if ways else ""
    return f"{words}{also}."


def in_signed_percent(value: float, of: float) -> str:
    """A figure's distance from another.

    Example:
        >>> in_signed_percent(1.2, 1.0)
        '+20 %'
    """
    return f"{round(100 * (value / of - 1)):+d} %"
