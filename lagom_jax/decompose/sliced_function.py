"""A function whose communicated matmuls run in slices; nothing else of it changes.

The function is traced, and its equations are run again: those that treat one dimension
index by index run on slices along it, from where that dimension appears to where
something mixes it. A sum over that dimension, as in the gradient of a weight, is made
whole, so that no sum changes. Loops, rematerialisation and `shard_map` keep what they
are around bodies that are treated likewise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from lagom_jax.decompose.cut_choice import Slicing
from lagom_jax.decompose.form import DecomposeError, Form
from lagom_jax.decompose.named_sites import NamedForms, NamedLines, SiteKey
from lagom_jax.decompose.rewritten_function import rewritten
from lagom_jax.decompose.sites import COMMUNICATING, CommunicatedMatmul
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
            function that is asked about each. By default every collective of `f`
            itself, as in `shard_map`; where communication is left to the partitioner,
            every matmul. One that is not chosen runs whole.

    Returns:
        A function of the same arguments. For a jitted `f`, it is jitted likewise. Its
        attribute `sites` says what was cut when it was traced last.

    Raises:
        DecomposeError: When it is called: there is nothing to cut, or nothing at a line
            that is named.

    Example:
        >>> import jax.numpy as jnp
        >>> f = sliced(lambda x, w: jnp.tanh(x @ w), slices=2)
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2))).shape
        (4, 2)
    """
    if slices < 1:
        raise DecomposeError(f"slices must be 1 or more, not {slices}")
    named = sites is not None and not callable(sites)
    return _in_slices(f, slices, whole_sums, _asked(sites), strict=named)


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
        sites: As `sliced` takes it, about the collectives. Of those that a named line
            leads to, one must be able to be a ring.

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
        NoFormError: no ring can be made ...
    """
    form = Form("ring", slices=slices, both_ways=both_ways)
    if sites is not None and not callable(sites):
        return with_forms(f, dict.fromkeys(sites, form))
    asked = _asked(sites)

    def form_of(site: CommunicatedMatmul) -> Form | None:
        return form if site.kind in COMMUNICATING and asked(site) else None

    return rewritten(f, functools.partial(Slicing, slices, asked, forms=form_of))


def with_forms(
    f: Callable[..., Any],
    forms: Callable[[CommunicatedMatmul], Form | None] | Mapping[SiteKey, Form],
) -> Any:
    """Gives each collective next to a matmul in `f` a form of its own.

    As `rings`, with the form that suits each: rings, sends straight to the owners, or
    chunks; sums over ranks (`psum`) can be in chunks, and so can matmuls outside of
    `jax.shard_map` (`dot_general`), whose collectives are the partitioner's: each chunk
    has its own. What has no form stays as it is. `whole_weights=False` runs a slice of
    a weight's gradient between two messages.

    Args:
        f: A function; a jitted one keeps its donation, shardings and static arguments.
        forms: By line, or by line and primitive (`("layers.py:31", "all_gather")`, or
            `"reduce_scatter"`, `"psum"`, whatever jax calls that, or `"dot_general"`
            for a matmul whose collectives are left to the partitioner), or by these
            and the pass (`("layers.py:31", "all_gather", "backward")`), since a layer
            that is computed again is in both. The line is the collective's own, or that
            of a call that leads to it; of several that are named the innermost counts.
            Or a function that is asked about each.

    Returns:
        A function, as `sliced` returns it. Its attribute `left` says which collectives
        could not have the form that was asked for when it was traced last, and why;
        so does a line of the log `lagom_jax`.

    Raises:
        DecomposeError: When it is called: there is nothing to cut, or none of the
            collectives that a name is about can have its form.

    Example:
        >>> import jax.numpy as jnp
        >>> f = with_forms(lambda x, w: x @ w, {"a.py:3": Form("chunks", slices=2)})
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2)))  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoFormError: no ring can be made, and no chunks ...
    """
    strict = not callable(forms)
    asked = forms if callable(forms) else NamedForms(forms)
    return _with_forms(f, asked, strict=strict, tells=True)


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

    return rewritten(f, cutting)


def transformed(
    f: Callable[..., Any],
    transformation: str,
    slices: int,
    whole_sums: bool = True,
    forms: Sequence[SiteForm] = (),
    only: Sequence[str] = (),
) -> Any:
    """A function under the transformation that a plan names.

    Args:
        f: As the transformations take it.
        transformation: `sliced`, `rings`, `half_batch_loops` or `with_forms`.
        slices: Parts.
        whole_sums: As `sliced` takes it; of the others each has its own way.
        forms: As `with_forms` takes them.
        only: The lines that `sliced` cuts; all where there are none.

    Raises:
        DecomposeError: There is no such transformation.

    Example:
        >>> import jax.numpy as jnp
        >>> f = transformed(lambda x, w: x @ w, "sliced", 2)
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2))).shape
        (4, 2)
    """
    if transformation == "sliced":
        return _in_slices(f, slices, whole_sums, _asked(only or None))
    if transformation == "rings":
        return rings(f, slices=slices)
    if transformation == "half_batch_loops":
        return half_batch_loops(f, slices=slices)
    if transformation == "with_forms":
        named = NamedForms({one.key: one.form for one in forms})
        return _with_forms(f, named)
    raise DecomposeError(
        f"no transformation {transformation!r}: there are {', '.join(TRANSFORMATIONS)}"
    )


def _in_slices(
    f: Callable[..., Any],
    slices: int,
    whole_sums: bool,
    asked: Callable[[CommunicatedMatmul], bool],
    *,
    strict: bool = False,
) -> Any:
    return rewritten(
        f, functools.partial(Slicing, slices, asked, whole_sums, strict=strict)
    )


def _with_forms(
    f: Callable[..., Any],
    forms: Callable[[CommunicatedMatmul], Form | None],
    **telling: bool,
) -> Any:
    cutting = functools.partial(Slicing, 1, _asked(None), forms=forms, **telling)
    return rewritten(f, cutting)


def _asked(sites: Any) -> Callable[[CommunicatedMatmul], bool]:
    if sites is None:
        return lambda site: True
    if callable(sites):
        return cast("Callable[[CommunicatedMatmul], bool]", sites)
    return NamedLines(sites)
