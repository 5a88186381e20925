"""Jobs of several processes: how they end, how they share a GPU, and what is said."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpu_stages import job
from gpu_stages.jobs import sharing, together
from gpu_stages.jobs.cases import STEPS, Case, cases
from gpu_stages.jobs.member import Found, Part
from gpu_stages.jobs.together import Member, PortTakenError, TogetherError
from gpu_stages.logs import last_words
from gpu_stages.registry import module_of
from gpu_stages.result import StageResult
from gpu_stages.running import run_stage
from gpu_stages.stage import Request

LONG = 60.0


@pytest.mark.slow
def test_a_job_with_a_plan_has_the_losses_of_one_without(tmp_path):
    lines = []
    request = Request("h100", True, 280.0, tmp_path / "job")
    found = StageResult.read(run_stage(module_of("job"), request, lines.append))
    assert found.status == "ran", (found.why, found.last_lines)
    turns = [row for row in found.rows if row.series == "steps of a job in turns"]
    assert [row.what for row in turns] == ["FSDP of 2, baseline", "FSDP of 2, tuned"]
    # What the guard counts of either side.
    assert {row.measured.count for row in turns} == {12}
    assert "double_buffering" in turns[1].details["plan"]
    assert turns[1].details["guard"].startswith("measured ")
    assert turns[0].details["losses"] == turns[1].details["losses"]
    same, ratio = found.scores
    assert (same.value, same.most, same.met) == (0.0, 0.0, True)
    assert ratio.value == turns[1].measured.median / turns[0].measured.median
    stays = "the plan stays" in turns[1].details["guard"]
    assert [line for line in found.findings if "did not keep" not in line] == []
    assert len(found.findings) == (not stays)
    assert "a speedup" in found.left_out[-1]
    # The whole job has one set of arguments, and so one decision.
    log = (tmp_path / "job" / "fsdp-of-2-tuned" / "0.log").read_text()
    assert log.count("train on h100:1x2: predicted") == 1


BEGINS = """
import dataclasses, json, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 4)
from gpu_stages.jobs import member
from gpu_stages.jobs.cases import cases

def compiled():
    return sorted(map(str, Path(sys.argv[1]).glob("*after_optimizations.txt")))

begun = []
for case in cases(dry=False):
    tiny = {"tiny": True, "layers": 2, "batch": 2, "sequence": 16}
    step = dataclasses.replace(case, size=tiny).build()
    begun.append((step, member.copied(member.beginning(step))))
before = compiled()
step, (state, tokens) = begun[0]
step.function(state, tokens)
print(json.dumps([before, compiled()]))
"""
COLLECTIVE = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all)\S*\(")


@pytest.mark.slow
def test_nothing_is_communicated_before_the_first_step(tmp_path):
    # NCCL would make its communicators, and ask no tuner plugin that comes later.
    dump = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, "-c", BEGINS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "XLA_FLAGS": dump},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(ran.stdout)
    assert len(before) >= 2
    communicates = [COLLECTIVE.search(Path(name).read_text()) for name in before]
    assert not any(communicates)
    # The step itself does, so that one would have been seen.
    first = [Path(name).read_text() for name in set(after) - set(before)]
    assert any(map(COLLECTIVE.search, first))


# Processes that belong together


def run(tmp_path, *scripts, seconds=LONG):
    """Runs a script for each process, and returns where they say their numbers."""
    members = []
    for index, script in enumerate(scripts):
        path = tmp_path / f"{index}.py"
        tell = f"import os, pathlib\npathlib.Path({str(tmp_path)!r}, '{index}.pid')"
        path.write_text(
            f"{tell}.write_text(str(os.getpid()))\n{textwrap.dedent(script)}"
        )
        log = tmp_path / f"{index}.log"
        members.append(Member([str(path)], dict(os.environ), log))
    together.run_together(members, seconds)


def all_ended(tmp_path):
    for path in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    return True


WAITS = "import time; time.sleep(600)"


def test_processes_that_end_well(tmp_path):
    run(tmp_path, "print(1)", "print(2)")
    assert (tmp_path / "1.log").read_text() == "2\n"


@pytest.mark.parametrize(
    ("dies", "told"),
    [
        ("raise SystemExit('nothing is right')", "status 1.*nothing is right"),
        ("os.kill(os.getpid(), 9)", "process 0 ended with SIGKILL.*nothing"),
        (
            "raise SystemExit('Duplicate GPU detected : rank 1 and rank 0')",
            "NCCL refuses two processes on one GPU.*2.30",
        ),
        (
            "raise SystemExit('x Multiple Ranks are using the same GPU/Partition.')",
            "NCCL refuses two processes",
        ),
        (
            "raise SystemExit('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes')",
            "memory does not suffice.*nvidia-smi",
        ),
        (
            "raise SystemExit('failed call: CUDA_ERROR_MPS_CONNECTION_FAILED')",
            "multi-process service has failed.*CUDA_ERROR_MPS_CONNECTION_FAILED",
        ),
    ],
)
def test_one_that_dies_ends_the_others(tmp_path, dies, told):
    started = time.monotonic()
    with pytest.raises(TogetherError, match=told):
        run(tmp_path, f"import os; {dies}", WAITS)
    assert time.monotonic() - started < LONG
    assert all_ended(tmp_path)


def test_one_that_hangs_ends_with_the_time(tmp_path):
    hangs = "print('half way', flush=True)\n" + WAITS
    with pytest.raises(TogetherError, match=r"not done after 3 s.*process 1.*half way"):
        run(tmp_path, "print('done')", hangs, seconds=3.0)
    assert all_ended(tmp_path)


def test_what_a_log_says_last_is_no_chatter(tmp_path):
    log = tmp_path / "log"
    log.write_text("it broke here\n\nI0000 00:00:1.2 3 x.cc:1] started\n")
    assert last_words(log) == "it broke here"
    assert last_words(tmp_path / "none") == "nothing"


def test_another_port_where_one_was_taken(tmp_path):
    ports = []

    def once_taken(port):
        ports.append(port)
        if len(ports) == 1:
            run(tmp_path, "raise SystemExit('Address already in use')", WAITS)

    together.on_a_free_port(once_taken)
    assert len(ports) == 2

    def always_taken(port):
        ports.append(port)
        raise PortTakenError("taken")

    with pytest.raises(PortTakenError):
        together.on_a_free_port(always_taken)
    assert len(ports) == 2 + 3


# One GPU for all


def test_old_libraries_take_processes_for_hosts():
    fast, as_hosts = sharing.nccl_environment("2.30.7")
    assert (fast["NCCL_MULTI_RANK_GPU_ENABLE"], as_hosts) == ("1", False)
    slow, as_hosts = sharing.nccl_environment("2.29.2")
    assert (slow["NCCL_SOCKET_IFNAME"], as_hosts) == ("lo", True)
    shared = sharing.Sharing(slow, as_hosts)
    names = {shared.environment(index, 4)["NCCL_HOSTID"] for index in range(4)}
    assert len(names) == 4
    assert shared.cluster("h200", 4) == "h200:4x1"


def test_all_processes_together_leave_memory_free():
    for count in (2, 4):
        own = sharing.Sharing({}).environment(0, count)
        assert count * float(own["XLA_PYTHON_CLIENT_MEM_FRACTION"]) <= 0.8


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A program in the place of MPS's, which tells what it is asked."""
    told = tmp_path / "told"
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
test -d "$CUDA_MPS_PIPE_DIRECTORY" || exit 3
if [ "$1" = -f ]; then
  echo started $$ >> {told}
  test -e {tmp_path}/broken && exit 1
  while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do sleep 0.05; done
else
  cat >> {told}
  touch "$CUDA_MPS_PIPE_DIRECTORY/quit"
fi
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sharing, "_STARTS_IN", 0.5)
    return told


def ended(told):
    """Whether the service was started once, asked to end once, and did."""
    started, quit_ = told.read_text().splitlines()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.removeprefix("started ")), 0)
    return quit_ == "quit"


def test_a_service_of_our_own(tmp_path, control, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    seen = []

    def reaches(environment):
        seen.append(environment)
        return True

    with sharing.service(tmp_path, reaches) as (variables, how):
        assert Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        assert variables["CUDA_MPS_LOG_DIRECTORY"] == str(tmp_path)
        # Of the devices that the service sees, it is the first.
        assert variables["CUDA_VISIBLE_DEVICES"] == "0"
        assert variables.items() <= seen[0].items()
        assert "at the same time" in how
    assert ended(control)
    assert not Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).exists()


def test_the_service_ends_whatever_happens(tmp_path, control):
    with (
        pytest.raises(TogetherError, match="died"),
        sharing.service(tmp_path, lambda _: True),
    ):
        raise TogetherError("died")
    assert ended(control)


def test_in_turns_where_nobody_reaches_the_gpu_through_the_service(tmp_path, control):
    with sharing.service(tmp_path, lambda _: False) as (variables, how):
        assert variables == {}
        assert "in turns" in how
        # It must not stand in the way of those who do without it.
        assert ended(control)


def test_in_turns_where_the_service_does_not_start(tmp_path, control):
    (tmp_path / "broken").touch()
    with sharing.service(tmp_path, lambda _: True) as (variables, how):
        assert variables == {}
        assert "ended at once" in how


def test_in_turns_where_there_is_no_service(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with sharing.service(tmp_path) as (variables, how):
        assert variables == {}
        assert "there is no nvidia-cuda-mps-control" in how


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_no_gpu_is_reached_where_there_is_none():
    assert not sharing.reaches_the_gpu(os.environ)


# What is said of two jobs

LOSSES = [3.0 - 0.1 * step for step in range(STEPS)]
CASE = Case("fsdp", 2, True, {})


def compared(**others):
    usual = Found("2 x H100", {"usual": LOSSES, "again": LOSSES}, {"usual": [0.1]})
    found = {
        "devices": "2 x H100",
        "losses": {"guarded": LOSSES},
        "seconds": {"baseline": [0.1, 0.2, 0.3], "tuned": [0.1, 0.1, 0.1]},
        "plan": "a plan",
        "verdict": "measured 200 ms",
        "kept": True,
    }
    tuned = Found(**(found | others))
    return job.Compared(CASE, [usual] * 2, [tuned] * 2)


def test_where_all_is_well_nothing_is_found():
    one = compared()
    assert list(job.findings(one)) == []
    same, ratio = job.scores(one)
    assert (same.met, ratio.value, ratio.met) == (True, pytest.approx(0.5), None)
    assert [row.measured.median for row in job.rows(one)] == pytest.approx(
        [200.0, 100.0, 100.0]
    )


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"kept": False}, "the guard did not keep the plan: measured 200 ms"),
        ({"verdict": ""}, "the guard came to no decision"),
        ({"plan": ""}, "no plan would change anything"),
        ({"untold": "it is too old"}, "NCCL could not be told anything: it is too old"),
        ({"fallbacks": ["no\n  compiler"]}, "FSDP of 2: no compiler"),
        (
            {"losses": {"guarded": [*LOSSES[:-1], 0.0]}},
            "differ by up to 0.1 .*though the plan keeps the order of sums",
        ),
        (
            {"losses": {"guarded": [*LOSSES[:-1], 0.0]}, "deterministic": False},
            "and the plan does not keep the order of sums",
        ),
    ],
)
def test_what_is_found(others, told):
    (found,) = job.findings(compared(**others))
    assert re.search(told, found)


def test_losses_that_differ_are_a_goal_missed_only_for_a_plan_that_keeps_sums():
    other = {"losses": {"guarded": [*LOSSES[:-1], 0.0]}}
    missed, _ = job.scores(compared(**other))
    assert missed.value == pytest.approx(0.1)
    assert missed.met is False
    differs, _ = job.scores(compared(**other, deterministic=False))
    assert differs.met is None


def test_a_program_that_does_not_repeat_itself_sets_no_goal():
    one = compared()
    wavers = Found("", {"usual": LOSSES, "again": LOSSES[::-1]}, {"usual": [0.1]})
    one = job.Compared(CASE, [wavers] * 2, one.tuned)
    (found,) = job.findings(one)
    assert "does not repeat its own losses" in found
    same, _ = job.scores(one)
    assert same.most is None


def test_processes_with_different_losses_are_told():
    one = compared()
    odd = Found("", {"guarded": LOSSES[::-1]}, {})
    (found,) = job.findings(job.Compared(CASE, one.usual, [one.tuned[0], odd]))
    assert "processes of the guarded job have different losses" in found


def test_jobs_that_all_fail_say_why(tmp_path, monkeypatch):
    def fails(*_):
        raise TogetherError("process 1: NCCL refuses")

    monkeypatch.setattr(job, "run_together", fails)
    with pytest.raises(job.JobError, match="FSDP of 2 came to no end: process 1: NCCL"):
        job.run(Request("h100", True, LONG, tmp_path))


def test_a_part_is_read_as_it_was_written(tmp_path):
    part = Part(cases(dry=False)[1], True, "h100:1x2", ["options"], 4, 60.0)
    part.write(tmp_path / "part.json")
    assert Part.read(tmp_path / "part.json") == part
