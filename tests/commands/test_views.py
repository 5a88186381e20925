"""`lagom report` and `lagom plan show` with files to look at; diff; assert-overlap."""

import json

import jsonschema
import pytest

from lagom_jax.plan import save
from lagom_jax.report.json_schema import published

from ..command_line import lagom, write_dump
from ..plan.plans import made_by_hand

CLUSTER = ("--cluster", "h100:1x2")


@pytest.fixture
def dump(tmp_path):
    return write_dump(tmp_path, 2)


@pytest.fixture
def slower(tmp_path):
    folder = tmp_path / "slower"
    folder.mkdir()
    path = write_dump(folder, 2)
    path.write_text(
        path.read_text()
        .replace(str(1 << 22), str(1 << 24))
        .replace(str(2 << 22), str(2 << 24))
    )
    return path


def test_a_report_writes_what_is_asked_for(capsys, dump, tmp_path):
    page, trace, figure = (tmp_path / name for name in ("r.html", "t.json", "f.svg"))
    views = ("--html", page, "--trace", trace, "--figure", figure)
    code, out, err = lagom(capsys, "report", dump, *CLUSTER, *views)
    assert (code, err) == (0, "")
    assert f"page written to {page}" in out
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "all-gather" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    assert "<svg" in figure.read_text()


def test_nothing_is_done_where_a_file_cannot_be_written(capsys, tmp_path):
    page = tmp_path / "no" / "r.html"
    code, out, err = lagom(capsys, "report", "none.txt", *CLUSTER, "--html", page)
    assert (code, out) == (2, "")
    assert "there is no folder" in err


def test_json_is_what_its_schema_says(capsys, dump):
    _, out, _ = lagom(capsys, "report", dump, *CLUSTER, "--json")
    schema = json.loads(published()["report.schema.json"])
    jsonschema.validate(json.loads(out), schema)


def test_a_plan_is_shown_as_a_page(capsys, tmp_path):
    save(made_by_hand(), tmp_path / "plan.json")
    page = tmp_path / "plan.html"
    code, _, _ = lagom(capsys, "plan", "show", tmp_path / "plan.json", "--html", page)
    assert code == 0
    text = page.read_text()
    assert "train_step on h100:1x8" in text
    assert "over memory" in text
    assert "A plan has no timeline of its own" in text


def test_two_dumps_are_compared(capsys, dump, slower):
    code, out, _ = lagom(capsys, "diff", dump, slower, *CLUSTER)
    assert code == 0
    assert "exposed communication" in out
    limited = ("diff", dump, slower, *CLUSTER, "--max-slower")
    assert lagom(capsys, *limited, "5%")[0] == 1
    assert lagom(capsys, *limited, "100%")[0] == 1
    assert lagom(capsys, "diff", slower, dump, *CLUSTER, "--max-slower", "0")[0] == 0


def test_reports_and_dumps_are_compared_with_each_other(capsys, dump, tmp_path):
    _, out, _ = lagom(capsys, "report", dump, *CLUSTER, "--json")
    report = tmp_path / "report.json"
    report.write_text(out)
    code, out, _ = lagom(
        capsys, "diff", report, dump, *CLUSTER, "--json", "--max-slower", "0"
    )
    assert code == 0
    found = json.loads(out)
    assert found["collectives"] == []
    assert all(one["before"] == pytest.approx(one["after"]) for one in found["figures"])
    _, out, _ = lagom(capsys, "diff", report, report, "--markdown")
    assert "|---|---|---|---|" in out


def test_plans_are_compared_as_before(capsys, tmp_path):
    save(made_by_hand(), tmp_path / "plan.json")
    words = ("diff", tmp_path / "plan.json", tmp_path / "plan.json")
    assert lagom(capsys, *words) == (0, "", "")
    code, _, err = lagom(capsys, *words, "--markdown")
    assert code == 2
    assert "not for plans" in err


@pytest.mark.parametrize(
    ("other", "words"), [("dump", "--cluster"), ("plan", "one of them is a plan")]
)
def test_what_cannot_be_compared_is_refused(capsys, dump, tmp_path, other, words):
    save(made_by_hand(), tmp_path / "plan.json")
    more = () if other == "dump" else CLUSTER
    code, _, err = lagom(capsys, "diff", tmp_path / "plan.json", dump, *more)
    assert code == 2
    assert words in err


def test_overlap_is_asserted(capsys, dump):
    words = ("assert-overlap", dump, *CLUSTER, "--max-exposed")
    code, out, _ = lagom(capsys, *words, "99%")
    assert code == 0
    assert "within the 99 % allowed" in out
    code, out, _ = lagom(capsys, *words, "0.001")
    assert code == 1
    assert "MORE THAN" in out
    assert "all-gather" in out


@pytest.mark.parametrize("share", ["5", "-1%", "some", "101%", "nan"])
def test_what_is_no_share_is_refused(capsys, share):
    code, _, err = lagom(
        capsys, "assert-overlap", "d.txt", *CLUSTER, f"--max-exposed={share}"
    )
    assert code == 2
    assert "no part of a whole" in err
