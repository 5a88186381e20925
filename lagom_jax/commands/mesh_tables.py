"""Tables of meshes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lagom_jax.mesh.choosing import MeshAdvice
from lagom_jax.mesh.mesh_document import Offer, best_first
from lagom_jax.mesh.mesh_words import (
    COLUMNS,
    choice_cells,
    compiled_words,
    head_words,
    refusal_words,
    refused_lines,
    was_compiled,
)
from lagom_jax.mesh.pictures import axes_words
from lagom_jax.report.layout import table
from lagom_jax.units import in_seconds


def offer_shown(offer: Offer, rows: int, page: str) -> Group:
    """Rows of one cluster.

    Args:
        offer: The cluster and its choices.
        rows: Choices to list.
        page: The page of the documentation to name.
    """
    advice = offer.advice
    head = Text(f"{head_words(advice)}\n")
    if offer.infeasible is not None:
        return Group(head, Text(refusal_words(offer.infeasible), "bold red"))
    take = Text(
        f"Take {axes_words(advice.best.sizes)}: "
        f"{advice.best.tokens_per_second:,.0f} tokens/s. What the columns mean: {page}",
        "bold green",
    )
    refused = [Text(f"refused: {line}", "red") for line in refused_lines(advice)]
    return Group(head, _choices(advice, rows), Text(), *refused, take)


def _choices(advice: MeshAdvice, rows: int) -> Table:
    compiled = was_compiled(advice)
    shown = table("Meshes, best first", *COLUMNS, *(("compiled",) if compiled else ()))
    for choice in advice.choices[:rows]:
        last = (compiled_words(choice),) if compiled else ()
        shown.add_row(*choice_cells(choice), *last)
    return shown


def offers_shown(offers: Sequence[Offer]) -> Table:
    """Clusters compared, each by its best mesh."""
    shown = table(
        "Clusters, each with its best mesh",
        *("cluster", "mesh", "step", "tokens/s", "$ for a million tokens"),
    )
    for offer in best_first(offers):
        advice, dollars = offer.advice, offer.dollars_per_million_tokens
        if not advice.choices:
            continue
        shown.add_row(
            advice.cluster.name,
            axes_words(advice.best.sizes),
            in_seconds(advice.best.step_seconds),
            f"{advice.best.tokens_per_second:,.0f}",
            "-" if dollars is None else f"{dollars:.3g}",
        )
    return shown
