"""Reports and plans in notebooks, and figures for papers."""

import builtins
import sys

import pytest

from lagom_jax.report.notebook import MissingPackageError
from lagom_jax.report.paper import STALLS, bars_of, write_figure
from lagom_jax.report.story import PageError, Story

from ..plan.plans import made_by_hand
from .stories import reported, story
from .test_hostile import HOSTILE, elements


def without(monkeypatch, package):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_a_report_shows_itself():
    shown = reported()._repr_html_()
    assert "Exposed most" in shown
    assert "href" not in shown
    for name in HOSTILE:
        names = elements(reported(name=name, extra=name)._repr_html_()).names
        assert not names & {"script", "img"}


def test_a_plan_shows_itself():
    shown = made_by_hand()._repr_html_()
    assert "100 ms" in shown
    assert "90.0 ms" in shown


def test_tables_are_data_frames():
    report = reported()
    frame = report.to_pandas()
    assert list(frame["name"]) == [one.name for one in report.collectives]
    assert frame["exposed_seconds"].sum() == pytest.approx(report.exposed_seconds)
    candidates = made_by_hand().to_pandas()
    assert list(candidates["status"]) == [
        one.status for one in made_by_hand().evidence.candidates
    ]
    assert report.to_dict()["step_seconds"] == report.step_seconds
    assert made_by_hand().to_dict()["holds_for"]["cluster"] == "h100:1x8"


def test_without_pandas_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="lagom_jax\\[notebook\\]"):
        reported().to_pandas()


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_a_figure_is_drawn(tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    write_figure(story(), path)
    assert path.stat().st_size > 1000


def test_bars_add_up_to_the_step():
    report = reported()
    bars = bars_of(report.tracks)
    on_compute = sum(
        length
        for (track, _), spans in bars.items()
        if track == "compute"
        for _, length in spans
    )
    assert on_compute / 1e3 == pytest.approx(report.step_seconds)
    stalled = sum(length for _, length in bars["compute", STALLS])
    assert stalled / 1e3 == pytest.approx(report.exposed_seconds, abs=2e-4)


def test_what_cannot_be_drawn_is_said(tmp_path, monkeypatch):
    with pytest.raises(PageError, match="no timeline"):
        write_figure(Story(plan=made_by_hand()), tmp_path / "out.pdf")
    with pytest.raises(PageError, match="cannot write"):
        write_figure(story(), tmp_path / "out.nothing")
    without(monkeypatch, "matplotlib")
    with pytest.raises(MissingPackageError, match="lagom_jax\\[figure\\]"):
        write_figure(story(), tmp_path / "out.pdf")
