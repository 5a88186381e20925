"""The settings allowed for NCCL, given the variables that the user has set."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from lagom_jax.hlo.kinds import KINDS
from lagom_jax.plan.plan import COLLECTIVE_CAP, POINT_TO_POINT_CAP
from lagom_jax.plan.setting import REDUCING
from lagom_jax.settings.controls import Controls


def allowed(
    controls: Controls,
    *,
    pinned: Collection[str] = (),
    deterministic: bool = False,
    settings: bool = True,
) -> Controls:
    """The controls, without what would go against the user.

    Args:
        controls: The parts of a setting that can be set.
        pinned: Options that the user has set; a cap among them stays.
        deterministic: Leaves alone what may change the rounding of sums.
        settings: Whether NCCL may be given settings at all.

    Example:
        >>> from lagom_jax.settings.controls import named
        >>> allowed(named("tuner"), deterministic=True).leaves
        ('all-reduce', 'reduce-scatter')
        >>> allowed(named("caps"), deterministic=True).leaves
        ('all-gather', 'all-reduce', 'reduce-scatter')
    """
    left = {*(controls.leaves if settings else KINDS)}
    if deterministic:
        left.update(controls.keeping_sums().leaves)
    if controls.tells_apart == "nothing" and (
        deterministic or COLLECTIVE_CAP in pinned
    ):
        # One cap binds all of them, those that add up too.
        left.update(REDUCING)
    if POINT_TO_POINT_CAP in pinned:
        left.update(KINDS.difference(REDUCING))
    return dataclasses.replace(controls, leaves=tuple(sorted(left)))
