"""A plan as a file: JSON that is the same text for the same plan, and is not believed.

Whatever is read is checked, type by type, and a message names the place of a fault, as
in `levers[2].value`. The format is described in docs/reference/plan.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from lagom_jax.errors import PlanError
from lagom_jax.files import write_whole
from lagom_jax.plan.old_formats import MIGRATIONS, Document
from lagom_jax.plan.plan import Plan
from lagom_jax.typed_json import FormError, parse_object, plain, typed

FORMAT_VERSION: Final = 9
"""Raised with every key and every form that others do not know: who replays a plan must
know all of it."""
MARKER: Final = "lagom_plan"
_VERSION: Final = "format_version"


def to_json(plan: Plan) -> str:
    """The plan as text, the same text for the same plan.

    Raises:
        PlanError: A number is not finite, or a field has another type than it says.
    """
    try:
        # Read back, so that a whole number in a place for seconds is written like any.
        document = cast("Document", plain(typed(Plan, plain(plan))))
    except FormError as error:
        raise PlanError(f"the plan cannot be written: {error}") from None
    return _written({MARKER: True, _VERSION: FORMAT_VERSION, **document}) + "\n"


def from_json(
    text: str,
    origin: str = "the text",
    migrations: Mapping[int, Callable[[Document], Document]] = MIGRATIONS,
) -> Plan:
    """Reads a plan.

    Args:
        text: What `to_json` wrote.
        origin: The name of the file, for messages.
        migrations: How documents of older versions are brought up to date.

    Raises:
        PlanError: It is no plan, a damaged one, or one of another version.

    Example:
        >>> from_json("{}")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: the text is no plan of lagom_jax
    """
    try:
        document = parse_object(text)
        if document is None or MARKER not in document:
            raise PlanError(f"{origin} is no plan of lagom_jax")
        if document.pop(MARKER) is not True:
            raise FormError(f"{MARKER}: not true")
        return typed(Plan, _up_to_date(document, origin, migrations))
    except FormError as error:
        raise PlanError(f"{origin} is a damaged plan: {error}") from None


def save(plan: Plan, path: str | Path) -> None:
    """Writes a plan to a file: all of it, or nothing where writing fails.

    Raises:
        PlanError: The file cannot be written.
    """
    content = to_json(plan).encode("ascii")
    try:
        write_whole(path, content)
    except OSError as error:
        raise PlanError(f"cannot write the plan {path}: {error}") from None


def load(path: str | Path) -> Plan:
    """Reads the plan in a file; `from_json` says what can be wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise PlanError(f"cannot read the plan {path}: {reason}") from None
    except ValueError as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from None
    return from_json(text, str(path))


def _up_to_date(
    document: Document,
    origin: str,
    migrations: Mapping[int, Callable[[Document], Document]],
) -> Document:
    version = document.pop(_VERSION, None)
    if isinstance(version, bool) or not isinstance(version, int):
        raise FormError(f"{_VERSION}: {version!r} is no whole number")
    if version > FORMAT_VERSION:
        raise PlanError(
            f"{origin} is a plan of format {version}, this lagom_jax reads up to "
            f"{FORMAT_VERSION}: install the lagom_jax that wrote it, or a newer one"
        )
    for old in range(version, FORMAT_VERSION):
        if old not in migrations:
            raise PlanError(
                f"{origin} is a plan of format {version}, which this lagom_jax no "
                "longer reads: make the plan again"
            )
        document = migrations[old](document)
    return document


def _written(value: Any, indent: str = "") -> str:
    """JSON with sorted keys, and a line of its own only for what has parts."""
    if not _has_parts(value) or not value:
        return json.dumps(value, allow_nan=False)
    deeper = indent + "  "
    if isinstance(value, dict):
        named = cast("Document", value)
        lines = [
            f"{json.dumps(name)}: {_written(named[name], deeper)}"
            for name in sorted(named)
        ]
        first, last = "{", "}"
    else:
        items = cast("list[Any]", value)
        if not any(map(_has_parts, items)):
            return json.dumps(items, allow_nan=False)
        lines = [_written(item, deeper) for item in items]
        first, last = "[", "]"
    inner = ",\n".join(deeper + line for line in lines)
    return f"{first}\n{inner}\n{indent}{last}"


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list)
