"""A jaxpr as a flat list of steps, and the dimensions that stay apart through it.

Calls of jitted functions are written out, so that every value has one name. Two
dimensions of two values are linked where an equation treats them alike, index by
index: then a slice of the one gives that slice of the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

from lagom_jax.decompose.dimension_rules import links
from lagom_jax.decompose.form import DecomposeError
from lagom_jax.decompose.sites import CommunicatedMatmul, lines_of, site_of
from lagom_jax.plan.rewrite import TRANSPOSED

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
_CUSTOM = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
Node = tuple[int, int]
"""A value's number, and one of its dimensions."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An equation, and the numbers of the values that it takes and gives."""

    equation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    debug: Any
    """jax's knowledge of the function that the equation is from."""
    lines: tuple[str, ...]
    """Its places in the user's source, as far as they are known, innermost first."""
    backward: bool = False
    """True in the pass that computes gradients."""

    @property
    def name(self) -> str:
        """The primitive's."""
        return self.equation.primitive.name

    @property
    def site(self) -> CommunicatedMatmul:
        """It as a site."""
        return site_of(self.equation, self.lines, backward=self.backward)


@dataclasses.dataclass(slots=True, eq=False)
class FlatProgram:
    """The steps of a jaxpr.

    Attributes:
        steps: In order.
        avals: The type of every value.
        constants: The values that are known.
        inputs: The numbers of the arguments.
        outputs: The numbers of the results.
    """

    steps: list[Step]
    avals: list[Any]
    constants: dict[int, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def flatten(
    closed: Any, *, through_rules: bool = False, backward: bool = False
) -> FlatProgram:
    """Writes a closed jaxpr out.

    Args:
        closed: The jaxpr.
        through_rules: Whether functions with custom rules, and rematerialised ones,
            are written out as well; for looking only, since it loses the rules.
        backward: Whether all of it is in the pass that computes gradients.
    """
    program = FlatProgram([], [], {}, (), ())
    debug = closed.jaxpr.debug_info.with_unknown_names()
    calls = _CALLS | (_CUSTOM if through_rules else {})

    def fresh(aval: Any) -> int:
        program.avals.append(aval)
        return len(program.avals) - 1

    def known(value: Any, aval: Any) -> int:
        number = fresh(aval)
        program.constants[number] = value
        return number

    def walk(
        jaxpr: Any, consts: Sequence[int], args: Sequence[int], caller: tuple[str, ...]
    ) -> list[int]:
        names: dict[Any, int] = dict(zip(jaxpr.constvars, consts, strict=True))
        names.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return known(atom.val, atom.aval)
            return names[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            inner = _called(equation, calls)
            lines = lines_of(equation) or caller
            if inner is not None:
                body, values = inner
                held = [
                    known(v, c.aval)
                    for v, c in zip(values, body.constvars, strict=True)
                ]
                outputs = walk(body, held, inputs, lines)
            else:
                outputs = [fresh(variable.aval) for variable in equation.outvars]
                values = tuple(inputs), tuple(outputs)
                late = backward or _transposed(equation)
                program.steps.append(Step(equation, *values, debug, lines, late))
            names.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    jaxpr = closed.jaxpr
    consts = [
        known(v, c.aval) for v, c in zip(closed.consts, jaxpr.constvars, strict=True)
    ]
    inputs = [fresh(variable.aval) for variable in jaxpr.invars]
    program.inputs = tuple(inputs)
    program.outputs = tuple(walk(jaxpr, consts, inputs, ()))
    return program


def carried_by(params: Any) -> tuple[int, int]:
    """The arguments of a loop's body that stay as they are, and those it carries.

    Example:
        >>> carried_by({"num_consts": 2, "num_carry": 1})
        (2, 1)
    """
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    # From jax 0.12 on there are trees of them.
    consts, carry, *_ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _called(equation: Any, calls: dict[str, str]) -> tuple[Any, Sequence[Any]] | None:
    key = calls.get(equation.primitive.name)
    # What is jitted with shardings or donation of its own stays as it is.
    if key is None or key not in equation.params or _has_shardings(equation):
        return None
    inner = equation.params[key]
    if hasattr(inner, "consts"):
        return inner.jaxpr, inner.consts
    return (inner, ()) if not inner.constvars else None


def _transposed(equation: Any) -> bool:
    return TRANSPOSED in str(equation.source_info.name_stack)


def _has_shardings(equation: Any) -> bool:
    params = equation.params
    named = [*params.get("in_shardings", ()), *params.get("out_shardings", ())]
    return any(hasattr(one, "spec") for one in named) or any(
        params.get("donated_invars", ())
    )


def refuse_mixing(step: Step) -> None:
    """Refuses a layer for a step of it.

    Raises:
        DecomposeError: Always.
    """
    line = f"at {step.lines[0]} " if step.lines else ""
    raise DecomposeError(
        f"the layer mixes examples: {step.equation.primitive.name} {line}"
        "makes one result of several of them, or nothing is known of it. Leave it out "
        "of the layer, or cut the layer along another dimension (in_axes)"
    )


class Classes:
    """Dimensions of values in classes of those that are linked."""

    def __init__(self, program: FlatProgram, *, summed: bool = False) -> None:
        """Finds them.

        Args:
            program: The program.
            summed: Whether dimensions that a matmul sums together are linked, too: of
                two, a slice of the one then goes with that slice of the other.
        """
        self.program = program
        self._parents: dict[Node, Node] = {}
        self.groups: list[list[list[Node]]] = []
        """For every step, what its equation links."""
        for step in program.steps:
            found = [
                [(number, d) for number, d in _named(step, group)]
                for group in links(step.equation)
            ]
            self.groups.append(found)
            for group in found:
                for node in group[1:]:
                    self._join(group[0], node)
            if summed and step.equation.primitive.name == "dot_general":
                (left, right), _ = step.equation.params["dimension_numbers"]
                one, other = step.inputs
                for d, e in zip(left, right, strict=True):
                    self._join((one, d), (other, e))

    def of(self, node: Node) -> Node:
        """The class of a dimension, named by one of its members."""
        while (parent := self._parents.get(node, node)) != node:
            node = parent
        return node

    def dimension(self, number: int, chosen: Node) -> int | None:
        """The dimension of a value that is in a class; None where it is not one."""
        shape = getattr(self.program.avals[number], "shape", ())
        found = [d for d in range(len(shape)) if self.of((number, d)) == chosen]
        return found[0] if len(found) == 1 else None

    def _join(self, one: Node, other: Node) -> None:
        one, other = self.of(one), self.of(other)
        if one != other:
            self._parents[other] = one


def _named(step: Step, group: Sequence[Node]) -> Iterator[Node]:
    """Places among operands (0, 1, ...) and results (-1, -2, ...) as values."""
    for place, dimension in group:
        numbers = step.inputs if place >= 0 else step.outputs
        yield numbers[place if place >= 0 else -1 - place], dimension


def run_step(step: Step, values: Sequence[Any], params: Any = None) -> list[Any]:
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
