"""Rules in Python by which the compiler partitions a call, and their answers.

A function with `jax.experimental.custom_partitioning` has rules that XLA's partitioner
calls while it compiles. The compiler runs in another process than the one that knows
the rules, so that process asks this one: for the sharding of results, and for the
program of one device.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lagom_jax.compile import _jax_modules, _jaxlib
from lagom_jax.compile._internal import internal

QUESTION: Final = "rule"
"""The key in a header that makes a frame a question, and says which rule is asked."""
_CALL: Final = "CustomSPMDPartitioning"
_RULES: Final = {
    "propagate": "_custom_partitioning_propagate_user_sharding",
    "partition": "_custom_partitioning_partition",
    "infer": "_custom_partitioning_infer_sharding_from_operands",
}
_MODULE: Final = "jax._src.custom_partitioning"
_TARGETS = re.compile(r"custom_call @([\w$.]+)\(")
_QUOTED_TARGETS = re.compile(r'custom_call @"([^"]+)"\(')

Exchange = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartitioningRule:
    """The rules of one call, kept alive."""

    key: str
    """Its key in jax's own table."""
    kept: Any


def rules_of(text: str) -> dict[str, PartitioningRule]:
    """The rules that a lowered module names, by names that are the same every time.

    jax names them by addresses.

    Args:
        text: The module's text.

    Example:
        >>> rules_of("module { }")
        {}
    """
    table: Mapping[bytes, Any] = internal(_MODULE, "_sharding_callbacks")
    places = {
        key: text.find(f'backend_config = "{key.decode()}"') for key in list(table)
    }
    named = sorted((place, key) for key, place in places.items() if place >= 0)
    return {
        f"lagom.rule.{number}": PartitioningRule(key.decode(), table[key])
        for number, (_, key) in enumerate(named)
    }


def renamed(text: str, rules: Mapping[str, PartitioningRule]) -> str:
    """A module's text with the names of rules that are the same every time."""
    for name, rule in rules.items():
        text = text.replace(
            f'backend_config = "{rule.key}"', f'backend_config = "{name}"'
        )
    return text


def called_targets(text: str) -> tuple[str, ...]:
    """The names of the custom calls in a module's text.

    Example:
        >>> called_targets('%0 = stablehlo.custom_call @my_kernel(%arg0) {...}')
        ('my_kernel',)
    """
    found = _TARGETS.findall(text) + _QUOTED_TARGETS.findall(text)
    return tuple(dict.fromkeys(found))


def answered(
    header: Mapping[str, Any], rules: Mapping[str, PartitioningRule]
) -> tuple[dict[str, Any], bytes]:
    """A rule's answer to the compiling process, as header and payload of a frame.

    Args:
        header: The question.
        rules: The rules of the module that it compiles.
    """
    rule = rules[header["name"]]
    key = rule.key.encode()
    function = internal(_MODULE, _RULES[header[QUESTION]])
    read, write = _jaxlib.read_sharding, _jaxlib.write_sharding
    shapes = [_jaxlib.read_shape(shape) for shape in header["shapes"]]
    result = _jaxlib.read_shape(header["result"])
    shardings = [read(sharding) for sharding in header["shardings"]]
    try:
        if header[QUESTION] == "propagate":
            return {"sharding": write(function(shardings[0], result, key))}, b""
        if header[QUESTION] == "infer":
            return {"sharding": write(function(shapes, shardings, result, key))}, b""
        asked = read(header["result_sharding"])
        module, operands, made = function(shapes, shardings, result, asked, key)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, b""
    text = _jax_modules.text_of(module)
    return {
        "shardings": [write(operand) for operand in operands],
        "sharding": write(made),
        "targets": called_targets(text),
    }, module


def rules_that_ask(
    exchange: Exchange, register: Callable[[tuple[str, ...]], None]
) -> dict[str, Callable[..., Any]]:
    """The rules of the compiling process, which ask the one that knows them.

    Args:
        exchange: Sends a question and returns the answer.
        register: Called with the names of custom calls in the programs that come back.
    """
    read, write = _jaxlib.read_sharding, _jaxlib.write_sharding

    def ask(
        rule: str, shapes: Any, shardings: Any, result: Any, name: bytes, **more: Any
    ) -> tuple[dict[str, Any], bytes]:
        header, payload = exchange(
            {
                QUESTION: rule,
                "name": name.decode(),
                "shapes": [str(shape) for shape in shapes],
                "shardings": [write(sharding) for sharding in shardings],
                "result": str(result),
                **more,
            },
            b"",
        )
        if "error" in header:
            raise RuntimeError(f"the rule that partitions a call: {header['error']}")
        return header, payload

    def propagate(sharding: Any, shape: Any, name: bytes) -> Any:
        return read(ask("propagate", [], [sharding], shape, name)[0]["sharding"])

    def infer(shapes: Any, shardings: Any, result: Any, name: bytes) -> Any:
        return read(ask("infer", shapes, shardings, result, name)[0]["sharding"])

    def partition(
        shapes: Any, shardings: Any, result: Any, result_sharding: Any, name: bytes
    ) -> tuple[bytes, list[Any], Any]:
        wanted = write(result_sharding)
        header, module = ask(
            *("partition", shapes, shardings, result, name), result_sharding=wanted
        )
        register(tuple(header["targets"]))
        operands = [read(sharding) for sharding in header["shardings"]]
        return module, operands, read(header["sharding"])

    return {"propagate": propagate, "partition": partition, "infer": infer}


def use_rules(rules: Mapping[str, Callable[..., Any]]) -> None:
    """Has the compiler of this process partition calls by rules.

    Args:
        rules: As `rules_that_ask` returns them.
    """
    _jaxlib.register_partitioner(
        _CALL, rules["propagate"], rules["partition"], rules["infer"]
    )
