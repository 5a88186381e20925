"""Training across slow links: an outer optimiser around any training step.

Planning needs no jax; the optimiser is imported when it is first asked for.

Example:
    >>> import jax.numpy as jnp
    >>> from lagom_jax import regions
    >>> outer = regions.cocodc(axis=None, period=100, fragments=1, delay=5)
    >>> state = outer.init(jnp.ones(8))
    >>> params, state = outer.update(jnp.ones(8), state)
    >>> int(state.common.step)
    1
"""

from typing import TYPE_CHECKING

from lagom_jax.later import later
from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.meeting import Meeting

if TYPE_CHECKING:
    from lagom_jax.regions.exchange import Exchange
    from lagom_jax.regions.fragments import Fragments
    from lagom_jax.regions.outer_state import OuterOptimizer, OuterState
    from lagom_jax.regions.placing import resized, sharded, stacked, state_axes
    from lagom_jax.regions.strategies import cocodc, diloco, streaming

_LATER = {
    "Fragments": "fragments",
    "OuterOptimizer": "outer_state",
    "OuterState": "outer_state",
    "Exchange": "exchange",
    "resized": "placing",
    "sharded": "placing",
    "stacked": "placing",
    "state_axes": "placing",
    "cocodc": "strategies",
    "diloco": "strategies",
    "streaming": "strategies",
}

__all__ = [
    "Cadence",
    "Exchange",
    "Fragments",
    "Meeting",
    "OuterOptimizer",
    "OuterState",
    "cocodc",
    "diloco",
    "resized",
    "sharded",
    "stacked",
    "state_axes",
    "streaming",
]

# Names that need jax.
__getattr__ = later(__name__, _LATER)
