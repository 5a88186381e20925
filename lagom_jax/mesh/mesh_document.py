"""The choice of a mesh as JSON; docs/how-to/mesh.md says what each key means."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lagom_jax.mesh.choosing import MeshAdvice, MeshChoice
from lagom_jax.mesh.infeasible import Infeasible
from lagom_jax.mesh.sizes import AXES


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A cluster on offer: what to train with on it, and at what price."""

    advice: MeshAdvice
    infeasible: Infeasible | None = None
    """The limit that binds where no mesh fits."""
    price: float | None = None
    """Dollars of a GPU for an hour, where it is known."""

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """Dollars for a million tokens; None without a price or a mesh."""
        if self.price is None or not self.advice.choices:
            return None
        a_second = self.price * self.advice.cluster.devices / 3600
        return 1e6 * a_second / self.advice.best.tokens_per_second


def best_first(offers: Sequence[Offer]) -> list[Offer]:
    """Offers by price per token, or by speed where there are no prices.

    Example:
        >>> from lagom_jax.mesh.choosing import choose
        >>> both = [Offer(choose("llama-3-8b", cluster=name, tokens=65536,
        ...                      sequence=2048), price=2.0)
        ...         for name in ("a100:2x8", "h100:2x8")]
        >>> [one.advice.cluster.name for one in best_first(both)]
        ['h100:2x8', 'a100:2x8']
    """

    def worth(offer: Offer) -> tuple[bool, float]:
        price = offer.dollars_per_million_tokens
        choices = offer.advice.choices
        if price is None and choices:
            price = -choices[0].tokens_per_second
        return not choices, price or 0.0

    return sorted(offers, key=worth)


def mesh_document(offers: Sequence[Offer]) -> dict[str, Any]:
    """One cluster's choices, or those of several, best first.

    Args:
        offers: At least one.
    """
    documents = [_of_offer(one) for one in best_first(offers)]
    return documents[0] if len(documents) == 1 else {"clusters": documents}


def _of_offer(offer: Offer) -> dict[str, Any]:
    advice, why = offer.advice, offer.infeasible
    return {
        "model": advice.shape.name,
        "cluster": advice.cluster.name,
        "framework": advice.framework.name,
        "tokens": advice.batch.tokens,
        "sequence_tokens": advice.batch.length,
        "choices": [_of_choice(advice, choice) for choice in advice.choices],
        "evaluated": advice.evaluated,
        "seconds": advice.seconds,
        "candidates": len(advice.candidates.found),
        "dropped": dict(advice.candidates.dropped),
        "infeasible": dataclasses.asdict(why) if why else None,
        "dollars_per_million_tokens": offer.dollars_per_million_tokens,
    }


def _of_choice(advice: MeshAdvice, choice: MeshChoice) -> dict[str, Any]:
    sizes, found = choice.sizes, choice.estimate
    return {
        **{axis: sizes.of(axis) for axis in AXES},
        "micro_batch": sizes.micro_batch,
        "micro_batches": advice.batch.micro_batches(sizes),
        "remat": sizes.remat,
        "tensor_sequence": sizes.tensor_sequence,
        "interleave": sizes.interleave,
        "rank_order": list(sizes.order),
        "step_seconds": choice.step_seconds,
        "step_low": choice.step_low,
        "step_high": choice.step_high,
        "tokens_per_second": choice.tokens_per_second,
        "mfu": choice.mfu,
        "memory_bytes": found.memory.total,
        "communication_share": found.communication_share,
        "compute_seconds": found.compute_seconds,
        "bubble_seconds": found.bubble_seconds,
        "contention_seconds": found.contention_seconds,
        "exposed_seconds": dict(found.exposed),
        "communication_seconds": dict(found.sent),
        "loses_by": dataclasses.asdict(choice.loses_by) if choice.loses_by else None,
        "verified_step_seconds": choice.verified_step_seconds,
        "verified_memory_bytes": choice.verified_memory_bytes,
        "refused": choice.refused or None,
    }
