"""Runs the equations of a program again, some of them slice by slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from lagom_jax.decompose.cut_choice import (
    Cut,
    Slicing,
    choose,
    could_be,
    is_carried,
    is_sum,
)
from lagom_jax.decompose.dimension_rules import resized
from lagom_jax.decompose.flat_program import FlatProgram, Step, carried_by, flatten
from lagom_jax.decompose.sites import COMMUNICATING, site_of
from lagom_jax.decompose.waiting_values import (
    Gathered,
    Product,
    Waiting,
    can_be_a_ring,
    operand_dimension,
    result_dimension,
    users_of,
)

_SUMS = ("add", "add_any")
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
    last = _last_uses(program)
    users = users_of(program) if slicing.ring and slicing.local else {}
    for place, step in enumerate(program.steps):
        if users and _in_ring(step, users, slicing, env):
            _forget(env, last, place)
            continue
        at = None if cut is None else _cut_at(step, cut, place)
        if cut is not None and at is not None:
            _run_parts(step, cut, at, env)
        elif cut is not None and not slicing.whole_sums and _is_sum(step, cut, env):
            _run_sum(step, cut, env)
        else:
            values = [_whole(env, number, cut) for number in step.inputs]
            results = _run_whole(step, values, slicing)
            env.update(zip(step.outputs, results, strict=True))
        _forget(env, last, place)


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


def _in_ring(
    step: Step, users: dict[int, list[Any]], slicing: Slicing, env: dict[int, Any]
) -> bool:
    """True if a step is done, or waits, as a part of a ring."""
    if all(number in env for number in step.outputs):
        return bool(step.outputs)
    form, name = slicing.ring, step.equation.primitive.name
    assert form is not None
    (out, *_) = (*step.outputs, -1)
    if can_be_a_ring(step):
        site = site_of(step.equation, step.line)
        slicing.seen.append(site)
        if not slicing.asked(site):
            return False
        value = env[step.inputs[0]]
        if name == "all_gather" and _multiplied(step, users):
            rows = _whole(env, step.inputs[0], None)
            env[out] = Gathered(step, rows, form, _run)
        elif isinstance(value, Product):
            env[out] = value.scattered(step)
        else:
            return False
        slicing.cut.append(site)
        return True
    if name in _SUMS:
        terms = [env[number] for number in step.inputs]
        if len({*step.inputs}) == 2 and all(isinstance(x, Product) for x in terms):
            env[out] = terms[0].plus(terms[1])
            return True
    if name != "dot_general":
        return False
    if any(isinstance(env[number], Gathered) for number in step.inputs):
        return _as_rows_arrive(step, users, env)
    if _only_scattered(step, users):
        one, other = (_whole(env, number, None) for number in step.inputs)
        env[out] = Product(((step, (one, other)),), form, _run)
        return True
    return False


def _multiplied(gather: Step, users: dict[int, list[Any]]) -> bool:
    """True if a matmul of what is gathered does not sum over the ranks' rows."""
    return any(_place_in(user, gather) is not None for user in users[gather.outputs[0]])


def _place_in(step: Step | None, gather: Step) -> int | None:
    """The place of what is gathered in a matmul that keeps its rows apart."""
    if step is None or step.equation.primitive.name != "dot_general":
        return None
    number, d = gather.outputs[0], gather.equation.params["all_gather_dimension"]
    places = [place for place, one in enumerate(step.inputs) if one == number]
    if len(places) != 1 or result_dimension(step, places[0], d) is None:
        return None
    return places[0]


def _as_rows_arrive(
    step: Step, users: dict[int, list[Any]], env: dict[int, Any]
) -> bool:
    """Runs a ring of all matmuls of the same rows whose other operands are there.

    Also where the step itself sums over the rows, as gradients of weights do: it then
    takes them as they have arrived.
    """
    number = next(n for n in step.inputs if isinstance(env[n], Gathered))
    waiting: Gathered = env[number]
    matmuls: list[tuple[Step, int, Any]] = []
    for user in dict.fromkeys(users[number]):
        place = _place_in(user, waiting.step)
        if place is not None and user.inputs[1 - place] in env:
            other = _whole(env, user.inputs[1 - place], None)
            matmuls.append((user, place, other))
    if matmuls:
        env[number], products = waiting.times(matmuls)
        for (user, _, _), made in zip(matmuls, products, strict=True):
            env[user.outputs[0]] = made
    return any(user is step for user, _, _ in matmuls)


def _only_scattered(step: Step, users: dict[int, list[Any]]) -> bool:
    """True if a matmul's result goes into a scatter and nowhere else, sums between."""
    user = _only_user(step, users)
    while user is not None and user.equation.primitive.name in _SUMS:
        user = _only_user(user, users)
    if user is None or user.equation.primitive.name != "reduce_scatter":
        return False
    out = user.equation.params["scatter_dimension"]
    return can_be_a_ring(user) and operand_dimension(step, out) is not None


def _only_user(step: Step, users: dict[int, list[Any]]) -> Step | None:
    found = users.get(step.outputs[0], [])
    return found[0] if len(found) == 1 else None


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
        made.append(_run(step, values, params))
    for number, pieces in zip(step.outputs, zip(*made, strict=True), strict=True):
        env[number] = _Parts(tuple(pieces))


def _is_sum(step: Step, cut: Cut, env: dict[int, Any]) -> bool:
    """True for a sum over the cut dimension of what is there in slices."""
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
        (made,) = _run(step, values)
        total = made if total is None else total + made
    env[step.outputs[0]] = total


def _piece(env: dict[int, Any], number: int, cut: Cut, d: int, part: int) -> Any:
    value = env[number]
    if isinstance(value, _Parts):
        return value.pieces[part]
    return cut.take(value, d, part)


def _whole(env: dict[int, Any], number: int, cut: Cut | None) -> Any:
    value = env[number]
    if isinstance(value, Waiting):
        value = env[number] = value.whole()
    if isinstance(value, _Parts):
        assert cut is not None
        d = cut.dimension(number)
        assert d is not None
        value = env[number] = cut.join(value.pieces, d)
    return value


def _run(step: Step, values: Sequence[Any], params: Any = None) -> list[Any]:
    """One equation, in its own context and with its own place in the source."""
    equation = step.equation
    if params is not None:
        equation = equation.replace(params=params)
    invars = [
        core.Var(atom.aval) if isinstance(atom, core.Literal) else atom
        for atom in equation.invars
    ]
    # A variable that is used twice is one argument only.
    named = dict(zip(invars, values, strict=True))
    alone = core.Jaxpr(
        (),
        [*named],
        equation.outvars,
        [equation.replace(invars=invars)],
        debug_info=step.debug,
    )
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*named.values())


def _run_whole(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    name = step.equation.primitive.name
    key = _BODIES.get(name)
    if key is None or not _has_sites(step.equation.params[key], slicing):
        return _run(step, values)
    return _CONTAINERS[name](step, values, slicing)


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, ())


def _has_sites(jaxpr: Any, slicing: Slicing) -> bool:
    inner = jaxpr.jaxpr if hasattr(jaxpr, "consts") else jaxpr
    for equation in inner.eqns:
        if equation.primitive.name in (*COMMUNICATING, "dot_general"):
            return True
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                found = hasattr(one, "eqns") or hasattr(one, "consts")
                if found and _has_sites(one, slicing):
                    return True
    return False


def _in_shards(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    p = step.equation.params
    inside = dataclasses.replace(slicing, local=True)

    def body(*args: Any) -> list[Any]:
        return run_sliced(flatten(_closed(p["jaxpr"])), inside, args)

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
        return run_sliced(flatten(_closed(old)), slicing, args)

    new = jax.make_jaxpr(body)(*values)
    if new.consts:
        return _run(step, values)
    params = {
        **step.equation.params,
        "jaxpr": new if hasattr(old, "consts") else new.jaxpr,
    }
    return _run(step, values, params)


def _looped(step: Step, values: list[Any], slicing: Slicing) -> list[Any]:
    """A scan; what it carries in slices stays in slices from round to round."""
    p = step.equation.params
    # Loops of a step whose gradient is taken already need no rules any more.
    program = flatten(p["jaxpr"], through_rules=slicing.loops)
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
