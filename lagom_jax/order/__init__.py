"""In which order: a step's instructions put where collectives cost least."""

from lagom_jax.order.find import Ordering as Ordering
from lagom_jax.order.find import find_order as find_order
