"""Properties of a call's arguments on which its program depends."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import jax

from lagom_jax.compile._jax_internals import internal


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
        numbers = internal(jitted, "_jit_info.static_argnums")
        return cls(tuple(numbers), tuple(internal(jitted, "_jit_info.static_argnames")))


class StaticsApart:
    """Divides the arguments of calls into static ones and others.

    Example:
        >>> fixed, args, kwargs = StaticsApart(Statics((1,), ("n",))).divided(
        ...     (1.0, 2), {"x": 4}
        ... )
        >>> args, kwargs
        ((1.0,), {'x': 4})
    """

    def __init__(self, statics: Statics) -> None:
        """Takes those of a function."""
        self._statics = statics
        self._ways: dict[tuple[Hashable, ...], _Way] = {}

    def divided(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Hashable, ...], tuple[Any, ...], dict[str, Any]]:
        """The static ones with their types, and the others as programs take them."""
        kwargs = {**kwargs}
        fixed, args = self.taken(args, kwargs)
        return fixed, args, kwargs

    def taken(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Hashable, ...], tuple[Any, ...]]:
        """The same; takes static ones out of `kwargs`, and leaves the others there."""
        # Written for speed, as this is the way of every call.
        way = self._ways.get((len(args), *kwargs))
        if way is None:
            way = self._way(len(args), (*kwargs,))
        number, values_of, rest_of, names = way
        values: tuple[Hashable, ...] = values_of(args)
        if names:
            values = (*values, *map(kwargs.pop, names))
        # Equal and yet another program: 1, 1.0 and True.
        return (number, values, *map(type, values)), rest_of(args)

    def _way(self, count: int, names: tuple[str, ...]) -> _Way:
        numbers = self._statics.numbers
        places = sorted({n % count for n in numbers if -count <= n < count})
        rest = [place for place in range(count) if place not in places]
        static = tuple(sorted(set(names).intersection(self._statics.names)))
        way = _Way(len(self._ways), _at(places), _at(rest), static)
        self._ways[count, *names] = way
        return way


class _Way(NamedTuple):
    """The division of calls that give as many arguments, and those names."""

    number: int
    values_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    rest_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    names: tuple[str, ...]


def _at(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Takes what is at some places of a tuple; both ways take no time in Python."""
    first, count = (places[0] if places else 0), len(places)
    if [*places] == [*range(first, first + count)]:
        return operator.itemgetter(slice(first, first + count))
    return operator.itemgetter(*places)


def variant_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    statics: StaticsApart | None,
    *,
    by_value: bool = False,
) -> Hashable:
    """A key that is equal for calls of the same program.

    Made of the trees of the arguments, of shapes, types and shardings, of the values
    of static arguments, and of what of jax's configuration programs depend on.

    Args:
        args: Arguments of the call.
        kwargs: The same by keyword.
        statics: Tells which of them are static; None if none are.
        by_value: Whether all that is no array is part of the program.

    Example:
        >>> import jax.numpy as jnp
        >>> one, other = jnp.ones(3), jnp.zeros(3)
        >>> variant_of((one,), {}, None) == variant_of((other,), {}, None)
        True
        >>> variant_of((one,), {}, None) == variant_of((3,), {}, None)
        False
    """
    fixed: tuple[Hashable, ...] = ()
    apart, named = args, kwargs
    if statics is not None:
        fixed, apart, named = statics.divided(args, kwargs)
    leaves, tree = jax.tree.flatten((apart, named))
    found = tuple(map(_valued, leaves)) if by_value else facts_of(leaves)
    return (len(args), fixed, tree, found, trace_context())


def _valued(leaf: Any) -> Hashable:
    return _leaf(leaf) if hasattr(leaf, "dtype") else _fixed(leaf)


def _fixed(value: Any) -> Hashable:
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


Path: TypeAlias = "tuple[tuple[Callable[[Any, Any], Any], Any], ...]"
"""The way to an array among arguments: `operator.getitem` or `getattr`, and of what."""


def fact_at(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The properties of one array; None where there is none at this place.

    Args:
        path: Its place.
        args: Arguments of a call.
        kwargs: The same by keyword.

    Example:
        >>> import jax.numpy as jnp
        >>> (path,) = paths_of(({"w": jnp.ones(3)},), {})
        >>> fact_at(path, ({"w": jnp.ones(4)},), {})[0]
        (4,)
    """
    found: Any = (args, kwargs)
    try:
        for get, name in path:
            found = get(found, name)
    except (KeyError, IndexError, AttributeError, TypeError):
        return None
    return _leaf(found)


def paths_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Path]:
    """The places of all arrays among arguments, as `fact_at` takes them.

    Those inside trees that nobody can look into are empty.

    Example:
        >>> [len(path) for path in paths_of(({"w": 1.0}, [2.0], 3.0), {})]
        [3, 3, 2]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
    return [_path(keys) for keys, _ in leaves]


def _path(keys: Sequence[Any]) -> Path:
    found: list[tuple[Callable[[Any, Any], Any], Any]] = []
    for key in keys:
        match key:
            case jax.tree_util.SequenceKey(idx=name) | jax.tree_util.DictKey(key=name):
                found.append((operator.getitem, name))
            case jax.tree_util.GetAttrKey(name=name):
                found.append((getattr, name))
            case _:
                return ()
    return tuple(found)


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
