"""Regions of several processes, each device of which holds a part of the parameters."""

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from lagom_jax.regions import Meeting
from tests.forked import Forked
from tests.kept_programs import kept_programs

MEMBER = Path(__file__).parent / "member.py"
ROOT = Path(__file__).parents[2]
OUTER = {"period": 8, "fragments": 2, "delay": 2, "link_use": 1.0, "bits": 8}
# A block of compression has 64 numbers; with these no device has a part of one.
SIZE, STEPS = 512, 40

pytestmark = pytest.mark.slow


class Process:
    def __init__(self, stack, meeting, region, process, processes, **told):
        told = {"steps": STEPS, "outer": OUTER, "size": SIZE, **told}
        told |= {"region": region, "process": process, "processes": processes}
        told["meeting"] = f"{meeting[0]}:{meeting[1]}"
        self.process = Forked(
            [MEMBER, json.dumps(told)],
            env={
                **os.environ,
                **kept_programs(),
                # Compiling takes longer than running.
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(self.end)

    def end(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()

    def reach(self, step):
        for line in self.process.stdout:
            # Gloo prints, too.
            if line.startswith("{") and json.loads(line).get("step") == step:
                return
        raise AssertionError(self.process.stderr.read())

    def result(self):
        out, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        lines = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
        return lines[-1]


def region(stack, meeting, number, processes, **told):
    """All processes of a region."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        Process(stack, meeting, number, n, processes, coordinator=coordinator, **told)
        for n in range(processes)
    ]


@contextlib.contextmanager
def world(count, patience=60.0):
    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(Meeting(("127.0.0.1", 0), count, patience))
        yield stack, meeting.address


def test_regions_of_two_processes_agree_part_by_part():
    with world(2) as (stack, meeting):
        both = [region(stack, meeting, n, 2) for n in range(2)]
        one, other = ([p.result() for p in members] for members in both)
    for mine, theirs in zip(one, other, strict=True):
        assert mine["mine"] == theirs["mine"]
        assert mine["sum"] == theirs["sum"] != 0
        assert mine["missed"] == theirs["missed"] == 0
        assert mine["sent"] == theirs["sent"]
    assert one[0]["mine"] != one[1]["mine"]
    with world(2) as (stack, meeting):
        both = [region(stack, meeting, n, 1) for n in range(2)]
        alone = [p.result() for members in both for p in members]
    # Two devices instead of four cut the blocks of compression elsewhere, no more.
    assert alone[0]["sum"] == pytest.approx(one[0]["sum"], rel=0.02)


def test_a_region_of_two_processes_returns_from_one_state():
    with world(2) as (stack, meeting):
        stay = region(stack, meeting, 0, 2, asked=True)
        die = region(stack, meeting, 1, 2, dies_at=13)
        for process in die:
            process.reach(13)
        for process in die:
            process.process.wait()
        again = region(stack, meeting, 1, 2, rejoin=True)
        kept, back = ([p.result() for p in members] for members in (stay, again))
    for mine, theirs in zip(kept, back, strict=True):
        assert mine["step"] == theirs["step"] > 13
        assert mine["mine"] == theirs["mine"]
        assert mine["sum"] == theirs["sum"]


@pytest.mark.nightly
def test_a_region_that_is_laid_out_in_another_way_is_told_so():
    """Whoever comes later has to change."""
    with world(2, patience=5.0) as (stack, meeting):
        [alone] = region(stack, meeting, 0, 1)
        several = region(stack, meeting, 1, 2)
        found = [p.process.communicate(timeout=120)[1] for p in (alone, *several)]
    assert any("all must be laid out alike" in errors for errors in found)
    assert not all(p.process.returncode == 0 for p in (alone, *several))
