"""Regions as processes: they agree, and go on when one is late, lost or mad."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lagom_jax.regions import Meeting
from tests.forked import Forked
from tests.kept_programs import kept_programs

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
        words = [str(PEER), json.dumps(told)]
        # Another network is the whole process's.
        start, words = (
            (subprocess.Popen, [*prefix, sys.executable, *words])
            if prefix
            else (Forked, words)
        )
        self.process = start(
            words,
            env={
                **os.environ,
                **kept_programs(),
                # Compiling takes longer than running.
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
            },
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


@pytest.mark.nightly
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


# `test_state.py` refuses one, too, in one process.
@pytest.mark.nightly
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


LINK = ("lagtestA", "lagtestB")


@pytest.fixture
def namespaces():
    """Two network namespaces with 8 Mbit/s between them, where that can be had."""

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    def inside(name, *words):
        return subprocess.run(
            ["ip", "netns", "exec", name, *words], capture_output=True, text=True
        )

    try:
        made = [ip("netns", "add", name) for name in LINK]
    except OSError:
        pytest.skip("no `ip` here, and so no network namespaces")
    try:
        if any(one.returncode for one in made):
            pytest.skip(f"no network namespaces here: {made[-1].stderr.strip()}")
        veth = ("type", "veth", "peer", "name", "lagt1", "netns", LINK[1])
        made = [ip("link", "add", "lagt0", "netns", LINK[0], *veth)]
        for name, end, host in ((LINK[0], "lagt0", 1), (LINK[1], "lagt1", 2)):
            shape = ["root", "tbf", "rate", "8mbit", "burst", "16kb", "latency", "2s"]
            made += [
                inside(name, "ip", "addr", "add", f"10.78.0.{host}/24", "dev", end),
                inside(name, "ip", "link", "set", end, "up"),
                inside(name, "ip", "link", "set", "lo", "up"),
                inside(name, "tc", "qdisc", "add", "dev", end, *shape),
            ]
        wrong = [one.stderr.strip() for one in made if one.returncode]
        if wrong:
            pytest.skip(f"no shaped links here: {wrong[0]}")
        yield LINK
    finally:
        for name in LINK:
            ip("netns", "del", name)


def over_link(stack, names, delay):
    told = {
        "size": 200_000,
        "computes": 0.3,
        "steps": 24,
        "outer": {
            "period": 12,
            "fragments": 2,
            "delay": delay,
            "bits": 8,
            "adaptive": False,
        },
    }
    enter = ("ip", "netns", "exec")
    command = [*enter, names[0], sys.executable, "-m", "lagom_jax", "regions", "meet"]
    meeting = subprocess.Popen(
        [*command, "--listen", "10.78.0.1:12912", "--regions", "2"],
        stdout=subprocess.DEVNULL,
    )
    try:
        peers = [
            Peer(stack, ("10.78.0.1", 12912), n, prefix=(*enter, name), **told)
            for n, name in enumerate(names)
        ]
        go_together(peers)
        return [peer.result() for peer in peers]
    finally:
        meeting.kill()
        meeting.wait()


# It goes by the clock, and so needs a machine that does nothing else.
@pytest.mark.nightly
def test_over_a_shaped_link_no_step_waits_for_what_is_shorter_than_its_delay(
    namespaces,
):
    """A message takes a fifth of a second and a step 0.3: one delay has room for it."""
    with contextlib.ExitStack() as stack:
        ample = over_link(stack, namespaces, delay=5)
        # At once: someone has to wait for the link each time.
        tight = over_link(stack, namespaces, delay=0)
    assert ample[0]["sum"] == ample[1]["sum"]
    arrivals = sum(tight[0]["sent"])
    # The link carries each message in 0.2 s.
    assert tight[1]["waited_s"] > 0.15 * arrivals
    assert ample[0]["waits"] + ample[1]["waits"] <= 1
