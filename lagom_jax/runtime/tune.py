"""The one line in a training program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.plan import Plan
from lagom_jax.planner import Budget
from lagom_jax.runtime import say
from lagom_jax.runtime.options import Mode, OptionError, Verify, resolve
from lagom_jax.runtime.rewritten import rewritten, way_of


def tune(
    function: Callable[..., Any] | None = None,
    *,
    mode: Mode | None = None,
    cluster: str | Cluster | None = None,
    levers: Iterable[str] | None = None,
    budget: Budget | None = None,
    plan: Plan | str | Path | None = None,
    cache: str | Path | bool | None = None,
    deterministic: bool | None = None,
    strict: bool | None = None,
    verify: Verify | None = None,
    progress: bool | None = None,
    html: str | Path | None = None,
    trace: str | Path | None = None,
    patience: float | None = None,
    kernels: str | Path | Sequence[StatedKernel] | None = None,
    rewrite: bool | int = False,
) -> Any:
    """Wraps a training step so that it runs with a plan of its own.

    The first call, and every later one with other shapes or shardings, looks for a plan
    before anything is executed, compiles with it and runs. Where nothing can be gained,
    or anything is in doubt, the step runs as it is, and one warning says why. On CPUs
    and TPUs nothing is changed.

    What is not given here is taken from the flags of `lagom_jax.flags`, then from
    environment variables (`LAGOM_MODE`, `LAGOM_CLUSTER`, ...).

    Args:
        function: A function, a jitted function, another wrapper around jax that has
            `lower` (as `nnx.jit` and `eqx.filter_jit`), or what `.lower(...)` returned.
            Left out, the answer is a decorator.
        mode: `off`: the step as it is. `report`: the same, and say what could be
            gained. `tune`: use a plan that was kept, or make one. `load`: use a plan
            that was made before, and never make one.
        cluster: What the step runs on; by default what its devices make up. Where
            these are no GPUs, the plan for a named cluster is made and kept.
        levers: Which of `options`, `costs`, `order` and `settings` a plan may use.
        budget: How often to compile, for how long, and how much memory to take.
        plan: A plan to use, or its file.
        cache: The folder where decisions are kept; by default `lagom` in jax's
            compilation cache, or `~/.cache/lagom_jax`. False for none.
        deterministic: Leave out what may change the rounding of sums.
        strict: Raise instead of running the step as it is.
        verify: `model`: trust the prediction. `measure`: let both programs take turns
            in the first steps, and keep the new one only if it is faster. `online`:
            begin at once, plan beside the training, and let its steps decide.
        progress: Log what is being compiled.
        html: The page that `report` writes; of further shapes with a number.
        trace: The trace for Perfetto that it writes, likewise.
        patience: For how many seconds processes wait for each other, beside what
            planning takes; then all of them run the step as it is.
        kernels: The time or the work of kernels that nothing else is known of, or the
            file with them, as `analyze` takes them. All processes need the same.
        rewrite: Runs the step with its collectives and the matmuls next to them in so
            many slices, as `lagom_jax.decompose.sliced` does; True for what `plan`
            names. Where nothing can be cut the step stays as it is.

    Returns:
        A function that is used as `jax.jit(function)` would be.

    Raises:
        OptionError: There is no such option, or the function cannot be tuned.
        ClusterError: No such cluster.
        ToolchainError: This jax is not known, and `strict` was asked for.

    Example:
        >>> import jax.numpy as jnp
        >>> @tune
        ... def step(weights, batch):
        ...     return weights - 0.1 * batch
        >>> step(jnp.ones(2), jnp.ones(2)).shape
        (2,)
    """
    given = {name: value for name, value in locals().items() if name != "function"}
    if function is None:
        return functools.partial(tune, **given)
    rewrite = given.pop("rewrite")
    options = resolve(given)
    way = way_of(rewrite, options.plan)
    try:
        function = rewritten(function, way)
        # Here and not above, so that importing lagom_jax does not import jax.
        from lagom_jax.runtime.wrapper import Tuned

        return Tuned(function, given)
    except OptionError:
        raise
    except Exception as error:
        # A jax that is not known may have changed in any way.
        if options.strict:
            raise
        if options.mode != "off":
            say.warn_once(f"the program as it was runs, since {error}", first=True)
        return _jitted(function)


def _jitted(function: Any) -> Any:
    import jax

    if isinstance(function, jax.stages.Lowered):
        return function.compile()
    return function if hasattr(function, "lower") else jax.jit(function)
