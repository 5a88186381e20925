"""Modules of StableHLO and HLO: read, written and translated.

Of what jax does not promise to keep it touches, on the same versions as
`_jax_internals`:

- `_jax.mlir`: from HLO, and from files of `jax.export`, to StableHLO;
- `mlir.make_ir_context`: to read a lowered module again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

from lagom_jax.compile._internal import internal
from lagom_jax.compile._shardy import each_value, in_the_dialect
from lagom_jax.compile.locations import Locations, separated


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleApart:
    """A module, and the places that it was written at."""

    bytecode: bytes
    """The module with numbers for places."""
    text: str
    """The same as text."""
    text_without_names: str
    """As text, without where operations come from and what they are called."""
    locations: Locations


def module_apart(
    module: Any, rename: Callable[[str], str] = lambda text: text
) -> ModuleApart:
    """A StableHLO module, and the places that it was written at, by themselves.

    Args:
        module: The module.
        rename: Gives parts of its text other names.
    """
    ir = internal("jax._src.lib.mlir", "ir")
    bare = rename(module.operation.get_asm(enable_debug_info=False))
    with_places = rename(module.operation.get_asm(enable_debug_info=True))
    found = separated(with_places)
    with internal("jax._src.interpreters.mlir", "make_ir_context")():
        if found is not None:
            text, places = found
            parsed = ir.Module.parse(text)
            # Whatever could not be read back as it was stays with its places.
            if parsed.operation.get_asm(enable_debug_info=False) == bare:
                return _apart(parsed, bare, places)
        return _apart(ir.Module.parse(with_places), bare, Locations())


def _apart(module: Any, bare: str, locations: Locations) -> ModuleApart:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    text = module.operation.get_asm(enable_debug_info=True)
    return ModuleApart(buffer.getvalue(), text, bare, locations)


def hlo_header(module: bytes) -> str:
    """The first line of the text of a serialised `HloModuleProto`."""
    kind: Any = internal("jaxlib._hlo", "HloModule")
    text = kind.from_serialized_hlo_module_proto(module).to_string()
    return text.partition("\n")[0]


def stablehlo_of(module: bytes, donors: Sequence[int]) -> str:
    """The StableHLO of a serialised `HloModuleProto`.

    Args:
        module: The module.
        donors: Parameters whose memory any result may take, which the translation
            leaves out.
    """
    translated = internal("jax._src.lib", "_jax.mlir.hlo_to_stablehlo")(module)
    ir = internal("jax._src.lib.mlir", "ir")
    with internal("jax._src.interpreters.mlir", "make_ir_context")():
        parsed = ir.Module.parse(translated)
        in_the_dialect(parsed)
        for function in parsed.body.operations:
            if (
                donors
                and ir.StringAttr(function.attributes["sym_name"]).value == "main"
            ):
                count = len(function.type.inputs)
                with each_value(function.attributes, "arg_attrs", count) as given:
                    for number in donors:
                        given[number]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        return parsed.operation.get_asm(enable_debug_info=True)


def read_stablehlo(data: bytes | str) -> ModuleApart:
    """A StableHLO module from text, bytecode, or a portable artifact."""
    ir = internal("jax._src.lib.mlir", "ir")
    read = internal("jax._src.lib", "_jax.mlir.deserialize_portable_artifact")
    with internal("jax._src.interpreters.mlir", "make_ir_context")() as context:
        if isinstance(data, bytes) and data.startswith(b"ML\xefR"):
            # Bytecode is mostly of the form that is kept for years.
            with contextlib.suppress(Exception):
                return module_apart(read(data, context))
        return module_apart(ir.Module.parse(data))


def text_of(module: bytes) -> str:
    """A module's text, without where its operations come from."""
    return _parsed(module).operation.get_asm(enable_debug_info=False)


def _parsed(module: bytes) -> Any:
    ir = internal("jax._src.lib.mlir", "ir")
    with internal("jax._src.interpreters.mlir", "make_ir_context")():
        return ir.Module.parse(module)
