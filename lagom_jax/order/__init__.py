"""In which order: a step's instructions put where collectives cost least."""

from typing import TYPE_CHECKING

from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.order.find import Ordering, find_order

__all__ = [
    "Ordering",
    "find_order",
]

__getattr__ = later(
    __name__,
    {
        "Ordering": "find",
        "find_order": "find",
    },
)
