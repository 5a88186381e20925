"""The report as JSON, a stable format described in docs/reference/report.md."""

from __future__ import annotations

import json
from typing import Any, Final

from lagom_jax.report.figures import Report
from lagom_jax.report.story import PageError
from lagom_jax.typed_json import FormError, parse_object, plain, typed

FORMAT_VERSION: Final = 4
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def to_document(report: Report) -> dict[str, Any]:
    """The report as plain dictionaries, lists, strings and numbers."""
    return {"format_version": FORMAT_VERSION, **plain(report)}


def to_json(report: Report) -> str:
    """The report as JSON text, the same text for the same report.

    Every key stands in a line of its own, but for the columns of the tracks.
    """
    document = to_document(report)
    tracks = document.pop("tracks")
    head = json.dumps(document, indent=2, allow_nan=False)
    columns = json.dumps(tracks, allow_nan=False, separators=(",", ":"))
    return f'{head.removesuffix("}").rstrip()},\n  "tracks": {columns}\n}}'


def from_json(text: str, origin: str = "the report") -> Report:
    """Reads a report that `to_json` wrote.

    Args:
        text: The JSON text.
        origin: The place that it comes from, for messages.

    Raises:
        PageError: It is no report, or one of another format.

    Example:
        >>> from_json('{"format_version": 1}')
        Traceback (most recent call last):
        ...
        lagom_jax.report.story.PageError: the report has format 1, this lagom_jax
        reads 4: make it again
    """
    try:
        document = parse_object(text)
        if document is None or "format_version" not in document:
            raise FormError("no JSON object with a format_version")
        version = document.pop("format_version")
        if version != FORMAT_VERSION:
            raise PageError(
                f"{origin} has format {version!r}, this lagom_jax reads "
                f"{FORMAT_VERSION}: make it again"
            )
        return typed(Report, document)
    except FormError as error:
        raise PageError(f"{origin} is no report: {error}") from None
