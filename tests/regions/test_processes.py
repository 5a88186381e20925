"""Regions as processes: they agree, and go on when one is late, lost or mad."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lagom_jax.regions import Meeting

PEER = Path(__file__).parent / "peer.py"
ROOT = Path(__file__).parents[2]
OUTER = {"period": 8, "fragments": 2, "delay": 2, "link_use": 1.0, "bits": 8}
STEPS = 40

pytestmark = pytest.mark.slow


class Peer:
    """A region, started and told to go."""

    def __init__(self, stack, meeting, region, prefix=(), **told):
        told = {"steps": STEPS, "outer": OUTER, "region": region, **told}
        host, port = meeting
        told.setdefault("meeting", f"{host}:{port}")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PEER), json.dumps(told)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(self.end)

    def end(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def begins(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)["begins"]

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def reach(self, step):
        for line in self.process.stdout:
            if json.loads(line).get("step") == step:
                return
        raise AssertionError(self.process.stderr.read())

    def result(self):
        out, errors = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, errors
        return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def world(count, patience=60.0, address="127.0.0.1"):
    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(Meeting((address, 0), count, patience))
        yield stack, meeting.address


def go_together(peers):
    for peer in peers:
        assert peer.begins() == 0
    for peer in peers:
        peer.go()


@pytest.fixture(scope="module")
def whole():
    """Two regions to which nothing happens."""
    with world(2) as (stack, meeting):
        peers = [Peer(stack, meeting, n) for n in range(2)]
        go_together(peers)
        return [peer.result() for peer in peers]


def test_all_regions_have_the_same_global_parameters(whole):
    assert whole[0]["anchor"] == whole[1]["anchor"]
    assert whole[0]["sum"] == whole[1]["sum"] != 0
    assert whole[0]["sent"] == whole[1]["sent"]
    assert sum(whole[0]["sent"]) == STEPS // 2


def test_a_region_that_is_killed_returns_from_the_global_state(whole):
    with world(2) as (stack, meeting):
        slow = {"computes": 0.05}
        stays = Peer(stack, meeting, 0, asked=True, **slow)
        dies = Peer(stack, meeting, 1, dies_at=13, **slow)
        go_together([stays, dies])
        dies.reach(13)
        dies.process.wait()
        again = Peer(stack, meeting, 1, rejoin=True, **slow)
        begins = again.begins()
        assert begins > 13
        again.go()
        kept, back = stays.result(), again.result()
    # The other went on meanwhile, and at the end they agree to the last bit.
    assert kept["anchor"] == back["anchor"]
    assert kept["sum"] == back["sum"]
    # Both pull again at the global parameters, as if nothing had happened.
    for found, usual in zip((kept, back), whole, strict=True):
        assert found["loss"] == pytest.approx(usual["loss"], rel=0.3)


def test_a_late_region_is_not_waited_for_beyond_patience():
    with world(2, patience=1.0) as (stack, meeting):
        peers = [
            Peer(stack, meeting, 0),
            Peer(stack, meeting, 1, hangs_at=9, hangs_for=3.0),
        ]
        go_together(peers)
        one, other = (peer.result() for peer in peers)
    # Whoever was late takes in what the others decided.
    assert one["anchor"] == other["anchor"]
    assert one["waited_s"] < 10


def test_a_fragment_that_is_not_finite_is_refused_and_said(whole):
    with world(2) as (stack, meeting):
        peers = [Peer(stack, meeting, 0), Peer(stack, meeting, 1, nan_at=7)]
        go_together(peers)
        one, other = (peer.result() for peer in peers)
    assert (one["refused"], other["refused"]) == (0, 1)
    assert one["anchor"] == other["anchor"]
    for found, usual in zip((one, other), whole, strict=True):
        assert found["loss"] == pytest.approx(usual["loss"], rel=0.3)


def test_a_restart_from_checkpoints_while_a_fragment_is_under_way(whole, tmp_path):
    files = [str(tmp_path / f"{n}.npz") for n in range(2)]
    # The send after step 16 is under way at step 17.
    with world(2) as (stack, meeting):
        peers = [
            Peer(stack, meeting, n, checkpoint=files[n], saves_at=17, dies_at=17)
            for n in range(2)
        ]
        go_together(peers)
        for peer in peers:
            peer.reach(17)
            peer.process.wait()
    with world(2) as (stack, meeting):
        peers = [
            Peer(stack, meeting, n, checkpoint=files[n], resume=True) for n in range(2)
        ]
        for peer in peers:
            assert peer.begins() == 17
        for peer in peers:
            peer.go()
        found = [peer.result() for peer in peers]
    for one, usual in zip(found, whole, strict=True):
        # Another meeting, other processes, the same to the last bit.
        assert one["anchor"] == usual["anchor"]
        assert one["loss"] == usual["loss"]


def test_without_a_meeting_a_region_says_what_to_start(tmp_path):
    with world(1) as (stack, _):
        alone = Peer(stack, ("127.0.0.1", 1), 0, patience=0.5)
        _, errors = alone.process.communicate(timeout=120)
    assert "lagom regions meet" in errors
