"""One process of a job in which something goes wrong; test_troubles.py runs it.

`troubles.py JOB INDEX COUNT PORT FOLDER`. Prints a line of JSON for each thing that was
tried: what it came to, how many plans are in use, how many were made here, the seconds.
"""

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lagom_jax
from lagom_jax.errors import PlanError
from lagom_jax.nccl_plugin import Answer, Rule, Rules, Scope, pack
from lagom_jax.plan import MeasuredSteps
from lagom_jax.planner import Planner
from lagom_jax.runtime import decision, guard, nccl, place, programs, say, store
from tests.runtime.planned import made

LONG = 60.0
LIMIT = 4.0
SLOW = 3 * LIMIT
MEASURED_STEPS = len(guard.schedule())


class WatchdogError(TimeoutError):
    """An error of the user's own, called like one of ours."""


def lost(about):
    """Values whose keys end so do not arrive."""
    usual = store.KeyValueStore.get

    def get(table, key, seconds=0.0):
        if about in key:
            # It is there, and this process does not hear of it.
            usual(table, key, LONG)
            return store.StoreAnswer.LOST
        return usual(table, key, seconds)

    return mock.patch.object(store.KeyValueStore, "get", get)


class Job:
    def __init__(self, index, count, port, folder):
        self.index, self.folder = index, Path(folder)
        self.made, self.slow = 0, 0.0
        job = self

        def plan(planner, request):
            job.made += 1
            end = time.monotonic() + job.slow
            while time.monotonic() < end:
                time.sleep(0.05)
                if planner._compiler._closed:
                    raise PlanError("the compiler was ended")
            return made(planner)

        Planner.plan = plan
        jax.config.update("jax_num_cpu_devices", 2)
        if count < 3:
            jax.distributed.initialize(f"127.0.0.1:{port}", count, index)

    def together(self, name):
        client = distributed.global_state.client
        client.wait_at_barrier(f"test {name}", int(LONG * 1000))

    def leave(self):
        """Ends at once. Jax kills whoever is still here when process 0 is not."""
        self.together("end")
        left = self.folder / f"left {sys.argv[1]}"
        if self.index:
            left.touch()
        while not left.exists():
            time.sleep(0.1)
        if not self.index:
            time.sleep(1.0)
        os._exit(0)

    def array(self, shape=(8, 8)):
        """An array that is cut over the devices of all processes."""
        mesh = Mesh(np.array(jax.devices()), ("x",))
        cut = NamedSharding(mesh, PartitionSpec("x"))
        ones = np.ones(shape, np.float32)
        return jax.make_array_from_callback(shape, cut, lambda place: ones[place])

    def tune(self, function, **asked):
        asked = {"cluster": "h100:1x4", "cache": False, "patience": LIMIT, **asked}
        return lagom_jax.tune(jax.jit(function), **asked)

    def tried(self, name, step, *arguments):
        self.made, began = 0, time.monotonic()
        found = {"name": name}
        say._said.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", say.LagomWarning)
            try:
                result = jax.block_until_ready(step(*arguments))
                local = jax.tree.leaves(result)[0].addressable_shards[0].data
                found["value"] = float(local.ravel()[0])
            except Exception as error:
                found["raised"] = f"{type(error).__name__}: {error}"
        found |= {
            "seconds": time.monotonic() - began,
            "plans": len(step.plans),
            "made": self.made,
            "warned": [str(one.message) for one in warned],
        }
        print(json.dumps(found), flush=True)

    def lives(self):
        """Nothing that is in doubt."""
        x, index = self.array(), self.index
        step = self.tune(lambda x: x * 2)
        own = {
            "NCCL_IB_HCA": f"mlx5_{index}",
            "XLA_FLAGS": f"--xla_dump_to={self.folder}/dump{index}",
        }
        with mock.patch.dict(os.environ, own):
            self.together("hosts")
            self.tried("hosts", step, x)

        if index == 0:
            # An evaluation on this process's own devices concerns nobody else.
            mesh = Mesh(np.array(jax.local_devices()), ("x",))
            cut = NamedSharding(mesh, PartitionSpec("x"))
            own = jax.device_put(np.ones((4, 4), np.float32), cut)
            self.tried("local", self.tune(lambda x: x + 3, cluster="h100:1x2"), own)
        self.tried("after local", self.tune(lambda x: x + 4), x)

        # One process has restored its state from a file, the others have made it.
        step = self.tune(lambda x, s: x * s)
        scalars = (jnp.float32(2), np.float32(2))
        self.tried("committed", step, x, scalars[index])
        self.tried("committed again", step, x, scalars[1])
        self.tried("committed at last", step, x, scalars[0])

        # A counter begins on the host and comes back as an array of all processes.
        step = self.tune(lambda state: (state[0] * 2, state[1] + 1))
        state = x, np.int32(0)
        for name in ("counter", "counter again", "counter at last"):
            self.tried(name, step, state)
            state = step(state)

        # An evaluation in a thread of its own, begun first in one of the processes.
        self.together("threads")

        def train(x):
            return x + 9

        def evaluate(x):
            return (x * x).sum()

        steps = [self.tune(train), self.tune(evaluate)]
        with mock.patch.object(self, "slow", 1.0):
            threads = [threading.Thread(target=one, args=(x,)) for one in steps]
            for thread in threads if index == 0 else threads[::-1]:
                thread.start()
                time.sleep(0.5)
            for thread in threads:
                thread.join()
        for name, step in zip(("one thread", "another"), steps, strict=True):
            self.tried(name, step, x)

        # A call that is wrong in one process, while programs take turns.
        step = self.tune(lambda x: x + 10, verify="measure")
        self.together("measured")
        for number in range(MEASURED_STEPS):
            if number == 5 and index == 1:
                with contextlib.suppress(TypeError):
                    step(x, 1)
            step(x)
        self.tried("measured", step, x)

        self.together("slow")
        self.slow = SLOW
        self.tried("slow", self.tune(lambda x: x + 5), x)
        self.slow = 0.0
        self.tried("after slow", self.tune(lambda x: x + 6), x)

        # The user's own watchdog, while the first process plans for long.
        def wake(*_):
            raise WatchdogError("nothing happens")

        self.together("watchdog")
        self.slow = LIMIT
        step = self.tune(lambda x: x + 7)
        if index == 1:
            signal.signal(signal.SIGALRM, wake)
            signal.setitimer(signal.ITIMER_REAL, LIMIT / 2)
        self.tried("watchdog", step, x)
        self.slow = 0.0
        # What was decided meanwhile holds for the process that was called away, too.
        self.tried("after watchdog", step, x)

        # The same at the very moment at which the talk of the processes begins.
        self.together("at once")
        step, start = self.tune(lambda x: x + 10), threading.Thread.start

        def called_away(thread):
            start(thread)
            raise WatchdogError("the user's own")

        now = mock.patch.object(threading.Thread, "start", called_away)
        with now if index else contextlib.nullcontext():
            self.tried("at once", step, x)
        self.tried("after at once", step, x)

        # The process that plans is called away: nobody has a plan.
        self.together("preempted")
        self.slow = LIMIT
        step = self.tune(lambda x: x + 8)
        if index == 0:
            signal.signal(signal.SIGTERM, wake)
            signal.signal(
                signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM)
            )
            signal.setitimer(signal.ITIMER_REAL, LIMIT / 2)
        self.tried("preempted", step, x)
        self.tried("after preempted", step, x)
        self.together("end")

    def doubts(self):
        """Process 1 cannot know what process 0 runs, which communicates nothing."""
        x, index = self.array(), self.index
        nothing = mock.patch.dict(os.environ, {})

        with lost(".1/verdict") if index else nothing:
            self.tried("no offer", self.tune(lambda x: x * 2), x)
        with lost(".2/verdict") if index else nothing:
            self.tried("no verdict", self.tune(lambda x: x * 3), x)

        step = self.tune(lambda x: x * 7, verify="measure")
        verdict = MeasuredSteps(1.0, 0.5, 0.01, 12, kept=True)
        with mock.patch.object(guard, "judge", return_value=verdict):
            for _ in range(MEASURED_STEPS):
                step(x)
            with lost(".3/verdict") if index else nothing:
                self.tried("not heard what was measured", step, x)

        step = self.tune(lambda x: x * 4)
        self.tried("built", step, x)
        jax.clear_caches()
        self.tried("caches cleared", step, x)
        step.clear_cache()

        def build(*_, **__):
            raise PlanError("RESOURCE_EXHAUSTED: host")

        with mock.patch.object(programs, "build", build) if index else nothing:
            self.tried("not built again", step, x)

        rule = Rule("all-gather", 1, 1, Answer(channels=2))
        image = base64.b64encode(pack(Rules((Scope(4, rules=(rule,)),)))).decode()
        with (
            mock.patch.object(place, "on_gpus", return_value=True),
            mock.patch.object(nccl.Nccl, "objection", return_value=""),
            mock.patch.object(decision, "rules_image", return_value=image),
        ):
            self.tried("rules", self.tune(lambda x: x * 5), x)
            with lost(".3/verdict") if index else nothing:
                self.tried("rules not heard", self.tune(lambda x: x * 6), x)
        self.leave()

    def elastic(self):
        """Two processes; then process 1 is replaced by a third, and all begins anew."""
        found = self.folder / "port"
        if self.index < 2:
            port = int(sys.argv[4])
            jax.distributed.initialize(f"127.0.0.1:{port}", 2, self.index)
            self.tried("before", self.tune(lambda x: x * 2), self.array())
            jax.distributed.shutdown()
            if self.index == 1:
                os._exit(0)
            jax.clear_caches()
            jax.extend.backend.clear_backends()
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                (self.folder / "new").write_text(str(free.getsockname()[1]))
            (self.folder / "new").rename(found)
        while not found.exists():
            time.sleep(0.1)
        index = 0 if self.index == 0 else 1
        jax.distributed.initialize(f"127.0.0.1:{found.read_text()}", 2, index)
        self.tried("after", self.tune(lambda x: x * 2), self.array())
        self.tried("another", self.tune(lambda x: x * 3), self.array())
        self.leave()


if __name__ == "__main__":
    job, *numbers, folder = sys.argv[1:]
    getattr(Job(*map(int, numbers), folder), job)()
