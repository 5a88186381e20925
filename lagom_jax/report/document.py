"""The report as JSON, a stable format described in docs/reference/report.md."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from lagom_jax.report.overlap import Report

FORMAT_VERSION = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def to_document(report: Report) -> dict[str, Any]:
    """The report as plain dictionaries, lists, strings and numbers."""
    return {"format_version": FORMAT_VERSION, **dataclasses.asdict(report)}


def to_json(report: Report) -> str:
    """The report as indented JSON text, the same text for the same report."""
    return json.dumps(to_document(report), indent=2, allow_nan=False)
