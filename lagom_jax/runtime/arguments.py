"""Properties of a call's arguments on which its program depends."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax

from lagom_jax.compile._internal import internal
from lagom_jax.runtime.dispatch import parts_of


class Statics(NamedTuple):
    """The static arguments of a jitted function, by position and by name."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, jitted: Any) -> Statics:
        """Those of a function that `jax.jit` made; nothing public says them.

        Raises:
            ToolchainError: jax has changed inside.

        Example:
            >>> Statics.of(jax.jit(lambda x, n: x * n, static_argnums=1))
            Statics(numbers=(1,), names=('n',))
        """
        parts = parts_of(jitted)
        numbers, names = "static_argnums", "static_argnames"
        return cls(tuple(internal(parts, numbers)), tuple(internal(parts, names)))

    def divided(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, tuple[Any, ...], dict[str, Any]]:
        """A key of the static arguments of a call, and the others.

        Example:
            >>> Statics((1,), ("n",)).divided((1.0, 2), {"x": 4})[1:]
            ((1.0,), {'x': 4})
        """
        count = len(args)
        places = {n % count for n in self.numbers if -count <= n < count}
        fixed = [(place, *_fixed(args[place])) for place in sorted(places)]
        fixed += [(n, *_fixed(kwargs[n])) for n in sorted({*self.names} & {*kwargs})]
        rest = tuple(arg for place, arg in enumerate(args) if place not in places)
        named = {n: value for n, value in kwargs.items() if n not in self.names}
        return tuple(fixed), rest, named


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
        statics: Those that are static.
        by_value: Whether all that is no array is part of the program.

    Example:
        >>> import jax.numpy as jnp
        >>> one, other = jnp.ones(3), jnp.zeros(3)
        >>> variant_of((one,), {}, Statics()) == variant_of((other,), {}, Statics())
        True
        >>> variant_of((one,), {}, Statics()) == variant_of((3,), {}, Statics())
        False
    """
    fixed, apart, named = statics.divided(args, kwargs)
    leaves, tree = jax.tree.flatten((apart, named))
    found = tuple(map(_valued, leaves)) if by_value else facts_of(leaves)
    return (len(args), fixed, tree, found, trace_context())


def _valued(leaf: Any) -> Hashable:
    return _leaf(leaf) if hasattr(leaf, "dtype") else _fixed(leaf)


def _fixed(value: Any) -> tuple[Hashable, ...]:
    # Equal and yet another program: 1, 1.0 and True.
    return type(value), value


# Not the whole type: jax makes different ones for what it runs alike.
_FACTS: Final = ("shape", "dtype", "weak_type", "sharding", "committed")
_facts_of: Final = operator.attrgetter(*_FACTS)


def facts_of(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    """The properties of arrays, one by one, on which programs depend."""
    try:
        return tuple(map(_facts_of, leaves))
    except AttributeError:
        return tuple(map(_leaf, leaves))


def settled_sharding(fact: Any) -> Any:
    """The sharding that an array has of its own, of its properties; None for none.

    What jax has put somewhere by itself has none: a program may have it elsewhere.

    Example:
        >>> import jax.numpy as jnp
        >>> settled_sharding(*facts_of([jnp.ones(3)])) is None
        True
    """
    *_, sharding, committed = fact
    # Descriptions of arrays do not say whether they are committed, and are.
    return None if committed is False else sharding


def _leaf(leaf: Any) -> Hashable:
    # What is no jax.Array has not all of them. Nor have keys of jax.random, which have
    # no weak type, and tracers. To ask which it is takes longer than to try.
    try:
        return _facts_of(leaf)
    except AttributeError:
        pass
    return type(leaf), *(getattr(leaf, name, None) for name in _FACTS)


def devices_of(shardings: Iterable[Any]) -> tuple[Any, ...]:
    """The devices of shardings, in the order of their ids.

    Example:
        >>> devices_of([None, 2.0])
        ()
    """
    found: set[Any] = set()
    for sharding in shardings:
        if isinstance(sharding, jax.sharding.Sharding):
            # Abstract meshes have no devices, and say so by raising this.
            with contextlib.suppress(ValueError):
                found.update(sharding.device_set)
    return tuple(sorted(found, key=lambda device: device.id))


def trace_is_clean() -> bool:
    """True if no jax transformation is under way in this thread.

    Example:
        >>> import jax
        >>> trace_is_clean(), jax.eval_shape(lambda: trace_is_clean() or 1).shape
        (True, ())
    """
    return _state_clean()


def trace_context() -> Any:
    """The part of jax's configuration that programs depend on, hashable."""
    return _context()


# Nothing public tells without a look at each argument whether a call is part of another
# one that is being traced, nor on which of jax's settings a program depends.
_state_clean: Callable[[], bool] = internal("jax._src.core", "trace_state_clean")
_context: Callable[[], Any] = internal("jax._src.config", "trace_context")
