"""JSON Schemas of records, from the types of their fields.

`python -m lagom_jax.report.json_schema FOLDER` writes those of reports and of plans, as
`docs/reference` has them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin
from typing import get_type_hints as hints

from lagom_jax.plan.plan import Plan
from lagom_jax.plan.plan_file import FORMAT_VERSION as PLAN_VERSION
from lagom_jax.plan.plan_file import MARKER
from lagom_jax.report.document import FORMAT_VERSION as REPORT_VERSION
from lagom_jax.report.figures import Report

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Final[Mapping[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    types.NoneType: "null",
}


def schema_of(kind: type[Any], title: str, heads: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a record's document.

    Args:
        kind: A dataclass.
        title: What the document is.
        heads: Keys with one value only, which say what the document is.

    Example:
        >>> from lagom_jax.report.figures import Beside
        >>> schema_of(Beside, "A kernel", {})["properties"]["seconds"]
        {'type': 'number'}
    """
    writer = _SchemaWriter()
    whole = writer.record(kind)
    return {
        "$schema": DIALECT,
        "title": title,
        **whole,
        "properties": {
            **{name: {"const": value} for name, value in heads.items()},
            **whole["properties"],
        },
        "required": [*heads, *whole["required"]],
        "$defs": dict(sorted(writer.definitions.items())),
    }


class _SchemaWriter:
    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def record(self, kind: type[Any]) -> dict[str, Any]:
        of = hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        return {
            "type": "object",
            "properties": {name: self.value(of[name]) for name in names},
            "required": names,
            "additionalProperties": False,
        }

    def value(self, kind: Any) -> dict[str, Any]:
        if kind in _SCALARS:
            return {"type": _SCALARS[kind]}
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            name = kind.__name__
            if name not in self.definitions:
                # Before its fields, which may be of its own kind.
                self.definitions[name] = {}
                self.definitions[name] = self.record(kind)
            return {"$ref": f"#/$defs/{name}"}
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, types.UnionType):
            # Bytes are in no document: where options have some, their text is.
            return {"anyOf": [self.value(one) for one in inner if one is not bytes]}
        if origin is tuple and inner[-1] is Ellipsis:
            return {"type": "array", "items": self.value(inner[0])}
        if origin is tuple:
            parts = [self.value(one) for one in inner]
            return {
                "type": "array",
                "prefixItems": parts,
                "minItems": len(parts),
                "maxItems": len(parts),
            }
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.value(inner[1])}
        raise TypeError(f"{kind} has no place in a document")


def published() -> dict[str, str]:
    """The published schemas, by file name."""
    schemas = {
        "report.schema.json": schema_of(
            Report,
            "What `lagom report --json` prints",
            {"format_version": REPORT_VERSION},
        ),
        "plan.schema.json": schema_of(
            Plan,
            "A plan of lagom_jax",
            {MARKER: True, "format_version": PLAN_VERSION},
        ),
    }
    return {
        name: json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()
    }


def main(folder: str) -> None:
    """Writes the published schemas into a folder."""
    for name, text in published().items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
