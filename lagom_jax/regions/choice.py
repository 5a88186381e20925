"""RegionChoice of the fragment that is sent next, by how fast each changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lagom_jax.regions.cadence import Cadence


def choose(
    cadence: Cadence,
    step: jax.Array,
    last: jax.Array,
    rate: jax.Array,
    flying: jax.Array,
) -> jax.Array:
    """The fragment that goes after an inner step at which one is sent.

    Of those that may go, the one with the highest rate. A fragment may go unless it is
    on its way, or others must go now: with a send at each of the coming opportunities
    in the order of their deadlines, someone would miss its own otherwise. A fragment's
    deadline is a period after it was last sent. As long as
    `fragments * interval <= period`, everyone's is kept, which
    docs/how-to/regions.md proves.

    Args:
        cadence: When fragments are sent.
        step: The inner step.
        last: The step after which each fragment was last sent, 0 for never.
        rate: Change of each fragment per step; infinite where nobody knows yet.
        flying: Whether each is on its way.

    Example:
        >>> cadence = Cadence.adaptive_within(12, 3, delay=0, link_use=1.0)
        >>> rates = jnp.array([1.0, 5.0, 2.0])
        >>> none = jnp.zeros(3, bool)
        >>> int(choose(cadence, jnp.array(4), jnp.array([1, 2, 3]), rates, none))
        1
        >>> int(choose(cadence, jnp.array(12), jnp.array([0, 2, 3]), rates, none))
        0
    """
    if not cadence.adaptive:
        return (step // cadence.interval) % cadence.fragments
    # Opportunities that each can still let pass.
    spare = (last + cadence.period - step) // cadence.interval
    order = jnp.sort(spare)
    tight = order <= jnp.arange(cadence.fragments)
    bound = jnp.where(tight.any(), order[jnp.argmax(tight)], order[-1])
    allowed = (spare <= bound) & ~flying
    # Should the step have been set by hand, someone goes all the same.
    allowed = jnp.where(allowed.any(), allowed, ~flying)
    return jnp.argmax(jnp.where(allowed, rate, -1.0)).astype(jnp.int32)
