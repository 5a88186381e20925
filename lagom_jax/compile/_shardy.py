"""Shardings of Shardy, as XLA writes them into HLO, read back into its dialect.

HLO has no words for them: what jax hands to the compiler says them in attributes of the
front end and in calls with a target of their own. The compiler reads those before it
partitions. But where it takes StableHLO it writes them anew from the dialect, so that
what was read from HLO has to be in the dialect before.

Of what jax does not promise to keep it touches MLIR's bindings and those of the
dialect, on the same versions as `_jax_internals`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lagom_jax.compile._internal import internal

_FRONTEND = "mhlo.frontend_attributes"
_MESHES, _SHARDING = "xla.sdy.meshes", "xla.sdy.sharding"
_GSPMD = "mhlo.sharding"
_RESULT = "xla.sdy.FuncResultSharding"
_OWN = "xla.sdy."
_CONSTRAINT = "Sharding"


def in_the_dialect(module: Any) -> None:
    """Rewrites the shardings of a module that was HLO; others stay as they are.

    Args:
        module: A StableHLO module, in whose context this is called.
    """
    ir = internal("jax._src.lib.mlir", "ir")
    front = _frontend(module.operation.attributes)
    if _MESHES not in front:
        return
    functions = list(module.body.operations)
    operations = [one for function in functions for one in _inside(function)]
    targets = {_target(one) for one in operations}
    # What is partitioned by hand is a function between two such calls.
    if any(t.startswith(_OWN) and t != _RESULT for t in targets):
        return

    def parsed(text: str) -> Any:
        return ir.Attribute.parse(text)

    _name_meshes(module, parsed(front.pop(_MESHES)))
    _put_frontend(module.operation.attributes, front)
    for function in functions:
        _arguments(function, parsed)
    for one in operations:
        _operation(one, parsed)


def _name_meshes(module: Any, meshes: Any) -> None:
    ir, sdy = internal("jax._src.lib.mlir", "ir"), _dialect()
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
        for named in meshes:
            sdy.MeshOp(named.name, named.attr)


def _operation(one: Any, parsed: Callable[[str], Any]) -> None:
    """Writes the sharding of one operation, or what stands for it."""
    front = _frontend(one.attributes)
    if _SHARDING not in front:
        return
    sharding = parsed(front.pop(_SHARDING))
    target = _target(one)
    if target not in (_RESULT, _CONSTRAINT):
        _put_frontend(one.attributes, front)
        one.attributes["sdy.sharding"] = sharding
        return
    ir, sdy = internal("jax._src.lib.mlir", "ir"), _dialect()
    (of_value,) = sdy.TensorShardingPerValueAttr(sharding).shardings
    value, result = one.operands[0], one.results[0]
    holds_for_the_result = False
    if target == _RESULT:
        users = _without_copies(result)
        returns = [user for user in users if user[0].name == "func.return"]
        for returned, number in returns:
            _put_result(returned, number, of_value)
        holds_for_the_result = len(returns) == len(users)
    if not holds_for_the_result:
        with ir.InsertionPoint(one), one.location:
            value = sdy.ShardingConstraintOp(value, of_value).result
    result.replace_all_uses_with(value)
    one.erase()


def _without_copies(value: Any) -> list[tuple[Any, int]]:
    """Users of a value, and their operands, past reshapes to the same shape.

    Those only say the sharding once more, for GSPMD. They stay without a use: whoever
    walks over the operations may still come to them.
    """
    users: list[tuple[Any, int]] = []
    for use in list(value.uses):
        user = use.owner.operation
        if user.name == "stablehlo.reshape" and user.results[0].type == value.type:
            users += _without_copies(user.results[0])
            user.results[0].replace_all_uses_with(value)
        else:
            users.append((user, use.operand_number))
    return users


def _put_result(returned: Any, number: int, sharding: Any) -> None:
    found = returned.parent.attributes
    with each_value(found, "res_attrs", len(returned.operands)) as given:
        given[number]["sdy.sharding"] = sharding
        given[number].pop(_GSPMD, None)


def _arguments(function: Any, parsed: Callable[[str], Any]) -> None:
    found = function.operation.attributes
    if "arg_attrs" not in found:
        return
    with each_value(found, "arg_attrs", len(found["arg_attrs"])) as given:
        for attributes in given:
            front = _frontend(attributes)
            if _SHARDING in front:
                attributes["sdy.sharding"] = parsed(front.pop(_SHARDING))
                attributes.pop(_GSPMD, None)
                _put_frontend(attributes, front)


@contextlib.contextmanager
def each_value(found: Any, kind: str, count: int) -> Iterator[list[dict[str, Any]]]:
    """Attributes of a function's arguments or results, to be changed.

    Args:
        found: The attributes of the function.
        kind: `arg_attrs` or `res_attrs`.
        count: The number of arguments or results.
    """
    ir = internal("jax._src.lib.mlir", "ir")
    known = found[kind] if kind in found else [{}] * count
    given = [{a.name: a.attr for a in one} for one in known]
    yield given
    found[kind] = ir.ArrayAttr.get([*map(ir.DictAttr.get, given)])


def _frontend(attributes: Any) -> dict[str, str]:
    if _FRONTEND not in attributes:
        return {}
    return {one.name: one.attr.value for one in attributes[_FRONTEND]}


def _put_frontend(attributes: Any, front: dict[str, str]) -> None:
    ir = internal("jax._src.lib.mlir", "ir")
    if front:
        named = {name: ir.StringAttr.get(text) for name, text in front.items()}
        attributes[_FRONTEND] = ir.DictAttr.get(named)
    else:
        del attributes[_FRONTEND]


def _target(one: Any) -> str:
    name = "call_target_name"
    if one.name != "stablehlo.custom_call" or name not in one.attributes:
        return ""
    return one.attributes[name].value


def _inside(function: Any) -> Iterator[Any]:
    """All operations of a function, those of its regions too."""
    for region in function.regions:
        for block in region.blocks:
            for one in block.operations:
                yield one.operation
                yield from _inside(one.operation)


def _dialect() -> Any:
    return internal("jax._src.lib.mlir.dialects", "sdy")
