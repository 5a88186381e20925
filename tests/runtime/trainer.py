"""One process of a job that trains; test_jobs.py runs it.

`trainer.py JOB INDEX COUNT PORT FOLDER`. Prints a line of JSON for each way to train:
the losses, the plans in use, how many were made here, the warnings, the seconds.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src import distributed
from jax.sharding import NamedSharding, PartitionSpec

import lagom_jax
from lagom_jax.compile import Toolchain
from lagom_jax.errors import LagomError, PlanError
from lagom_jax.plan import MeasuredSteps, save
from lagom_jax.planner import Budget, Planner
from lagom_jax.runtime import coordination, guard, programs, say, store
from tests.runtime.planned import made

LONG = 60.0
LIMIT = 3.0
MEASURED_STEPS = len(guard.schedule()) + 3
OTHER = "xla_gpu_enable_while_loop_double_buffering"


def spoiled(about, spoil=None):
    """Some values of the coordination service arrive changed, or not at all."""
    usual = store.KeyValueStore.get

    def get(table, key, seconds=0.0):
        value = usual(table, key, seconds)
        if not isinstance(value, bytes) or about not in key:
            return value
        return spoil or value[:-1] + bytes([value[-1] ^ 1])

    return mock.patch.object(store.KeyValueStore, "get", get)


def versions(**others):
    probed = Toolchain.probe()
    told = mock.Mock(versions=dict(probed.versions) | others)
    return mock.patch.object(Toolchain, "probe", return_value=told)


def flags(text):
    return mock.patch.dict(os.environ, XLA_FLAGS=text)


def cannot_build():
    def build(*_, **__):
        raise PlanError("RESOURCE_EXHAUSTED: no room")

    return mock.patch.object(programs, "build", build)


def cannot_run():
    """Programs with options can be compiled, and fail when they run."""
    build = programs.build

    def failing(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")

    def built(*arguments, **options):
        return dataclasses.replace(build(*arguments, **options), run=failing)

    return mock.patch.object(programs, "build", built)


def cannot_plan():
    def plan(planner, request):
        raise PlanError("nothing can be planned")

    return mock.patch.object(Planner, "plan", plan)


def other_collectives():
    return mock.patch.object(programs, "collectives_of", return_value="others")


def finds(faster):
    seconds = 0.5 if faster else 2.0
    verdict = MeasuredSteps(1.0, seconds, 0.01, 12, kept=1.0 - seconds > 0.01)
    return mock.patch.object(guard, "judge", return_value=verdict)


def ends_here(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Trainer:
    def __init__(self, index, count, port, folder):
        jax.config.update("jax_num_cpu_devices", 4)
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
        self.index, self.folder = index, Path(folder)
        self.client = distributed.global_state.client
        self.made = 0
        self.plan_of = made
        trainer = self

        def plan(planner, request):
            trainer.made += 1
            return trainer.plan_of(planner)

        Planner.plan = plan
        logging.getLogger("lagom_jax").setLevel(logging.INFO)

    def together(self, name):
        """What follows begins in all processes at once, however slowly they started."""
        self.client.wait_at_barrier(f"test {name}", int(LONG * 1000))

    @functools.cached_property
    def parts(self):
        """A step whose weights are cut over all devices, its state, and a batch."""
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        cut = NamedSharding(mesh, PartitionSpec("data"))
        whole = NamedSharding(mesh, PartitionSpec())

        @functools.partial(jax.jit, out_shardings=cut)
        def start():
            keys = jax.random.split(jax.random.key(0))
            return [jax.random.normal(key, (64, 64)) / 8 for key in keys]

        @functools.partial(jax.jit, out_shardings=cut)
        def batch():
            return jax.random.normal(jax.random.key(1), (32, 64))

        def loss(weights, x):
            for weight in weights:
                weight = jax.lax.with_sharding_constraint(weight, whole)
                x = jnp.tanh(x @ weight)
            return jnp.mean((x - 0.5) ** 2)

        @functools.partial(jax.jit, donate_argnums=0, out_shardings=([cut] * 2, whole))
        def step(weights, x):
            value, slopes = jax.value_and_grad(loss)(weights, x)
            new = [w - 0.3 * slope for w, slope in zip(weights, slopes, strict=True)]
            return new, value

        return start, step, batch()

    def alone(self):
        """A step that needs nobody else."""
        step = jax.jit(lambda w, x: (w - 0.1 * x, (w * x).sum()), donate_argnums=0)
        return lambda: jnp.arange(8.0), step, jnp.ones(8)

    def train(self, name, *ways, steps=4, before=None, parts=None, **asked):
        """Trains with `lagom_jax.tune`, and says what came of it.

        `ways` are what is different in process 0, in process 1, and so on.
        """
        start, jitted, batch = parts or self.parts
        self.made = 0
        say._said.clear()
        handler = Lines()
        logging.getLogger("lagom_jax").addHandler(handler)
        asked = {
            "cluster": "h100:2x4",
            "cache": False,
            "patience": LONG,
            "budget": Budget(seconds=LONG),
            **asked,
        }
        way = ways[self.index] if self.index < len(ways) else None
        found = {"name": name, "losses": []}
        if parts is None:
            self.together(name)
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", say.LagomWarning)
            with way or contextlib.nullcontext():
                if before is not None:
                    before()
                step = lagom_jax.tune(jitted, **asked)
                state = start()
                try:
                    for _ in range(steps):
                        state, loss = step(state, batch)
                        found["losses"].append(float(loss).hex())
                except (LagomError, jax.errors.JaxRuntimeError) as error:
                    found["raised"] = f"{type(error).__name__}: {error}"
        logging.getLogger("lagom_jax").removeHandler(handler)
        found |= {
            "seconds": time.monotonic() - began,
            "plans": len(step.plans),
            "made": self.made,
            "warned": [str(one.message) for one in warned],
            "told": handler.lines,
        }
        print(json.dumps(found), flush=True)

    def trains(self):
        train, index = self.train, self.index
        folder = self.folder / str(index)
        nothing = contextlib.nullcontext()

        def late():
            if index == 1:
                time.sleep(LIMIT + 3)

        train("off", mode="off", steps=MEASURED_STEPS)
        train("planned", cache=folder)
        train("kept", cache=folder)
        if index == 0:
            planner = Planner(
                self.parts[1].trace(self.parts[0](), self.parts[2]), cluster="h100:2x4"
            )
            save(made(planner), self.folder / "plan.json")
            self.client.key_value_set("saved", "")
        else:
            # Only process 0 has to see the file.
            self.client.blocking_key_value_get("saved", int(LONG * 1000))
        train("from a file", plan=str(self.folder / "plan.json"), mode="load")
        train("nothing to load", mode="load")

        train("slow", before=late)
        train("versions", nothing, versions(jaxlib="0.0.1"))
        train("flags", nothing, flags(f"--{OTHER}=true"))
        train("levers", levers=("options", "costs") if index else ("options",))
        train("verify", verify="measure" if index else "model")
        train("strict", nothing, versions(jaxlib="0.0.1"), strict=True)
        train("changed", nothing, spoiled(about=".1/verdict"), patience=LIMIT)
        train("not planned", cannot_plan())
        train("not built", nothing, cannot_build())
        train("not built strictly", nothing, cannot_build(), strict=True)
        train("collectives", nothing, other_collectives())
        # Before any communication, or it would be waited for.
        train("not run", cannot_run(), cannot_run())

        measure = functools.partial(train, verify="measure", steps=MEASURED_STEPS)
        measure("faster", finds(True), finds(False), cache=folder)
        measure("faster, kept", finds(False), finds(False), cache=folder)
        measure("slower", finds(False), finds(True))
        self.plan_of = functools.partial(
            made, measured=MeasuredSteps(1.0, 2.0, 0.1, 12, False)
        )
        measure("slower, kept")
        self.plan_of = made
        train("after all")
        print(json.dumps({"name": "files", "found": folder.exists()}))
        # Whoever came too late once is not waited for again.
        train("too slow", before=late, patience=LIMIT)
        train("after that", cache=folder)
        self.together("end")

    def one_is_off(self):
        for name, mode in (
            ("off", "off"),
            ("one", "tune" if self.index == 0 else "off"),
        ):
            self.train(name, mode=mode, patience=LIMIT, budget=Budget(seconds=1.0))
        self.train("both", patience=LIMIT, budget=Budget(seconds=1.0))
        self.together("end")

    def dies_before(self):
        # jax waits for the dead when it looks for devices.
        jax.devices()
        self.together("ready")
        if self.index == 2:
            ends_here()
        self.left_behind()

    def dies_building(self):
        nothing = contextlib.nullcontext()
        self.left_behind(
            nothing, nothing, mock.patch.object(programs, "build", ends_here)
        )

    def left_behind(self, *ways):
        alone = {"cluster": "h100:1x1", "parts": self.alone()}
        self.train("off", mode="off", **alone)
        short = {"patience": LIMIT, "budget": Budget(seconds=1.0)}
        # It needs nobody else to run, and is planned for as if all owned a part of it.
        everybody = coordination.ProcessGroup(
            self.index, tuple(range(3)), coordination.coordinator()
        )
        with mock.patch.object(coordination.ProcessGroup, "of", return_value=everybody):
            self.train("died", *ways, **short, **alone)
        # Leaving properly means waiting for the dead, and jax ends process 1 when
        # process 0 has left.
        if self.index == 1:
            self.client.key_value_set("done", "")
        else:
            self.client.blocking_key_value_get("done", int(LONG * 1000))
        os._exit(0)


if __name__ == "__main__":
    job, *numbers, folder = sys.argv[1:]
    getattr(Trainer(*map(int, numbers), folder), job)()
