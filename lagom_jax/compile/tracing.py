"""Kinds of training steps, and the way to trace each of them."""

from __future__ import annotations

import functools
import math
import os
import sys
import traceback
import types
from typing import Any

import jax

from lagom_jax.compile import _jax_internals
from lagom_jax.errors import StepError, StepTypeError


def trace(step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Traces a step unless that has been done already.

    Args:
        step: A function, a jitted one, a method or partial of one, or a jax stage.
        args: The arguments it would be called with.
        kwargs: The same by keyword.

    Returns:
        A `jax.stages.Traced`, or a `jax.stages.Lowered` that is for GPUs already.

    Raises:
        StepError: There is nothing to trace, or jax refuses the arguments.

    Example:
        >>> trace(lambda x: x + 1, (1.0,), {}).jaxpr.out_avals
        [ShapedArray(float32[], weak_type=True)]
    """
    stage = _stage(step)
    if stage is not None:
        if args or kwargs:
            raise StepError(
                f"a {type(step).__name__} already knows its arguments: give it alone, "
                "or give the function together with its arguments."
            )
        return stage
    if not callable(step):
        raise StepTypeError(
            f"a training step is a function, not {described(step)}: give the function "
            "that takes the state and the batch."
        )
    function, args, kwargs = _jitted(step, args, kwargs)
    try:
        if hasattr(function, "trace"):
            traced = function.trace(*args, **kwargs)
        else:
            traced = _jax_internals.trace_of_lowering(function.lower, args, kwargs)
    except Exception as error:
        if _comes_from_user_code(error):
            raise
        raise StepError(
            f"jax cannot trace {described(step)} with these arguments: "
            f"{first_paragraph(error)}"
        ) from error
    stage = _stage(traced)
    if stage is None:
        raise StepError(
            f"{described(step)} gives {described(traced)} where jax gives a traced "
            "function, which jax cannot lower: wrap the step in jax.jit instead."
        )
    return stage


def described(value: Any) -> str:
    """A value in a message: its name if it has one, else its type.

    Example:
        >>> described(described), described(3)
        ('described', 'an object of type int')
    """
    name = getattr(value, "__name__", None)
    return (
        name if isinstance(name, str) else f"an object of type {type(value).__name__}"
    )


def first_paragraph(error: BaseException, limit: int = 1200) -> str:
    r"""An exception's message, without the advice and listings that follow.

    Example:
        >>> first_paragraph(ValueError("no such axis\n\nFor more information ..."))
        'no such axis'
    """
    text = str(error).strip().split("\n\n")[0].split("\n----")[0].strip()
    text = text or type(error).__name__
    return text if len(text) <= limit else text[:limit] + " ..."


def _stage(value: Any) -> Any | None:
    """The jax stage that a value is, or that it wraps as flax's stages do."""
    if isinstance(value, jax.stages.Compiled):
        raise StepError(
            "this step is compiled already, and for the devices that are here: give "
            "the function itself, or step.trace(...)."
        )
    if isinstance(value, jax.stages.Lowered):
        platforms = _jax_internals.platforms(value)
        if platforms != ("cuda",):
            raise StepError(
                f"this step was lowered for {', '.join(platforms)}, not for GPUs: give "
                "step.trace(...), or "
                'step.trace(...).lower(lowering_platforms=("cuda",)).'
            )
        return value
    if isinstance(value, jax.stages.Traced):
        return value
    for name in ("traced", "lowered", "compiled"):
        inner = getattr(value, name, None)
        if isinstance(
            inner, (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)
        ):
            return _stage(inner)
    return None


def _jitted(
    step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A jitted function to trace, with the arguments to trace it for.

    Jitting a partial or a bound method anew would bury the jitted function in it, and
    with it its donation and its shardings.
    """
    function, bound_args, bound_kwargs = step, args, kwargs
    while True:
        if isinstance(function, functools.partial):
            bound_args = (*function.args, *bound_args)
            bound_kwargs = {**function.keywords, **bound_kwargs}
            function = function.func
        elif isinstance(function, types.MethodType):
            bound_args = (function.__self__, *bound_args)
            function = function.__func__
        else:
            break
    # `functools.wraps` copies `trace` from a jitted function onto a plain one, where
    # it would trace the function inside and skip the wrapper.
    if isinstance(function, types.FunctionType) or not hasattr(function, "lower"):
        return jax.jit(step), args, kwargs
    return function, bound_args, bound_kwargs


def _comes_from_user_code(error: BaseException) -> bool:
    """True if the traceback enters code that is neither jax's nor this room's."""
    frames = traceback.extract_tb(error.__traceback__)
    return not all(_is_machinery(frame.filename) for frame in frames)


def _is_machinery(file: str) -> bool:
    if file.startswith((*_folders(jax, sys.modules[__name__]), "<frozen")):
        return True
    installed = "site-packages" in file or "dist-packages" in file
    return file.startswith(_folders(os)) and not installed


def _folders(*modules: types.ModuleType) -> tuple[str, ...]:
    return tuple(os.path.dirname(m.__file__ or "") + os.sep for m in modules)


def bytes_on_a_device(arguments: Any) -> int:
    """Bytes of a step's arguments that one device holds, by their shardings.

    Args:
        arguments: A tree of arrays or `jax.ShapeDtypeStruct`s.

    Example:
        >>> bytes_on_a_device([jax.ShapeDtypeStruct((8, 2), "float32")])
        64
    """
    total = 0
    for leaf in jax.tree.leaves(arguments):
        if not hasattr(leaf, "shape"):
            continue
        shape, sharding = leaf.shape, getattr(leaf, "sharding", None)
        if sharding is not None:
            shape = sharding.shard_shape(shape)
        total += math.prod(shape) * jax.numpy.dtype(leaf.dtype).itemsize
    return total
