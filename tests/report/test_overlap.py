"""Reports of programs made by hand: every figure has its place."""

import dataclasses
import json

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.program.program import Branch, Launch, Loop, Run, Stream
from lagom_jax.report import report_program
from lagom_jax.report.alike import short_name
from lagom_jax.report.document import FORMAT_VERSION, to_document
from lagom_jax.report.grouping import grouped, words_on
from lagom_jax.report.text import to_text

from ..cost.programs import ByName, collective, program, run, wait

CLUSTER = Cluster.parse("h100:1x2")
DOCUMENTED = {
    "name",
    "kind",
    "bytes",
    "group_size",
    "groups",
    "executions",
    "seconds",
    "hidden_seconds",
    "exposed_seconds",
    "sync",
    "source",
}


def reported(*nodes, seconds, **more):
    return report_program(
        program(*nodes), CLUSTER, ByName(seconds), pricing="estimated: by hand", **more
    )


def half_hidden():
    gather = collective("gather", nbytes=1 << 20, source="/home/me/train.py:12")
    body = (Launch(gather, Stream.COLLECTIVE, 1), run("matmul"), wait(1))
    return reported(
        Loop("loop", body, 10, True), seconds={"gather": 3e-3, "matmul": 1e-3}
    )


def test_figures_of_a_half_hidden_collective():
    report = half_hidden()
    (row,) = report.collectives
    assert report.step_seconds == pytest.approx(30e-3)
    assert (row.executions, row.bytes, row.group_size, row.groups) == (
        10,
        1 << 20,
        2,
        1,
    )
    assert row.seconds == pytest.approx(30e-3)
    assert row.exposed_seconds == pytest.approx(20e-3)
    assert row.hidden_seconds == pytest.approx(10e-3)
    assert [b.what for b in row.hidden_by] == ["fusion"]
    assert row.why.startswith("computation stands still for it 2.00 ms a run")


def test_the_terminal_says_of_each_what_hides_it_or_why_nothing_does():
    assert "gather: computation stands still for it" in to_text(half_hidden())
    hidden = reported(
        Loop(
            "loop",
            (Launch(collective("gather"), Stream.COLLECTIVE, 1), run("long"), wait(1)),
            10,
            True,
        ),
        seconds={"gather": 1e-3, "long": 4e-3},
    )
    assert "gather: hidden behind" in to_text(hidden)


def test_every_task_is_priced_once():
    asked = []

    class Counting(ByName):
        def kernel(self, kernel):
            asked.append(kernel.name)
            return super().kernel(kernel)

        def collective(self, collective):
            asked.append(collective.name)
            return super().collective(collective)

    gather = Launch(collective("gather"), Stream.COLLECTIVE, 1)
    arms = Branch("branch", ((run("long"),), (run("short"),)))
    never = Loop("never", (run("idle"),), 0, True)
    step = program(gather, arms, never, Loop("loop", (run("k"),), 3, True), wait(1))
    seconds = {"gather": 9.0, "long": 2.0, "short": 1.0, "k": 1.0, "idle": 1.0}
    report = report_program(step, CLUSTER, Counting(seconds), pricing="by hand")
    assert sorted(asked) == ["gather", "k", "long", "short"]
    assert report.step_seconds == 9.0


def test_the_worst_comes_first():
    report = reported(
        Run(collective("small", is_sync=True)),
        Run(collective("big", is_sync=True)),
        seconds={"small": 1e-6, "big": 1e-3},
    )
    assert [row.name for row in report.collectives] == ["big", "small"]
    assert all(row.sync for row in report.collectives)
    assert report.collectives[0].why.startswith("synchronous")


def test_totals_by_kind():
    report = reported(
        Run(collective("a", nbytes=1000)),
        Run(collective("b", nbytes=500)),
        Run(collective("c", kind="all-reduce", nbytes=64)),
        seconds={"a": 1.0, "b": 2.0, "c": 0.5},
    )
    gathers, reduces = report.collective_kinds
    assert (gathers.kind, gathers.count, gathers.bytes, gathers.seconds) == (
        "all-gather",
        2,
        1500,
        3.0,
    )
    assert (reduces.kind, reduces.exposed_seconds) == ("all-reduce", 0.5)


def test_the_document_has_what_is_documented():
    document = json.loads(half_hidden().to_json())
    assert document["format_version"] == FORMAT_VERSION
    for key in ("step", "compute", "communication", "exposed"):
        assert document[f"{key}_seconds"] > 0
    assert document["peak_memory_bytes"] is None
    (row,) = document["collectives"]
    assert set(row) >= DOCUMENTED
    assert row["seconds"] == pytest.approx(
        row["hidden_seconds"] + row["exposed_seconds"]
    )


def test_the_document_is_the_report():
    report = half_hidden()
    assert to_document(report)["step_seconds"] == report.step_seconds


def test_the_table_shows_the_figures():
    text = str(half_hidden())
    for part in ("30.0 ms", "20.0 ms", "train.py:12", "all-gather", "1.05 MB"):
        assert part in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_fits_its_screen(width):
    for line in to_text(half_hidden(), width=width).splitlines():
        assert len(line) <= width


def test_rows_are_cut_and_counted():
    report = reported(
        *(Run(collective(f"c{i}", nbytes=1024 * (i + 1))) for i in range(20)),
        seconds={f"c{i}": 1e-3 for i in range(20)},
    )
    assert "and 15 more" in to_text(report, rows=5)
    assert "more" not in to_text(report, rows=None)


def test_collectives_that_are_alike_are_one_row():
    report = reported(
        *(Run(collective(f"c{i}", source="step.py:12")) for i in range(20)),
        seconds={f"c{i}": 1e-3 for i in range(20)},
    )
    text = to_text(report, rows=5)
    assert "20 × all-gather" in text
    assert "20.0 ms" in text
    assert "more" not in text
    assert len(report.collectives) == 20


def test_cautions_stand_in_the_first_lines():
    report = dataclasses.replace(half_hidden(), cautions=("another program",))
    assert str(report).splitlines()[1] == "CAUTION: another program"


def test_a_program_without_collectives():
    report = reported(run("k"), seconds={"k": 1.0})
    assert report.hidden_share == 1.0
    assert report.collectives == ()
    assert "nothing is communicated" in str(report)


def test_an_empty_program_has_a_report():
    assert "step 0" in str(reported(seconds={}))


def test_unknown_loops_are_noted():
    loop = Loop("while.7", (run("k"),), 1, trips_known=False)
    report = reported(loop, seconds={"k": 1.0})
    assert any("while.7" in note for note in report.notes)


def test_memory_over_the_limit_is_shown():
    report = reported(run("k"), seconds={"k": 1.0}, peak_memory_bytes=10**12)
    assert "DOES NOT FIT: peak memory 1.00 TB of 84.9 GB" in str(report)


def test_the_description_is_shown():
    report = reported(run("k"), seconds={"k": 1.0}, description="4 layers of 32")
    assert "4 layers of 32" in str(report)


def test_old_gpus_get_advice_when_nothing_is_asynchronous():
    nodes = (Run(collective("c")), Run(collective("d")))
    prices = ByName({"c": 1.0, "d": 1.0})
    found = {
        name: report_program(
            program(*nodes), Cluster.parse(name), prices, pricing="estimated: by hand"
        ).notes
        for name in ("a40-nvlink:1x2", "h100:1x2")
    }
    assert any("latency_hiding" in note for note in found["a40-nvlink:1x2"])
    assert not found["h100:1x2"]


def test_of_alike_ones_that_fare_otherwise_the_verdict_says_whose_it_is():
    (row,) = half_hidden().collectives
    hidden = dataclasses.replace(row, exposed_seconds=0.0, hidden_seconds=row.seconds)
    name = short_name(row)
    assert words_on([row, row]) == (row.verdict, row.why)
    verdict, why = words_on([row, hidden])
    share = 1 - row.exposed_seconds / (2 * row.seconds)
    assert verdict.startswith(f"{100 * share:.0f} % hidden in all; {name} is the most")
    assert verdict.endswith(row.verdict)
    assert why == f"{name}: {row.why}"
    (group,) = grouped([row, hidden])
    assert (group.verdict, group.why) == (verdict, why)
