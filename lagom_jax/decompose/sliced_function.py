"""A function whose communicated matmuls run in slices; nothing else of it changes.

The function is traced, and its equations are run again: those that treat one dimension
index by index run on slices along it, from where that dimension appears to where
something mixes it. A sum over that dimension, as in the gradient of a weight, is made
whole, so that no sum changes. Loops, rematerialisation and `shard_map` keep what they
are around bodies that are treated likewise.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import jax

from lagom_jax.decompose.cut_choice import Slicing
from lagom_jax.decompose.flat_program import flatten
from lagom_jax.decompose.form import DecomposeError, Form
from lagom_jax.decompose.sites import CommunicatedMatmul, kind_of
from lagom_jax.decompose.slicing import run_sliced
from lagom_jax.plan.rewrite import TRANSFORMATIONS, SiteForm


def sliced(
    f: Callable[..., Any],
    *,
    slices: int = 2,
    whole_sums: bool = True,
    sites: Callable[[CommunicatedMatmul], bool] | Collection[str] | None = None,
) -> Any:
    """Cuts the matmuls of `f` that are next to a collective, and the collective.

    Each slice's collective can then travel beside the work on another slice. The cut is
    along a dimension that is not summed, and sums over it are made whole: results are
    the same but for what XLA rounds differently in kernels of another shape.

    Args:
        f: A function; a jitted one keeps its donation, shardings and static arguments.
        slices: Parts that are as equal as sizes allow.
        whole_sums: False for gradients of weights that are summed over each slice and
            then added: they need not wait for all slices, and these need not be put
            together, but sums are rounded otherwise.
        sites: Which to cut: lines as `lagom report` names them (`layout.py:218`), or a
            function that is asked about each. By default every matmul whose result or
            operand is communicated by `f` itself, as in `shard_map`; where
            communication is left to the partitioner, every matmul.

    Returns:
        A function of the same arguments. For a jitted `f`, it is jitted likewise. Its
        attribute `sites` says what was cut when it was traced last.

    Raises:
        DecomposeError: When it is called: there is nothing to cut.

    Example:
        >>> import jax.numpy as jnp
        >>> f = sliced(lambda x, w: jnp.tanh(x @ w), slices=2)
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2))).shape
        (4, 2)
    """
    if slices < 1:
        raise DecomposeError(f"slices must be 1 or more, not {slices}")
    return _cut(f, functools.partial(Slicing, slices, _asked(sites), whole_sums))


def rings(
    f: Callable[..., Any],
    *,
    slices: int = 1,
    both_ways: bool = False,
    sites: Callable[[CommunicatedMatmul], bool] | Collection[str] | None = None,
) -> Any:
    """Makes rings of messages of the gathers and scatters next to matmuls in `f`.

    An all-gather before a matmul, and a matmul before a reduce-scatter, become what
    `all_gather_matmul` and `matmul_reduce_scatter` are: each slice's message travels
    behind the matmul of another. Gradients that `f` takes are cut likewise. The
    collectives have to be `f`'s own, as in `jax.shard_map`, tiled, over one mesh axis.
    Scattered sums are added in another order, in float32 where the type is shorter.

    Args:
        f: A function; a jitted one keeps its donation, shardings and static arguments.
        slices: Parts that each rank's rows are cut into.
        both_ways: Whether half of the slices go around the ring the other way.
        sites: As `sliced` takes it, about the collectives.

    Returns:
        A function, as `sliced` returns it.

    Raises:
        DecomposeError: When it is called: there is nothing to make a ring of.

    Example:
        >>> import jax.numpy as jnp
        >>> f = rings(lambda x, w: x @ w)
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2)))  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        DecomposeError: no ring can be made ...
    """
    form, asked = Form("ring", slices=slices, both_ways=both_ways), _asked(sites)

    def form_of(site: CommunicatedMatmul) -> Form | None:
        return form if asked(site) else None

    return _cut(f, functools.partial(Slicing, slices, asked, forms=form_of))


def with_forms(
    f: Callable[..., Any],
    forms: Callable[[CommunicatedMatmul], Form | None]
    | Mapping[tuple[str, str] | str, Form],
) -> Any:
    """Gives each collective next to a matmul in `f` a form of its own.

    As `rings`, with the form that suits each: rings, sends straight to the owners, or
    chunks; sums over ranks (`psum`) can be in chunks. What has no form stays as it is.
    `whole_weights=False` runs a slice of a weight's gradient between two messages.

    Args:
        f: A function; a jitted one keeps its donation, shardings and static arguments.
        forms: By line, or by line and primitive (`("layers.py:31", "all_gather")`, or
            `"reduce_scatter"` or `"psum"`, whatever jax calls the last). The
            line is the collective's own, or that of a call that leads to it; of several
            that are named the innermost counts. Or a function that is asked about each.

    Returns:
        A function, as `sliced` returns it.

    Raises:
        DecomposeError: When it is called: there is nothing to cut.

    Example:
        >>> import jax.numpy as jnp
        >>> f = with_forms(lambda x, w: x @ w, {"a.py:3": Form("chunks", slices=2)})
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2)))  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        DecomposeError: no ring can be made, and no chunks ...
    """

    def named(site: CommunicatedMatmul) -> Form | None:
        assert not callable(forms)
        for line in site.lines:
            for key in ((line, kind_of(site)), line):
                if key in forms:
                    return forms[key]
        return None

    asked = forms if callable(forms) else named
    return _cut(f, functools.partial(Slicing, 1, _asked(None), forms=asked))


def half_batch_loops(f: Callable[..., Any], *, slices: int = 2) -> Any:
    """Runs the loops of a training step on independent slices of the batch.

    What `half_batches` makes of a layer, this makes of every `jax.lax.scan` over layers
    in a step that has taken its gradient already: the whole body runs on one slice of
    the batch beside another, from round to round; only sums over the batch, as for
    gradients of weights, are made slice by slice and added, which rounds otherwise.
    What is outside of loops stays as it is.

    Args:
        f: A function; a jitted one keeps its donation, shardings and static arguments.
        slices: Parts of the batch, which has to divide.

    Returns:
        A function, as `sliced` returns it.

    Raises:
        DecomposeError: When it is called: there is no loop, or one mixes examples.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def step(x, ws):
        ...     return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]
        >>> half_batch_loops(step)(jnp.ones((4, 8)), jnp.ones((3, 8, 8))).shape
        (4, 8)
    """
    if slices < 1:
        raise DecomposeError(f"slices must be 1 or more, not {slices}")

    def cutting() -> Slicing:
        return Slicing(slices, _asked(None), whole_sums=False, loops=True)

    return _cut(f, cutting)


def transformed(
    f: Callable[..., Any],
    transformation: str,
    slices: int,
    whole_sums: bool = True,
    forms: Sequence[SiteForm] = (),
) -> Any:
    """A function under the transformation that a plan names.

    Args:
        f: As the transformations take it.
        transformation: `sliced`, `rings`, `half_batch_loops` or `with_forms`.
        slices: Parts.
        whole_sums: As `sliced` takes it; of the others each has its own way.
        forms: As `with_forms` takes them.

    Raises:
        DecomposeError: There is no such transformation.

    Example:
        >>> import jax.numpy as jnp
        >>> f = transformed(lambda x, w: x @ w, "sliced", 2)
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2))).shape
        (4, 2)
    """
    if transformation == "sliced":
        return sliced(f, slices=slices, whole_sums=whole_sums)
    if transformation == "rings":
        return rings(f, slices=slices)
    if transformation == "half_batch_loops":
        return half_batch_loops(f, slices=slices)
    if transformation == "with_forms":
        return with_forms(f, {(one.line, one.kind): one.form for one in forms})
    raise DecomposeError(
        f"no transformation {transformation!r}: there are {', '.join(TRANSFORMATIONS)}"
    )


def _cut(f: Any, cutting: Callable[[], Slicing]) -> Any:
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
        results, run.sites = _again(closed, cutting(), arrays)
        return jax.tree.unflatten(held[-1], results)

    run: Any = functools.wraps(f)(again)
    run.sites = ()
    return run


def _again(
    closed: Any, slicing: Slicing, leaves: list[Any]
) -> tuple[list[Any], tuple[CommunicatedMatmul, ...]]:
    """The results, and what was cut, the largest first."""
    results = run_sliced(flatten(closed), slicing, leaves)
    if (slicing.slices > 1 or slicing.forms) and not slicing.cut:
        raise DecomposeError(slicing.nothing())
    return results, tuple(sorted(slicing.cut, key=lambda site: -site.bytes))


def _asked(sites: Any) -> Callable[[CommunicatedMatmul], bool]:
    if sites is None:
        return lambda site: True
    if callable(sites):
        return cast("Callable[[CommunicatedMatmul], bool]", sites)
    lines = frozenset(sites)
    return lambda site: not lines.isdisjoint(site.lines)


class SlicedJit:
    """A jitted function in slices: called, traced and lowered as the original.

    Example:
        >>> import jax.numpy as jnp
        >>> f = sliced(jax.jit(lambda x, w: x @ w), slices=2)
        >>> f.lower(jnp.ones((4, 8)), jnp.ones((8, 2))).out_info.shape
        (4, 2)
    """

    def __init__(self, f: Any, cutting: Callable[[], Slicing]) -> None:
        functools.update_wrapper(self, f)
        self._f, self._cutting = f, cutting
        self.sites: tuple[CommunicatedMatmul, ...] = ()
        """Cuts when it was traced last, the largest first."""
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
            results, self.sites = _again(closed, self._cutting(), leaves)
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
