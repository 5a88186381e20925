"""Two reports side by side."""

import pytest

from lagom_jax.report.difference import (
    compare_reports,
    render_difference,
    to_markdown,
)
from lagom_jax.report.layout import as_text

from .stories import reported


@pytest.fixture(scope="module")
def found():
    return compare_reports(reported(), reported(hidden=4e-3))


def test_a_report_does_not_differ_from_itself():
    same = compare_reports(reported(), reported())
    assert same.slower == 0
    assert same.collectives == ()
    assert all(change.before == change.after for change in same.figures)


def test_figures_and_collectives_that_changed(found):
    figures = {change.name: change for change in found.figures}
    assert figures["computation"].after > figures["computation"].before
    assert figures["exposed communication"].after < 1e-3
    (gather,) = found.collectives
    assert (gather.kind, gather.count_before, gather.count_after) == (
        "all-gather",
        1,
        1,
    )
    assert gather.exposed_after == pytest.approx(0)
    assert found.slower == pytest.approx(
        figures["step"].after / figures["step"].before - 1
    )


def test_one_that_is_new_is_counted():
    grown = compare_reports(reported(), reported(extra=".new"))
    counts = {(c.count_before, c.count_after) for c in grown.collectives}
    assert (1, 0) in counts
    assert (0, 1) in counts


@pytest.mark.parametrize("width", [80, 140])
def test_the_difference_fits_the_screen(found, width):
    text = as_text(render_difference(found, 15), width)
    assert "exposed communication" in text
    assert all(len(line) <= width for line in text.splitlines())


def test_markdown_is_a_table_whatever_names_say():
    hostile = compare_reports(reported(), reported(extra="|<img src=x>`*"))
    text = to_markdown(hostile, None)
    assert "<img" not in text.replace("\\<img", "")
    for line in text.splitlines():
        if line.startswith("|"):
            bars = line.replace("\\|", "").count("|")
            assert bars in (5, 6)
