"""The frame of all stages: processes, results, pages, records, and the command."""

import dataclasses
import itertools
import json
import math
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_stages import host, page, running
from gpu_stages.result import (
    Result,
    ResultError,
    StageResult,
    merged,
    shown,
    update_constants,
)
from gpu_stages.stage import STAGES, CannotRunError, Check, Request, Row, Spread, Table

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
FINITE = st.floats(1e-9, 1e9)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Runs a stage that is written for the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(body, *, seconds=60.0, dry=True):
        lines = []
        (tmp_path / "written.py").write_text(
            "import os, subprocess, sys, time\n"
            "from gpu_stages.stage import *\n"
            f"def run(request):\n    {body}\n"
        )
        request = Request("h100", dry, seconds, tmp_path / "run")
        return running.run_stage("written", request, lines.append), lines

    return run


def test_what_a_stage_found_comes_back(stage):
    found, lines = stage(
        "print('half', file=sys.stderr);"
        "return Outcome(rows=[Row('s', 'w', Spread.of([1.0, 2.0, 3.0]), 'us', 4.0)],"
        " checks=[Check('close', 0.5, at_most=1)], findings=['odd'], left_out=['rest'],"
        " constants={'eviction': 0.5}, tables=[Table('--matmuls', 'a.csv')],"
        " versions={'NCCL': '2.30'})"
    )
    result = StageResult.read(found)
    assert (result.status, lines) == ("ran", ["half"])
    (row,) = result.rows
    assert row.measured == Spread(2.0, 1.5, 2.5, 3)
    assert row.error == 1.0
    assert result.verdict == "holds"
    assert (result.findings, result.left_out) == (("odd",), ("rest",))
    assert result.constants == {"eviction": 0.5}
    assert result.tables == (Table("--matmuls", "a.csv"),)
    assert result.versions == {"NCCL": "2.30"}


def test_that_a_stage_cannot_run_is_no_failure_and_says_why(stage):
    found, _ = stage("raise CannotRunError('no NCCL: install it')")
    assert (found["status"], found["why"]) == ("cannot run", "no NCCL: install it")


def test_an_error_is_reported_with_the_last_lines(stage):
    found, _ = stage("print('before', file=sys.stderr); raise ValueError('so wrong')")
    assert (found["status"], found["why"]) == ("failed", "ValueError: so wrong")
    assert found["last_lines"][0] == "before"
    assert "so wrong" in found["last_lines"][-1]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.abort()", "ended by SIGABRT"),
        ("os._exit(3)", "ended with status 3"),
    ],
)
def test_a_process_that_dies_takes_no_other_with_it(stage, body, why):
    found, _ = stage(body)
    assert found["status"] == "failed"
    assert why in found["why"]


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(stage, monkeypatch):
    monkeypatch.setattr(running, "_GRACE", 0.0)
    found, lines = stage(
        "child = subprocess.Popen(['sleep', '600']);"
        "print(child.pid, file=sys.stderr, flush=True); time.sleep(600)",
        seconds=10.0,
    )
    assert found["status"] == "failed"
    assert re.search(r"not done after \d+ s", found["why"])
    (pid,) = map(int, lines)
    end = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_what_is_set_for_other_programs_does_not_reach_a_stage(stage, monkeypatch):
    for name in ("NCCL_ALGO", "LAGOM_MODE", "XLA_FLAGS"):
        monkeypatch.setenv(name, "--xla_gpu_autotune_level=0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    body = (
        "return Outcome(findings=[n for n in os.environ if"
        " n.startswith(('NCCL_', 'LAGOM_', 'XLA_FLAGS'))]"
        " + [os.environ['CUDA_VISIBLE_DEVICES']])"
    )
    found, _ = stage(body, dry=False)
    assert found["findings"] == ["3"]


def a_result(*, dry=False, **stages):
    about = {
        "command": "python scripts/gpu_check.py",
        "date": "2031-02-03",
        "name": "NVIDIA H100 80GB HBM3",
        "driver_version": "999.1",
        "jax": "1.2.3",
    }
    return Result("h100", dry, about, stages)


def a_stage(**more):
    return StageResult("ran", 12.0, **more)


ROWS = tuple(
    Row(
        "matmuls" if n % 2 else "copies",
        f"size {n} | of 40",
        Spread(10.0 + n, 9.0 + n, 11.0 + n, 7),
        "us",
        predicted=10.0 + 2 * n,
        details={"channels": n, "bound": "memory"},
    )
    for n in range(80)
)


def test_a_result_is_read_as_it_was_written(tmp_path):
    table = Table("--profile", "trace", ("--dump", "program.txt"))
    result = a_result(
        contention=a_stage(
            rows=ROWS,
            constants={"eviction": 0.4},
            checks=(Check("s", 1.0),),
            tables=(table,),
        ),
        obeyed=StageResult("cannot run", 0.1, why="no NCCL"),
    )
    path = tmp_path / "result.json"
    result.write(path)
    assert Result.read(path) == result
    assert json.loads(path.read_text())["stages"]["obeyed"]["verdict"] == "open"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.pop("format"), "format"),
        (lambda found: found.update(version=99), "not in version 2"),
        (lambda found: found["stages"].update(odd={}), "no such stage: odd"),
        (lambda found: found["stages"]["contention"].pop("status"), "status"),
        (
            lambda found: found["stages"]["contention"]["rows"][0].pop("measured"),
            "meas",
        ),
        (lambda found: found.update(more=1), "more"),
    ],
)
def test_a_damaged_result_is_refused(tmp_path, change, why):
    path = tmp_path / "result.json"
    a_result(contention=a_stage(rows=ROWS[:1])).write(path)
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(ResultError, match=f"is no result of gpu_check.py.*{why}"):
        Result.read(path)


@given(st.lists(FINITE, min_size=1, max_size=30))
def test_a_spread_is_in_order_and_within_what_was_measured(values):
    spread = Spread.of(values)
    assert spread.count == len(values)
    ordered = (min(values), spread.low, spread.median, spread.high, max(values))
    for one, next_one in itertools.pairwise(ordered):
        assert one <= next_one or math.isclose(one, next_one)


@given(FINITE)
def test_a_number_is_shown_with_three_figures(value):
    (number,) = re.findall(r"^[-\d.e]+", shown(value, "us"))
    assert math.isclose(float(number), value, rel_tol=0.006)


def test_goals():
    low, high = Check("a", 0.1, at_most=0.1), Check("a", 0.9, at_least=1.0)
    assert (low.met, high.met) == (True, False)
    assert Check("a", 0.2, at_most=0.1).met is False
    assert Check("a", 0.9).met is None
    assert a_stage(checks=(low, high)).verdict == "refuted"
    assert a_stage(checks=(low, Check("a", 0.9))).verdict == "holds"
    assert a_stage(checks=(Check("a", 0.9),)).verdict == "open"
    assert StageResult("failed", 1.0, checks=(low,)).verdict == "open"


def test_the_page_shows_what_matters(tmp_path):
    result = a_result(
        contention=a_stage(
            rows=ROWS,
            checks=(
                Check("error", 0.031, at_most=0.05, unit="%"),
                Check("share of calls", 0.5, at_least=1.0, unit="%"),
            ),
            constants={"eviction": 0.4},
            tables=(Table("--matmuls", "matmuls.csv"),),
            findings=("copies are slow",),
            left_out=("fp8",),
            versions={"cuBLAS": "13.1"},
        ),
        obeyed=StageResult("failed", 3.0, why="it was ended"),
    )
    written = page.write(result, tmp_path)
    assert {path.name for path in written} == {"h100.md", "h100.json"}
    text = (tmp_path / "h100.md").read_text()
    assert "A dry run" not in text
    assert "| error | 3.1 % | at most 5.0 % | yes |" in text
    assert "| share of calls | 50.0 % | at least 100.0 % | **no** |" in text
    assert "- copies are slow" in text
    assert "- fp8" in text
    assert "**Failed**: it was ended" in text
    assert f"| {STAGES['contention'].text} | **refuted** |" in text
    assert STAGES["contention"].if_refuted in text
    assert "- eviction = 0.4" in text
    assert "--matmuls contention/matmuls.csv --output my.json" in text
    assert "| cuBLAS | 13.1 |" in text
    # The worst come first, and each line has as many cells as its head.
    copies = text.partition("### Copies")[2].partition("###")[0]
    lines = [line for line in copies.splitlines() if line.startswith("|")]
    assert "size 78" in lines[2]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(cells) == 1
    assert "Of 40 the 24 that the model is furthest from" in copies
    assert Result.read(tmp_path / "h100.json") == result


def test_the_page_of_a_dry_run_says_so(tmp_path):
    page.write(a_result(dry=True, contention=a_stage(rows=ROWS)), tmp_path)
    assert "The figures mean\nnothing" in (tmp_path / "h100.md").read_text().replace(
        "figures mean nothing", "figures mean\nnothing"
    )


def test_the_same_result_gives_the_same_page(tmp_path):
    result = a_result(contention=a_stage(rows=ROWS))
    for folder in ("one", "two"):
        page.write(result, tmp_path / folder)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_records_keep_what_was_measured_before(tmp_path):
    first = {"eviction": 0.4, "ring_passes": 1.5}
    update_constants(a_result(contention=a_stage(constants=first)), tmp_path)
    again = {"eviction": 0.5}
    path = update_constants(a_result(contention=a_stage(constants=again)), tmp_path)
    found = json.loads(path.read_text())
    values = {name: item["value"] for name, item in found["sharing"].items()}
    assert values == {"eviction": 0.5, "ring_passes": 1.5}
    source = found["sharing"]["eviction"]["source"]
    assert source.startswith("measured by scripts/gpu_check.py on 2031-02-03")
    assert "driver_version 999.1" in source


def test_a_dry_run_never_reaches_a_record(tmp_path):
    measured = a_stage(constants={"eviction": 0.4})
    with pytest.raises(ResultError, match="dry run"):
        update_constants(a_result(dry=True, contention=measured), tmp_path)
    assert update_constants(a_result(contention=a_stage()), tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A driver's program that says what the test wants."""

    def write(text, status=0):
        path = tmp_path / "nvidia-smi"
        path.write_text(
            f"#!/bin/sh\necho \"$@\" >&2\nprintf '%s' '{text}'\nexit {status}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return write


def test_the_gpu_is_asked_for_its_name(smi):
    smi("NVIDIA H200, 580.1, 143771 MiB, 1980 MHz\n")
    found = host.gpu_here()
    assert found["name"] == "NVIDIA H200"
    assert found["driver_version"] == "580.1"
    assert host.record_of(found["name"]) == "h200"


def test_no_gpu_and_an_unknown_one_are_different_errors(smi, monkeypatch):
    smi("No devices were found", 6)
    with pytest.raises(CannotRunError, match="No devices were found"):
        host.gpu_here()
    with pytest.raises(CannotRunError, match="--gpu=h100"):
        host.record_of("NVIDIA Abacus 3000")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotRunError, match="--dry-run"):
        host.gpu_here()


def command(*words, **more):
    return subprocess.run(
        [sys.executable, SCRIPT, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more},
        check=False,
    )


def test_without_a_gpu_it_says_what_to_do():
    ran = command(PATH="")
    assert ran.returncode == 2
    assert "--dry-run" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--dry-run", "obey"], "no stage 'obey'; there are contention"),
        (["--dry-run", "--seconds=0"], "a stage needs some"),
        (["--dry-run", "--update"], "a dry run measures nothing"),
        (["--from=x.json", "--dry-run"], "--from measures nothing"),
        (["--dry-run", "--gpu=abacus"], "no system has GPUs with the record 'abacus'"),
        (["--from=x.json"], "x.json is no result"),
        (["--from", "x.json", "y.json"], "x.json is no result"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, why):
    ran = command(*words)
    assert ran.returncode == 2
    assert why in " ".join(ran.stderr.split())


def test_an_earlier_result_makes_the_page(tmp_path):
    path = tmp_path / "result.json"
    a_result(dry=True, contention=a_stage(rows=ROWS)).write(path)
    ran = command(f"--from={path}", f"--docs={tmp_path / 'pages'}")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "pages" / "h100.md").exists()
    refused = command(f"--from={path}", "--docs")
    assert refused.returncode == 2
    assert "a dry run is no validation" in refused.stderr


def test_parts_of_a_run_are_put_together(tmp_path):
    one = a_result(dry=True, obeyed=a_stage(rows=ROWS[:2]), contention=a_stage())
    other = a_result(dry=True, contention=a_stage(rows=ROWS[:4]))
    both = merged([one, other])
    assert list(both.stages) == ["contention", "obeyed"]
    assert both.stages["contention"].rows == ROWS[:4]
    assert both.machine["date"] == "2031-02-03"
    another = dataclasses.replace(other, machine={**other.machine, "jax": "9"})
    with pytest.raises(ResultError, match="they differ in jax"):
        merged([one, another])


def test_each_stage_is_written_as_soon_as_it_is_done(tmp_path):
    path = tmp_path / "result.json"
    ran = command(
        *("obeyed", "--dry-run", "--seconds=1", f"--json={path}"),
        f"--keep={tmp_path / 'logs'}",
    )
    assert list(Result.read(path).stages) == ["obeyed"], ran.stderr
    again = command("obeyed", "--dry-run", f"--keep={tmp_path / 'logs'}")
    assert again.returncode == 2
    assert "name another --keep" in again.stderr


def test_the_help_names_all_stages():
    shown_help = command("--help").stdout
    assert all(f"  {name}" in shown_help for name in STAGES)
