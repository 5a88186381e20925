"""One process of a job; run by test_agreement.py as `peer.py JOB INDEX COUNT PORT`.

Prints a line of JSON for each thing it tried: its name, what came of it, how long it
took.
"""

import json
import os
import signal
import sys
import time

import jax
from jax._src import distributed, xla_bridge

from lagom_jax.runtime.agreement import NoAgreementError, Peers

LONG = 120.0
LIMIT = 2.0
PAYLOAD = 32 << 20


class MakeError(Exception):
    pass


def tried(name, call):
    began = time.monotonic()
    try:
        came = {"answer": call()}
    except (NoAgreementError, MakeError) as error:
        came = {"raised": type(error).__name__, "message": str(error)}
    took = time.monotonic() - began
    print(json.dumps({"name": name, "seconds": took, **came}), flush=True)


def raise_(error):
    raise error


class Peer:
    def __init__(self, index, count, port):
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index, [0])
        self.index = index
        self.peers = Peers.here()
        self.client = distributed.global_state.client

    def together(self, name):
        """What follows begins in all processes at once, however slowly they started."""
        self.client.wait_at_barrier(f"test {name}", int(LONG * 1000))

    def healthy(self):
        peers, index = self.peers, self.index
        print(json.dumps({"name": "here", "answer": [peers.index, peers.count]}))

        def share(topic, make, seconds=LONG):
            return lambda: peers.share(topic, make, seconds=seconds).decode()

        def say(topic, word, seconds=LONG):
            return lambda: peers.unanimous(topic, word, seconds=seconds)

        tried("share", share("plan", lambda: f"a plan of {index}".encode()))
        tried("share again", share("plan", lambda: b"another"))
        tried("agree", say("plan", "mine"))
        tried(
            "gather", lambda: peers.gather("any / topic: ü", f"I {index}", seconds=LONG)
        )
        tried("not unicode", say("", "\udcff"))
        self.together("forgotten")
        kept = [key for key, _ in self.client.key_value_dir_get_bytes("lagom_jax")]
        tried("kept", lambda: sorted(key for key in kept if "plan" in key))
        flags = "--xla_gpu_a=1 " * 20 + f"--xla_gpu_b={index == 2} --xla_gpu_c=1"
        tried("other words", say("flags", flags))
        tried("failing", share("bad", lambda: raise_(MakeError("no such cluster"))))

        payload = os.urandom(PAYLOAD) if index == 0 else b""
        tried("large", lambda: len(peers.share("large", lambda: payload, seconds=LONG)))

        def slow():
            time.sleep(1)
            return b"slow"

        tried("slow", share("slow", slow))

        # Another writes over what process 0 sent, before process 2 looks.
        if index == 2:
            self.together("changed")
        tried("changed", share("changed", lambda: b"right"))
        if index == 1:
            self.client.key_value_set_bytes(
                "lagom_jax/changed:1/shared", b"wrong", allow_overwrite=True
            )
        if index != 2:
            self.together("changed")
        # Another writes before process 0 does.
        if index == 1:
            self.client.key_value_set_bytes("lagom_jax/taken:1/shared", b"x" * 90)
        self.together("taken")
        tried("taken", share("taken", lambda: b"right"))

        self.together("late")
        if index == 2:
            time.sleep(LIMIT + 3)
        tried("late", say("late", "mine", LIMIT))
        tried("after late", say("late", "mine"))
        self.together("missed")
        tried(
            "missed",
            share("missed", lambda: time.sleep(LIMIT + 2) or b"late", LIMIT),
        )
        tried("backends", xla_bridge.backends_are_initialized)
        self.together("end")

    def dies(self):
        count = jax.jit(lambda: jax.numpy.arange(4).sum())
        assert int(count()) == 6
        self.together("dies")
        if self.index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        tried("died", lambda: self.peers.unanimous("who", "I", seconds=LIMIT))
        tried("work", lambda: int(count()))
        # Leaving properly means waiting for the dead, and jax ends process 1 when
        # process 0 has left.
        if self.index == 1:
            self.client.key_value_set("done", "")
        else:
            self.client.blocking_key_value_get("done", int(LONG * 1000))
        os._exit(0)

    def frozen(self):
        """Process 0 stands still while the others want something of it."""
        self.together("frozen")
        if self.index == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)
        if self.index == 1:
            tried("frozen", lambda: self.peers.share("s", bytes, seconds=LIMIT))
        else:
            tried("frozen", lambda: self.peers.gather("g", "I", seconds=LIMIT))
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        tried("here", lambda: [Peers.here().index, Peers.here().count])
        tried(
            "share", lambda: Peers.here().share("s", lambda: b"x", seconds=1).decode()
        )
        tried("agree", lambda: Peers.here().unanimous("u", "x", seconds=1))
        tried("backends", xla_bridge.backends_are_initialized)
    else:
        getattr(Peer(*map(int, sys.argv[2:])), sys.argv[1])()
