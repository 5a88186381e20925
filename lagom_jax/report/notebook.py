"""Reports in notebooks: a table that shows itself, and data frames."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

from lagom_jax.errors import LagomError
from lagom_jax.markup import Html, tag
from lagom_jax.report.figures import Report
from lagom_jax.report.page_summary import headline, short

_STYLE = (
    "font:14px/1.5 system-ui,sans-serif;max-width:60rem;border:1px solid #8884;"
    "border-radius:6px;padding:.5rem 1rem"
)


class MissingPackageError(LagomError, ImportError):
    """A package that is not installed, and that only this needs."""


def report_to_html(report: Report) -> Html:
    """A report as a fragment for a notebook's cell.

    Args:
        report: The report.
    """
    return tag(
        "div",
        tag("b", f"{report.program} on {report.cluster}"),
        short(report, None, None, links=False),
        tag(
            "details",
            tag("summary", "figures"),
            headline(report, None, None),
        ),
        style=_STYLE,
    )


def data_frame(rows: Iterable[Any]) -> Any:
    """Records as a pandas DataFrame, a column for each of their fields.

    Args:
        rows: Frozen dataclasses of one kind.

    Raises:
        MissingPackageError: pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise MissingPackageError(
            "this needs pandas: pip install pandas, or lagom_jax[notebook]"
        ) from None
    return pandas.DataFrame([dataclasses.asdict(row) for row in rows])
