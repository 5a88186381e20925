"""A function run again under a transformation, called and lowered as the original."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

import jax

from lagom_jax.decompose.cut_choice import Slicing
from lagom_jax.decompose.flat_program import flatten
from lagom_jax.decompose.form import DecomposeError
from lagom_jax.decompose.sites import CommunicatedMatmul
from lagom_jax.decompose.slicing import run_sliced
from lagom_jax.plan.rewrite import NoFormError, SiteRefusal

_LOG = logging.getLogger("lagom_jax")


def rewritten(f: Any, cutting: Callable[[], Slicing]) -> Any:
    """A function of the same arguments, jitted likewise where that one is.

    Args:
        f: The function.
        cutting: What is asked of each trace.
    """
    if hasattr(f, "lower") and hasattr(f, "trace"):
        return SlicedJit(f, cutting)

    def again(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        # Numbers, strings and the like may decide what is computed.
        traced = [n for n, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]
        held: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            given = list(leaves)
            for number, array in zip(traced, arrays, strict=True):
                given[number] = array
            args, kwargs = jax.tree.unflatten(tree, given)
            found, out = jax.tree.flatten(f(*args, **kwargs))
            held.append(out)
            return found

        arrays = [leaves[number] for number in traced]
        closed = jax.make_jaxpr(flat)(*arrays)
        results = _again(closed, cutting(), arrays, run)
        return jax.tree.unflatten(held[-1], results)

    run: Any = functools.wraps(f)(again)
    run.sites = run.left = ()
    return run


def _again(closed: Any, slicing: Slicing, leaves: list[Any], made: Any) -> list[Any]:
    """The results; what was cut, the largest first, is noted at the function."""
    results = run_sliced(flatten(closed), slicing, leaves)
    made.sites = tuple(sorted(slicing.cut, key=lambda site: -site.bytes))
    made.left = slicing.refusals()
    said = "; ".join(one.words for one in made.left)
    if (slicing.slices > 1 or slicing.forms) and not slicing.cut:
        asked = f"; asked for were {said}" if said else ""
        raise NoFormError(f"{slicing.nothing()}{asked}", made.left)
    missing = [one.words for one in made.left if not one.partly]
    if slicing.strict and missing:
        raise NoFormError(
            f"a place cannot have its form: {'; '.join(missing)}. Leave it out"
            f"{slicing.there()}",
            made.left,
        )
    if slicing.tells and said:
        _LOG.warning("collectives that stay as they are: %s", said)
    return results


class SlicedJit:
    """A jitted function in slices: called, traced and lowered as the original.

    Example:
        >>> import jax.numpy as jnp
        >>> from lagom_jax.decompose import sliced
        >>> f = sliced(jax.jit(lambda x, w: x @ w), slices=2)
        >>> f.lower(jnp.ones((4, 8)), jnp.ones((8, 2))).out_info.shape
        (4, 2)
    """

    def __init__(self, f: Any, cutting: Callable[[], Slicing]) -> None:
        """Takes the function, and what is asked of each trace."""
        functools.update_wrapper(self, f)
        self._f, self._cutting = f, cutting
        self.sites: tuple[CommunicatedMatmul, ...] = ()
        """Cuts when it was traced last, the largest first."""
        self.left: tuple[SiteRefusal, ...] = ()
        """Forms that were asked for then, and cannot be had."""
        self._made: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it."""
        made, args, kwargs = self._jit(args, kwargs)
        return made(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).trace`."""
        made, args, kwargs = self._jit(args, kwargs)
        return made.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).lower`."""
        return self.trace(*args, **kwargs).lower()

    def _jit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The jitted function for such arguments, and those that are not static."""
        traced = self._f.trace(*args, **kwargs)
        key = traced.jaxpr
        if id(key) not in self._made:
            # The jaxpr is kept, so that its id is not given to another.
            self._made[id(key)] = key, self._of(traced)
        return (self._made[id(key)][1], *_traced_arguments(traced, args, kwargs))

    def _of(self, traced: Any) -> Any:
        closed, out_tree = traced.jaxpr, traced.out_tree
        donated, names = _donated(traced)

        def again(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            results = _again(closed, self._cutting(), leaves, self)
            return jax.tree.unflatten(out_tree, results)

        again.__name__ = getattr(self._f, "__name__", "sliced")
        return jax.jit(
            again,
            donate_argnums=donated,
            donate_argnames=names,
            **_jit_options(traced),
        )


def _traced_arguments(
    traced: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the static ones, which are part of the program."""
    without_arrays = [
        place
        for place, tree in [*enumerate(args), *kwargs.items()]
        if not any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(tree))
    ]
    for count in range(len(without_arrays) + 1):
        for static in itertools.combinations(without_arrays, count):
            left = tuple(x for place, x in enumerate(args) if place not in static)
            named = {name: x for name, x in kwargs.items() if name not in static}
            if jax.tree.structure((left, named)) == traced.in_tree:
                return left, named
    raise DecomposeError(
        "it is not clear which arguments are static: slice the function itself, and "
        "jit the result, as in jax.jit(sliced(f), static_argnums=...)"
    )


def _donated(traced: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    args, kwargs = traced.args_info

    def wholly(tree: Any) -> bool:
        leaves = jax.tree.leaves(tree)
        return bool(leaves) and all(leaf.donated for leaf in leaves)

    return (
        tuple(number for number, tree in enumerate(args) if wholly(tree)),
        tuple(name for name, tree in kwargs.items() if wholly(tree)),
    )


def _jit_options(traced: Any) -> dict[str, Any]:
    """Shardings and compiler options of a jitted function."""
    args, kwargs = traced.args_info
    found = getattr(traced, "_params", None) or {}
    given: dict[str, Any] = {}
    if options := found.get("compiler_options_kvs"):
        given["compiler_options"] = dict(options)
    ins, outs = found.get("in_shardings", ()), found.get("out_shardings", ())
    if any(_is_sharding(one) for one in outs):
        given["out_shardings"] = jax.tree.unflatten(
            traced.out_tree, [one if _is_sharding(one) else None for one in outs]
        )
    if not kwargs and any(_is_sharding(one) for one in ins):
        given["in_shardings"] = jax.tree.unflatten(
            jax.tree.structure(args),
            [one if _is_sharding(one) else None for one in ins],
        )
    return given


def _is_sharding(value: Any) -> bool:
    return isinstance(value, jax.sharding.Sharding)
