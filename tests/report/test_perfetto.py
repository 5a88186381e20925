"""Traces, by their events and as Perfetto's own trace processor reads them."""

import collections
import json

import pytest

from lagom_jax.report.perfetto import to_trace, write_trace
from lagom_jax.report.story import PageError

from .stories import many, reported, story

BEFORE, AFTER = 1, 2


@pytest.fixture(scope="module")
def told():
    return story()


@pytest.fixture(scope="module")
def trace(told):
    return to_trace(told.before, told.after)


@pytest.fixture(scope="module")
def loaded(trace, trace_processor):
    return trace_processor(trace)


def events(trace, process, *categories):
    return [
        event
        for event in json.loads(trace)["traceEvents"]
        if event["pid"] == process and event.get("cat") in categories
    ]


def lasting(found):
    return sum(event["dur"] for event in found) / 1e6


@pytest.mark.parametrize("process", [BEFORE, AFTER])
def test_durations_add_up_to_the_report(trace, told, process):
    report = told.before if process == BEFORE else told.after
    computed = lasting(events(trace, process, "kernel"))
    assert computed == pytest.approx(report.compute_seconds, abs=1e-7)
    synchronous = [e for e in events(trace, process, "collective") if e["tid"] == 1]
    stalled = lasting(events(trace, process, "stall")) + lasting(synchronous)
    assert stalled == pytest.approx(report.exposed_seconds, abs=1e-7)
    assert computed + stalled == pytest.approx(report.step_seconds, abs=1e-7)
    told_of = lasting(events(trace, process, "collective"))
    assert told_of == pytest.approx(report.communication_seconds, abs=1e-7)


def test_slices_of_a_track_lie_in_each_other_or_apart(trace):
    tracks = collections.defaultdict(list)
    for event in json.loads(trace)["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            end = begin + round(event["dur"] * 1000)
            tracks[event["pid"], event["tid"]].append((begin, -end))
    for slices in tracks.values():
        open_until = []
        for begin, end in sorted(slices):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)


def test_perfetto_reads_it_without_a_complaint(loaded):
    wrong = loaded.rows(
        "select name, value from stats where severity = 'error' and value > 0"
    )
    assert wrong == []


def test_tracks_have_their_names(loaded):
    names = {
        (row["process"], row["thread"])
        for row in loaded.rows(
            "select process.name as process, thread.name as thread "
            "from thread join process using (upid) where thread.name is not null"
        )
    }
    for step in ("as it is", "with the plan"):
        for track in ("compute", "collective"):
            assert (f"{step}: train_step on h100:1x2", track) in names


def test_perfetto_adds_up_the_same_step(loaded, told):
    for name, report in (("as it is", told.before), ("with the plan", told.after)):
        nanoseconds = loaded.value(
            "select sum(slice.dur) from slice join thread_track on "
            "slice.track_id = thread_track.id join thread using (utid) "
            "join process using (upid) where thread.name = 'compute' and "
            f"process.name glob '{name}*' and "
            "(category in ('kernel', 'stall', 'collective'))"
        )
        assert nanoseconds / 1e9 == pytest.approx(report.step_seconds, abs=1e-7)


def test_iterations_stand_in_their_loop(loaded):
    loop = "select count(*) from slice where name glob 'iteration*' and depth = 1"
    assert loaded.value(loop) == 24
    inner = "select count(*) from slice where name = 'gemm.1' and depth = 2"
    assert loaded.value(inner) == 24


def test_flows_lead_from_launches_to_tasks(loaded):
    assert loaded.value("select count(*) from flow") >= 48
    ends = loaded.rows(
        "select distinct s.category as begins, e.category as ends from flow "
        "join slice s on flow.slice_out = s.id join slice e on flow.slice_in = e.id"
    )
    assert {"begins": "launch", "ends": "collective"} in ends


def test_counters_rise_and_come_back_to_nothing(loaded):
    counters = {
        row["name"]: (row["most"], row["last"])
        for row in loaded.rows(
            "select t.name as name, max(c.value) as most, "
            "(select value from counter where track_id = t.id order by ts desc limit 1)"
            " as last from counter c join counter_track t on c.track_id = t.id "
            "group by t.name"
        )
    }
    named = {name.split(" bytes")[0]: found for name, found in counters.items()}
    assert any("memory traffic" in name for name in named)
    assert any("SMs taken" in name and most == 16 for name, (most, _) in named.items())
    assert any("in flight" in name for name in named)
    assert all(last == 0 for _, last in counters.values())


def test_iterations_of_endless_loops_are_taken_together():
    report = reported(layers=1_000_000)
    trace = to_trace(report)
    assert len(trace) < 100_000
    (rest,) = [
        event
        for event in events(trace, BEFORE, "iteration")
        if "more iterations" in event["name"]
    ]
    whole = lasting(events(trace, BEFORE, "kernel", "stall", "collective"))
    assert rest["dur"] / 1e6 > 0.9 * report.step_seconds > whole


def test_a_long_program_is_written_whole():
    report = many(2000)
    found = events(to_trace(report), BEFORE, "collective")
    assert len(found) == 2000


def test_a_trace_may_be_packed(told, tmp_path):
    import gzip

    write_trace(tmp_path / "t.json.gz", told.before)
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()).startswith(b'{"disp')
    with pytest.raises(PageError, match="name another place"):
        write_trace(tmp_path / "no" / "t.json", told.before)
