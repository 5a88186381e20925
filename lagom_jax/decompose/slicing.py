"""Runs the equations of a program again, some of them slice by slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from lagom_jax.compile._jax_internals import equations
from lagom_jax.decompose.collective_forms import (
    in_its_form,
    leave_waiting,
    scatters_first,
    whole_of,
)
from lagom_jax.decompose.cut_choice import (
    Cut,
    Slicing,
    choose,
    could_be,
    is_carried,
    is_sum,
)
from lagom_jax.decompose.dimension_rules import resized
from lagom_jax.decompose.flat_program import (
    FlatProgram,
    Step,
    carried_by,
    flatten,
    run_step,
)
from lagom_jax.decompose.matmul_dimensions import users_of
from lagom_jax.decompose.partitioned_matmul import in_chunks
from lagom_jax.decompose.sites import COMMUNICATING

_BODIES = {"scan": "jaxpr", "shard_map": "jaxpr", "remat2": "jaxpr", "jit": "jaxpr"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """A value in slices."""

    pieces: tuple[Any, ...]


def run_sliced(
    program: FlatProgram, slicing: Slicing, args: Sequence[Any]
) -> list[Any]:
    """The program's results, with what can be cut in slices."""
    cut = choose(program, slicing)
    env: dict[int, Any] = dict(program.constants)
    env.update(zip(program.inputs, args, strict=True))
    _walk(program, slicing, cut, env)
    return [_whole(env, number, cut) for number in program.outputs]


def _walk(
    program: FlatProgram, slicing: Slicing, cut: Cut | None, env: dict[int, Any]
) -> None:
    users: dict[int, list[Any]] = {}
    if slicing.forms and slicing.local:
        program = scatters_first(program, slicing)
        users = users_of(program)
    last = _last_uses(program)
    done: set[Step] = set()
    for place, step in enumerate(program.steps):
        done.add(step)
        if users and in_its_form(step, users, slicing, env, done):
            _forget(env, last, place)
            continue
        at = None if cut is None else _cut_at(step, cut, place)
        if cut is not None and at is not None:
            _run_parts(step, cut, at, env)
        elif cut is not None and _adds_slices(step, slicing, cut, place, env):
            _run_sum(step, cut, env)
        else:
            values = [_whole(env, number, cut) for number in step.inputs]
            results = _run_whole(step, values, slicing)
            env.update(zip(step.outputs, results, strict=True))
        _forget(env, last, place)
    if users:
        leave_waiting(program, slicing)


def _forget(env: dict[int, Any], last: dict[int, list[int]], place: int) -> None:
    for number in last.get(place, ()):
        env.pop(number, None)


def _last_uses(program: FlatProgram) -> dict[int, list[int]]:
    """The values that nobody needs after a step."""
    kept, last = set(program.outputs), {}
    for place, step in enumerate(program.steps):
        for number in (*step.inputs, *step.outputs):
            last[number] = place
    found: dict[int, list[int]] = {}
    for number, place in last.items():
        if number not in kept and number not in program.constants:
            found.setdefault(place, []).append(number)
    return found


def _cut_at(step: Step, cut: Cut, place: int) -> dict[int, int] | None:
    """The dimension of each value that a step is cut along; None if it is not."""
    if place not in cut.places:
        return None
    return could_be(step, cut, place)


def _run_parts(step: Step, cut: Cut, at: dict[int, int], env: dict[int, Any]) -> None:
    made: list[list[Any]] = []
    for part, (_, size) in enumerate(cut.parts):
        values = [
            _piece(env, number, cut, at[number], part)
            if number in at
            else _whole(env, number, cut)
            for number in step.inputs
        ]
        shapes = [tuple(getattr(value, "shape", ())) for value in values]
        params = resized(
            step.equation,
            shapes,
            [at[number] for number in step.outputs],
            (size, cut.unit),
        )
        made.append(run_step(step, values, params))
    for number, pieces in zip(step.outputs, zip(*made, strict=True), strict=True):
        env[number] = _Parts(tuple(pieces))


def _adds_slices(
    step: Step, slicing: Slicing, cut: Cut, place: int, env: dict[int, Any]
) -> bool:
    """True for a sum over the cut dimension of what is there in slices."""
    if slicing.whole_sums or place in cut.whole:
        return False
    there = any(isinstance(env[number], _Parts) for number in step.inputs)
    return there and is_sum(step, cut)


def _run_sum(step: Step, cut: Cut, env: dict[int, Any]) -> None:
    dims = [cut.dimension(number) for number in step.inputs]
    total: Any = None
    for part in range(len(cut.parts)):
        values = [
            _piece(env, number, cut, d, part)
            for number, d in zip(step.inputs, dims, strict=True)
            if d is not None
        ]
        (made,) = run_step(step, values)
        total = made if total is None else total + made
    env[step.outputs[0]] = total


def _piece(env: dict[int, Any], number: int, cut: Cut, d: int, part: int) -> Any:
    value = env[number]
    if isinstance(value, _Parts):
        return value.pieces[part]
    return cut.take(value, d, part)


def _whole(env: dict[int, Any], number: int, cut: Cut | None) -> Any:
    value = whole_of(env, number)
    if isinstance(value, _Parts):
        assert cut is not None
        d = cut.dimension(number)
        assert d is not None
        value = env[number] = cut.join(value.pieces, d)
    return value


def _run_whole(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    name = step.equation.primitive.name
    if slicing.forms and not slicing.local and name == "dot_general":
        return in_chunks(step, values, slicing) or run_step(step, values)
    key = _BODIES.get(name)
    if key is None or not _has_sites(step.equation.params[key]):
        return run_step(step, values)
    return _CONTAINERS[name](step, values, slicing)


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, ())


def _has_sites(jaxpr: Any) -> bool:
    sites = (*COMMUNICATING, "dot_general")
    return any(one.primitive.name in sites for one in equations(jaxpr))


def _in_shards(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    p = step.equation.params
    inside = dataclasses.replace(slicing, local=True)

    def body(*args: Any) -> list[Any]:
        program = flatten(_closed(p["jaxpr"]), backward=step.backward)
        return run_sliced(program, inside, args)

    return jax.shard_map(
        body,
        mesh=p["mesh"],
        in_specs=tuple(p["in_specs"]),
        out_specs=list(p["out_specs"]),
        axis_names=set(p["newly_manual_axes"]) if "newly_manual_axes" in p else set(),
        check_vma=p["check_vma"],
    )(*values)


def _as_traced(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    """Rematerialised and jitted bodies."""
    old = step.equation.params["jaxpr"]

    def body(*args: Any) -> list[Any]:
        return run_sliced(flatten(_closed(old), backward=step.backward), slicing, args)

    new = jax.make_jaxpr(body)(*values)
    if new.consts:
        return run_step(step, values)
    params = {
        **step.equation.params,
        "jaxpr": new if hasattr(old, "consts") else new.jaxpr,
    }
    return run_step(step, values, params)


def _looped(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    """A scan; what it carries in slices stays in slices from round to round."""
    p = step.equation.params
    # Loops of a step whose gradient is taken already need no rules any more.
    program = flatten(p["jaxpr"], through_rules=slicing.loops, backward=step.backward)
    first, count = carried_by(p)
    carry = dict(
        zip(program.inputs[first : first + count], program.outputs[:count], strict=True)
    )
    cut = choose(program, slicing, carry)
    consts, carried = values[:first], values[first : first + count]
    ins, outs = program.inputs[first : first + count], program.outputs[:count]
    dims = [
        cut.dimension(one) if cut and is_carried(cut, one, two) else None
        for one, two in zip(ins, outs, strict=True)
    ]

    def parts(x: Any, d: int | None) -> Any:
        if d is None or cut is None:
            return x
        return _Parts(tuple(cut.take(x, d, part) for part in range(len(cut.parts))))

    def body(carry: Any, xs: Any) -> tuple[Any, Any]:
        env: dict[int, Any] = dict(program.constants)
        held = [x if d is None else _Parts(x) for x, d in zip(carry, dims, strict=True)]
        env.update(zip(program.inputs, (*consts, *held, *xs), strict=True))
        _walk(program, slicing, cut, env)
        left: list[Any] = []
        for number, d in zip(outs, dims, strict=True):
            value = env[number]
            if d is not None and not isinstance(value, _Parts):
                value = parts(value, d)
            left.append(value.pieces if d is not None else _whole(env, number, cut))
        return left, [_whole(env, n, cut) for n in program.outputs[count:]]

    begun = [parts(x, d) for x, d in zip(carried, dims, strict=True)]
    ended, ys = lax.scan(
        body,
        [x.pieces if isinstance(x, _Parts) else x for x in begun],
        values[first + count :],
        length=p["length"],
        reverse=p["reverse"],
        unroll=p["unroll"],
    )
    joined = [
        x if d is None or cut is None else cut.join(x, d)
        for x, d in zip(ended, dims, strict=True)
    ]
    return [*joined, *ys]


_CONTAINERS: dict[str, Callable[[Step, list[Any], Slicing], list[Any]]] = {
    "scan": _looped,
    "shard_map": _in_shards,
    "remat2": _as_traced,
    "jit": _as_traced,
}
