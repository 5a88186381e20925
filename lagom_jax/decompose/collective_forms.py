"""Steps of a program that run, or wait, as the forms of its collectives ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from typing import Any

from lagom_jax.decompose.cut_choice import Slicing
from lagom_jax.decompose.dimension_rules import is_by_element
from lagom_jax.decompose.flat_program import FlatProgram, Step
from lagom_jax.decompose.form import PLAIN, WHOLE, Form
from lagom_jax.decompose.matmul_dimensions import (
    axes_of,
    operand_dimension,
    result_dimension,
    summed_dimensions,
)
from lagom_jax.decompose.sites import REDUCTIONS, LeftSite
from lagom_jax.decompose.waiting_values import (
    Arrived,
    Gathered,
    Product,
    RowSum,
    Waiting,
)
from lagom_jax.plan.rewrite import Why

Users = dict[int, list[Any]]
"""The steps that need each value, as `users_of` finds them."""
Values = dict[int, Any]
"""Arrays by the number of the value, or what waits in their place."""

_SUMS = ("add", "add_any")
_COLLECTIVES = (*REDUCTIONS, "all_gather", "all_gather_invariant", "reduce_scatter")


def whole_of(env: Values, number: int) -> Any:
    """A value, once nothing of it waits."""
    value = env[number]
    if isinstance(value, Waiting):
        value = env[number] = value.whole()
    return value


def in_its_form(
    step: Step, users: Users, slicing: Slicing, env: Values, done: Set[Step]
) -> bool:
    """True if a step is done, or waits, as a part of a collective's form.

    Args:
        step: The next step.
        users: Of all values.
        slicing: What was asked for, and what becomes of it.
        env: The values so far.
        done: The steps before it.
    """
    if all(number in env for number in step.outputs):
        return bool(step.outputs)
    if step.name in _COLLECTIVES:
        return _cut(step, users, slicing, env, done)
    (out, *_) = (*step.outputs, -1)
    if step.name in _SUMS:
        terms = [env[number] for number in step.inputs]
        if len({*step.inputs}) == 2 and all(isinstance(x, Product) for x in terms):
            env[out] = terms[0].plus(terms[1])
            return True
    if step.name != "dot_general":
        return False
    if any(isinstance(env[number], Gathered) for number in step.inputs):
        return _as_rows_arrive(step, users, slicing, env)
    target = _only_collective(step, users)
    if target is not None and form_of(target, slicing) is not None:
        one, other = (whole_of(env, number) for number in step.inputs)
        env[out] = Product(((step, (one, other)),))
        return True
    return _over_ranks(step, env)


def can_be_cut(step: Step) -> bool:
    """True for a gather or scatter of blocks over one mesh axis, and for a sum."""
    params = step.equation.params
    if step.name in REDUCTIONS:
        groups, axes = params.get("axis_index_groups"), params["axes"]
        named = all(isinstance(axis, str) for axis in axes)
        return groups is None and len(step.inputs) == 1 and named
    if step.name not in ("all_gather", "reduce_scatter"):
        return False
    return (
        bool(params["tiled"])
        and params["axis_index_groups"] is None
        and len(axes_of(params)) == 1
        and params["axis_size"] > 1
    )


def form_of(step: Step, slicing: Slicing) -> Form | None:
    """The form that a collective can have, if it was asked to; None for as it is."""
    form = _asked_of(step, slicing)
    return None if form is None or _is_passed_on(step, form) else form


def _asked_of(step: Step, slicing: Slicing) -> Form | None:
    assert slicing.forms is not None
    form = slicing.forms(step.site)
    whole = form is not None and form.kind == PLAIN.kind and form.slices == 1
    return None if whole else form


def _is_passed_on(step: Step, form: Form) -> bool:
    """True for sums that would have to be gathered again, with nothing to hide that."""
    return step.name in REDUCTIONS and form.kind != PLAIN.kind


def scatters_first(program: FlatProgram, slicing: Slicing) -> FlatProgram:
    """The program with each scatter before the gradients that are to run within it.

    A matmul that sums over rows that others scatter stands before the scatter, as jax
    orders gradients. Where a slice of it shall run between two messages, it is not to
    run before.
    """
    steps = list(program.steps)
    makers = {number: step for step in steps for number in step.outputs}
    for scatter in program.steps:
        if scatter.name != "reduce_scatter" or not can_be_cut(scatter):
            continue
        form = form_of(scatter, slicing)
        if form is None or form.whole_weights or not _terms(scatter, makers):
            continue
        needed = _ancestors(scatter, makers)
        end = steps.index(scatter)
        rows = {
            term.inputs[found[0]]
            for term in _terms(scatter, makers)
            if (found := _rows_in(term, scatter)) is not None
        }
        begin = next(n for n, one in enumerate(steps) if rows.intersection(one.inputs))
        moved = steps[begin : end + 1]
        steps[begin : end + 1] = [
            *(one for one in moved if one in needed),
            *(one for one in moved if one not in needed),
        ]
    return dataclasses.replace(program, steps=steps)


def _ancestors(step: Step, makers: dict[int, Step]) -> set[Step]:
    found, todo = {step}, [step]
    while todo:
        for number in todo.pop().inputs:
            maker = makers.get(number)
            if maker is not None and maker not in found:
                found.add(maker)
                todo.append(maker)
    return found


def _terms(scatter: Step, makers: dict[int, Step]) -> list[Step]:
    """The matmuls whose sum is scattered."""
    found: list[Step] = []
    todo = [scatter.inputs[0]]
    while todo:
        maker = makers.get(todo.pop())
        if maker is not None and maker.name == "dot_general":
            found.append(maker)
        elif maker is not None and maker.name in _SUMS:
            todo += maker.inputs
    return found


def _cut(
    step: Step, users: Users, slicing: Slicing, env: Values, done: Set[Step]
) -> bool:
    """True if a collective is cut as it was asked to be, or waits for its matmul."""
    site, form = step.site, _asked_of(step, slicing)
    slicing.seen.append(site)
    if form is None:
        return False
    if (left := _hindrance(step, form, users, env)) is not None:
        slicing.left.append(LeftSite(site, form, *left))
        return False
    (number,), (out,) = step.inputs, step.outputs
    if step.name == "all_gather":
        env[out] = Gathered(step, whole_of(env, number), form)
        slicing.waiting[step] = form
        return True
    value = env[number]
    # Gradients of weights have the rows of a scatter, not the columns.
    chunks = form.kind == WHOLE.kind or (
        form.kind == PLAIN.kind and form.whole_weights and value.alone(step)
    )
    if step.name in REDUCTIONS or chunks:
        env[out] = value.in_chunks(step, form)
    else:
        sums = (
            [] if form.whole_weights else _sums_of_terms(value, step, users, env, done)
        )
        env[out], found = value.scattered(step, form, sums)
        env.update(zip((one.step.outputs[0] for one in sums), found, strict=True))
    slicing.cut.append(site)
    return True


def _hindrance(
    step: Step, form: Form, users: Users, env: Values
) -> tuple[Why, str] | None:
    """The hindrance between a collective and a form, and its line; None for none."""
    if not can_be_cut(step):
        return "not in blocks", ""
    if _is_passed_on(step, form):
        return "not in chunks", ""
    if step.name == "all_gather":
        takers = [user for user in users.get(step.outputs[0], ()) if user]
        if any(_place_in(user, step) is not None for user in takers):
            return None
        if form == WHOLE and any(_sums_rows(user, step) for user in takers):
            return None
        matmuls = [user for user in takers if user.name == "dot_general"]
        return ("summed over" if matmuls else "no matmul"), _line(matmuls or takers)
    value = env[step.inputs[0]]
    if not isinstance(value, Product):
        return "no matmul", ""
    if step.name in REDUCTIONS and not value.rows:
        return "no rows", _line([term for term, _ in value.terms])
    return None


def _line(steps: Sequence[Step]) -> str:
    """The first line that is known of some steps."""
    return next((step.lines[0] for step in steps if step.lines), "")


def leave_waiting(program: FlatProgram, slicing: Slicing) -> None:
    """Notes the gathers that no matmul has asked for slice by slice.

    Args:
        program: What has been run.
        slicing: What was asked for, and what became of it.
    """
    for step in program.steps:
        form = slicing.waiting.pop(step, None)
        if form is not None:
            slicing.left.append(LeftSite(step.site, form, "needed whole"))


def _sums_of_terms(
    product: Product, scatter: Step, users: Users, env: Values, done: Set[Step]
) -> list[RowSum]:
    """The matmuls that sum over rows that the product's own keep apart."""
    found: dict[int, RowSum] = {}
    for term, _ in product.terms:
        rows = _rows_in(term, scatter)
        assert rows is not None
        number, d = term.inputs[rows[0]], rows[1]
        # What nobody needs any more is there no longer.
        for user in users[number] if number in env else ():
            if user is None or user in done:
                continue
            if user.outputs[0] not in env:
                one = _row_sum(user, number, d, env)
                if one is not None:
                    found[user.outputs[0]] = one
    return [*found.values()]


def _rows_in(term: Step, scatter: Step) -> tuple[int, int] | None:
    """The operand of a matmul that has the rows that are scattered, and where."""
    return operand_dimension(term, scatter.equation.params["scatter_dimension"])


def _row_sum(
    step: Step, number: int, d: int, env: Values, *, arriving: bool = False
) -> RowSum | None:
    """A matmul that sums over a dimension of a value, if its operands are there."""
    if step.name != "dot_general" or step.inputs.count(number) != 1:
        return None
    place = step.inputs.index(number)
    dimensions = summed_dimensions(step, place, d)
    other = step.inputs[1 - place]
    if dimensions is None or other not in env:
        return None
    operands = [
        None if arriving and one == number else _known(env, one) for one in step.inputs
    ]
    return RowSum(step, (operands[0], operands[1]), dimensions)


def _known(env: Values, number: int) -> Any:
    """A value, perhaps in the slices that arrived."""
    value = env[number]
    return value if isinstance(value, Arrived) else whole_of(env, number)


def _place_in(step: Step | None, gather: Step) -> int | None:
    """The place of what is gathered in a matmul that keeps its rows apart."""
    if step is None or step.name != "dot_general":
        return None
    number, d = gather.outputs[0], gather.equation.params["all_gather_dimension"]
    places = [place for place, one in enumerate(step.inputs) if one == number]
    if len(places) != 1 or result_dimension(step, places[0], d) is None:
        return None
    return places[0]


def _as_rows_arrive(step: Step, users: Users, slicing: Slicing, env: Values) -> bool:
    """Runs all matmuls of the same rows whose other operands are there, as they arrive.

    Also where the step itself sums over the rows, as gradients of weights do: it then
    takes them as they have arrived, slice by slice where that was asked for.
    """
    number = next(n for n in step.inputs if isinstance(env[n], Gathered))
    waiting: Gathered = env[number]
    d = waiting.step.equation.params["all_gather_dimension"]
    matmuls: list[tuple[Step, int, Any]] = []
    sums: list[RowSum] = []
    for user in dict.fromkeys(users[number]):
        place = _place_in(user, waiting.step)
        if place is not None and user.inputs[1 - place] in env:
            matmuls.append((user, place, whole_of(env, user.inputs[1 - place])))
        elif user is not None and not waiting.form.whole_weights:
            one = _row_sum(user, number, d, env, arriving=True)
            sums += [] if one is None else [one]
    done = [user for user, _, _ in matmuls] + [one.step for one in sums]
    whole = waiting.form == WHOLE and _sums_rows(step, waiting.step)
    if matmuls or whole:
        if slicing.waiting.pop(waiting.step, None) is not None:
            slicing.cut.append(waiting.step.site)
        by_element = [one for one, _, _ in matmuls if _by_element(one, users)]
        env[number], found = waiting.times(matmuls, sums, by_element)
        env.update(zip((user.outputs[0] for user in done), found, strict=True))
    if whole:
        return _over_ranks(step, env)
    return bool(matmuls) and step in done


def _by_element(step: Step, users: Users) -> bool:
    """True if all that takes a step's result does so element by element."""
    takers = users.get(step.outputs[0], ())
    return bool(takers) and all(one and is_by_element(one.name) for one in takers)


def _sums_rows(step: Step | None, gather: Step) -> bool:
    """True for a matmul that sums over what is gathered."""
    if step is None or step.name != "dot_general":
        return False
    number, d = gather.outputs[0], gather.equation.params["all_gather_dimension"]
    if step.inputs.count(number) != 1:
        return False
    return summed_dimensions(step, step.inputs.index(number), d) is not None


def _over_ranks(step: Step, env: Values) -> bool:
    """Runs a matmul that sums over rows which are there in the order of ranks."""
    for number in step.inputs:
        rows = env[number]
        if isinstance(rows, Arrived) and rows.by_rank:
            one = _row_sum(step, number, rows.ring.dimension, env)
            if one is not None and one.smaller_beside(number):
                env[step.outputs[0]] = one.at_once(rows.ring)
                return True
    return False


def _only_collective(step: Step, users: Users) -> Step | None:
    """The scatter or sum that a matmul's result only goes into, additions between."""
    user = _only_user(step, users)
    while user is not None and user.name in _SUMS:
        user = _only_user(user, users)
    if user is None or user.name == "all_gather" or not can_be_cut(user):
        return None
    if user.name in REDUCTIONS:
        return user
    out = user.equation.params["scatter_dimension"]
    return user if operand_dimension(step, out) is not None else None


def _only_user(step: Step, users: Users) -> Step | None:
    found = users.get(step.outputs[0], [])
    return found[0] if len(found) == 1 else None
