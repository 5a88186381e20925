"""The names in a program that a person recognises.

JAX writes the way to every operation into its name: functions, loops, transformations
and the scopes that the program's author named, such as
`jit(train)/transpose(jvp())/while/body/checkpoint/attention.query/all_gather`. Only the
scopes, and which pass it belongs to, help to find it again.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from lagom_jax.hlo.config import op_name, source_line
from lagom_jax.hlo.module import Instruction, Module

# What tracing and control flow put between the scopes.
_MACHINERY = re.compile(
    r"""(jit|pjit|xla_call|xla_pmap|vmap|pmap|named|core_call|custom_jvp|custom_vjp)\(.*\)
    | (jvp|transpose)\(\) | transpose\(jvp\(\)\)
    | while | body | cond | scan | closed_call | checkpoint | remat\d* | shard_map
    | eval_jaxpr | <\w+> | <unnamed\ \w+> | body_fun | cond_fun | wrapped | wrapper
    | run_jaxpr | core_closed_call | custom_partitioning | fun_wrapped
    | rematted_computation | main | branch_\d+_fun | custom_[jv]+p_call\w* | pjit
    """,
    re.VERBOSE,
)
_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|jit)\((.*)\)$")
_RECOMPUTED = "rematted_computation"
_BACKWARD = "transpose("


def short_origin(op_name: str) -> str:
    """The scope an operation stands in, and the pass it belongs to.

    Args:
        op_name: As the compiler kept it; of a combined operation, all of them.

    Example:
        >>> short_origin("jit(f)/jvp()/while/body/forward.gate/all_gather")
        'forward.gate'
        >>> short_origin("jit(f)/transpose(jvp())/while/body/checkpoint/"
        ...              "rematted_computation/attention.out/all_gather")
        'attention.out, recomputed'
        >>> short_origin("jit(f)/(transpose(jvp(a.w))/psum:transpose(jvp(b.w))/psum)")
        'a.w +1, backward'
    """
    parts = _parts(op_name)
    if not parts:
        return ""
    scopes = list(dict.fromkeys(scope for scope in map(_scope, parts) if scope))
    if not scopes:
        return ""
    shown = scopes[0] + (f" +{len(scopes) - 1}" if len(scopes) > 1 else "")
    if all(_RECOMPUTED in part for part in parts):
        return f"{shown}, recomputed"
    return f"{shown}, backward" if _BACKWARD in op_name else shown


def has_scope(op_name: str) -> bool:
    """True if the program's author named a scope around an operation.

    Example:
        >>> has_scope("jit(f)/layer.0/dot_general"), has_scope("jit(f)/dot_general")
        (True, False)
    """
    return any(_scopes(part) for part in _parts(op_name))


def place_of(instruction: Instruction | None, module: Module | None) -> str:
    """A place in the program that a person recognises: a named scope, or a line.

    Args:
        instruction: The instruction; None where there is none.
        module: Its module, which knows the lines of the source.
    """
    if instruction is None:
        return ""
    name = op_name(instruction)
    if has_scope(name):
        return short_origin(name)
    line = file_and_line(source_line(module, instruction)) if module else ""
    return line or short_origin(name)


def file_and_line(source: str) -> str:
    """The last part of a path with its line; empty where nothing is known.

    Example:
        >>> file_and_line("/home/me/train.py:12")
        'train.py:12'
    """
    path, _, line = source.rpartition(":")
    return f"{PurePath(path).name}:{line}" if path else ""


def _parts(op_name: str) -> list[str]:
    """The names of the operations that were combined, each whole."""
    beginning, parenthesis, inside = f"/{op_name}".partition("/(")
    if not parenthesis:
        return [op_name] if op_name else []
    names = inside.removesuffix(")").split(":")
    return [f"{beginning}/{name}".strip("/") for name in names]


def _scope(name: str) -> str:
    scopes = _scopes(name)
    return "/".join(scopes[-2:]) if scopes else name.rpartition("/")[2]


def _scopes(name: str) -> list[str]:
    way = name.split("/")[:-1]
    scopes = (_unwrapped(step) for step in way if not _MACHINERY.fullmatch(step))
    return [scope for scope in scopes if scope]


def _unwrapped(step: str) -> str:
    while found := _WRAPPED.match(step):
        step = str(found[1])
    return step
