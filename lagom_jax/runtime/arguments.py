"""The properties of a call's arguments on which its program depends."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Hashable, Iterable
from typing import Any, Final

import jax

from lagom_jax.runtime.jitted import Statics, trace_context


def variant_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    statics: Statics,
    *,
    by_value: bool = False,
) -> Hashable:
    """A key that is equal for calls of the same program.

    Made of the trees of the arguments, of shapes, types and shardings, of the values
    of static arguments, and of what of jax's configuration programs depend on.

    Args:
        args: Arguments of the call.
        kwargs: The same by keyword.
        statics: Which of them are static.
        by_value: Whether all that is no array is part of the program.

    Example:
        >>> import jax.numpy as jnp
        >>> one, other = jnp.ones(3), jnp.zeros(3)
        >>> nothing = Statics((), ())
        >>> variant_of((one,), {}, nothing) == variant_of((other,), {}, nothing)
        True
        >>> variant_of((one,), {}, nothing) == variant_of((3,), {}, nothing)
        False
    """
    numbers = {n % len(args) for n in statics.numbers if -len(args) <= n < len(args)}
    fixed = [_fixed(value) for n, value in enumerate(args) if n in numbers]
    fixed += [
        (name, _fixed(kwargs[name])) for name in sorted(kwargs) if name in statics.names
    ]
    open_args = [value for n, value in enumerate(args) if n not in numbers]
    open_kwargs = {n: value for n, value in kwargs.items() if n not in statics.names}
    leaves, tree = jax.tree.flatten((open_args, open_kwargs))
    found = tuple(map(_valued, leaves)) if by_value else _leaves(leaves)
    return (len(args), tuple(fixed), tree, found, trace_context())


def _valued(leaf: Any) -> Hashable:
    return _leaf(leaf) if hasattr(leaf, "dtype") else _fixed(leaf)


def _fixed(value: Any) -> Hashable:
    # Equal and yet another program: 1, 1.0 and True.
    return type(value), value


# Not the whole type: jax makes different ones for what it runs alike.
_FACTS: Final = ("shape", "dtype", "weak_type", "sharding", "committed")
_facts_of: Final = operator.attrgetter(*_FACTS)


def _leaves(leaves: list[Any]) -> Hashable:
    try:
        return tuple(map(_facts_of, leaves))
    except AttributeError:
        return tuple(map(_leaf, leaves))


def _leaf(leaf: Any) -> Hashable:
    # What is no jax.Array has not all of them. Nor have keys of jax.random, which have
    # no weak type, and tracers. To ask which it is takes longer than to try.
    try:
        return _facts_of(leaf)
    except AttributeError:
        pass
    return type(leaf), *(getattr(leaf, name, None) for name in _FACTS)


def devices_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], shardings: Iterable[Any] = ()
) -> tuple[Any, ...]:
    """The devices that arguments lie on, or are meant for, in the order of their ids.

    Args:
        args: Arguments of a call.
        kwargs: The same by keyword.
        shardings: What the function itself says about where they go.

    Example:
        >>> devices_of((1, 2.0), {})
        ()
    """
    found: set[Any] = set()
    leaves = jax.tree.leaves((args, kwargs))
    for sharding in (*(getattr(leaf, "sharding", None) for leaf in leaves), *shardings):
        if isinstance(sharding, jax.sharding.Sharding):
            # Abstract meshes have no devices, and say so by raising this.
            with contextlib.suppress(ValueError):
                found.update(sharding.device_set)
    return tuple(sorted(found, key=lambda device: device.id))
