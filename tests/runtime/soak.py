"""Training in eight processes with a fault every 50 steps, against training without.

`PYTHONPATH=scripts python tests/runtime/soak.py [--steps 2000] [--processes 8] [--seed 0]
[--verify model]` prints a line of JSON with what happened. All processes are forked from
this one, which imports jax and starts nothing. Faults: a process is killed, or told to end, and the job starts again from the last state
that all have written; the disk of decisions is slow; values of the coordination service
are lost; the environment changes. Every 50 steps the step becomes another program, so
that something is decided in the middle of training. What is planned is made up, since
no GPU is here; all that is done with a plan is real. With `--verify online` the job is tuned
while it trains, and faults come at any step: while steps are profiled, while something
is planned, when programs or settings are switched, and while they are measured.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lagom_jax
from lagom_jax.compile import files
from lagom_jax.errors import InDoubtError
from lagom_jax.planner import Planner
from lagom_jax.runtime import online, variant
from lagom_jax.runtime.planned_beside import PlannerBeside
from lagom_jax.runtime.protocol import StoreAnswer
from lagom_jax.runtime.step_profile import StepProfile
from lagom_jax.runtime.store import KeyValueStore
from tests.runtime.planned import made
from tests.runtime.stand_in import plan_beside, settings_beside

EVERY, PROGRAMS, WIDTH = 50, 4, 16
FAULTS = ("kill", "end", "slow disk", "lost values", "environment", "caches cleared")
IN_DOUBT, CALLED_AWAY = 3, 4
HANGS = 240.0
PATIENCE = 20.0


class CalledAwayError(Exception):
    """The job is to end soon, as a handler of the user says it."""


def fault_at(step, seed):
    """What goes wrong at a step, and in which process; the same for whoever asks."""
    found = random.Random(f"{seed} {step}")
    return found.choice(FAULTS), found.randrange(1 << 16)


def step_of_fault(round_, seed, verify):
    """The step of a round of 50 at which something goes wrong."""
    if verify != "online":
        return 0
    return random.Random(f"{seed} {round_} step").randrange(EVERY)


def lossy(share, seed):
    """Reading from the service fails now and then."""
    chance = random.Random(seed)

    def losing(usual):
        def read(table, *arguments):
            lost = chance.random() < share
            return StoreAnswer.LOST if lost else usual(table, *arguments)

        return read

    get, listed = losing(KeyValueStore.get), losing(KeyValueStore.listed)
    return mock.patch.multiple(KeyValueStore, get=get, listed=listed)


def slow_disk():
    usual = files.write

    def write(path, content):
        time.sleep(1.0)
        usual(path, content)

    return mock.patch.object(files, "write", write)


def train(index, count, port, folder, steps, seed, mode, life, verify):
    """One process, from the last state to the end or the next fault that ends it."""
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    Planner.plan = lambda planner, request: made(planner)
    PlannerBeside.plan = lambda planner, request: plan_beside(planner, seconds=0.2)
    PlannerBeside.around = settings_beside
    # As on GPUs: the first process profiles two steps before it plans.
    variant.profile_for = lambda on_gpus: StepProfile()
    # A toy's steps take no time, and processes are to meet more than once in a round.
    online._BETWEEN_STEPS = (4, 8)
    warnings.simplefilter("ignore", UserWarning)

    def away(*_):
        raise CalledAwayError

    signal.signal(signal.SIGTERM, away)
    cut = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))

    def step(weights, batch, power):
        def loss(w):
            return ((jnp.tanh(batch @ w) - 0.5) ** 2).mean() + 1e-3 * (w**power).mean()

        value, slope = jax.value_and_grad(loss)(weights)
        return weights - 0.01 * slope, value

    jitted = jax.jit(
        step, static_argnums=2, donate_argnums=0, out_shardings=(cut, None)
    )
    asked = {"cluster": f"h100:1x{count}", "cache": folder / "plans"}
    asked |= {"mode": mode, "verify": verify}
    tuned = lagom_jax.tune(jitted, patience=PATIENCE, **asked)

    def spread(array):
        return jax.make_array_from_callback(array.shape, cut, lambda at: array[at])

    done = newest(folder, count)
    start = np.load(folder / f"{done}.{index}.npy") if done else None
    rows = count * WIDTH
    if start is None:
        whole = np.random.default_rng(0).normal(size=(rows, WIDTH)).astype(np.float32)
        state = spread(whole / 8)
    else:
        local = [jax.device_put(start, jax.local_devices()[0])]
        state = jax.make_array_from_single_device_arrays((rows, WIDTH), cut, local)
    memory, plans = [], 0
    with contextlib.ExitStack() as troubles:
        for number in range(done, steps):
            round_ = number - number % EVERY
            at = round_ + step_of_fault(round_, seed, verify)
            if number == at and round_ > 0 and number > done and mode != "off":
                troubles.close()
                fault, chance = fault_at(round_, seed)
                mine = chance % count == index
                if fault == "kill" and mine and not ended(folder, number):
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "end" and mine and not ended(folder, number):
                    os.kill(os.getpid(), signal.SIGTERM)
                if fault == "slow disk":
                    troubles.enter_context(slow_disk())
                if fault == "lost values" and mine:
                    troubles.enter_context(lossy(0.3, f"{seed} {number} {life}"))
                if fault == "environment" and mine:
                    own = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
                    troubles.enter_context(mock.patch.dict(os.environ, own))
                if fault == "caches cleared" and mine:
                    jax.clear_caches()
                    tuned.clear_cache()
            batch = np.random.default_rng(number).normal(size=(rows, rows))
            power = 2 + number // EVERY % PROGRAMS
            if verify == "online":
                # Longer, so that a program is planned, switched and measured.
                power = 2 + number // (4 * EVERY) % 2
            state, loss = tuned(state, spread(batch.astype(np.float32)), power)
            # All have made the step before its loss is written down.
            value = float(loss)
            plans = max(plans, len(tuned.plans))
            if index == 0:
                with open(folder / "losses", "a") as file:
                    file.write(f"{number} {value.hex()}\n")
            if (number + 1) % EVERY == 0:
                kept = np.asarray(state.addressable_shards[0].data)
                np.save(folder / f"new.{index}.npy", kept)
                os.replace(
                    folder / f"new.{index}.npy", folder / f"{number + 1}.{index}.npy"
                )
                multihost_utils.sync_global_devices("written")
                memory.append(resident())
                if index == 0:
                    facts = {"step": number + 1, "memory": memory, "plans": plans}
                    # Whoever is killed while writing has left nothing to be read.
                    (folder / f"writing.{life}").write_text(json.dumps(facts))
                    (folder / f"writing.{life}").rename(folder / f"life.{life}")
    os._exit(0)


def resident():
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def newest(folder, count):
    """The last step whose state all have written."""
    found = {int(path.name.split(".")[0]) for path in folder.glob("[0-9]*.npy")}
    whole = [
        step
        for step in found
        if all((folder / f"{step}.{index}.npy").exists() for index in range(count))
    ]
    return max(whole, default=0)


def ended(folder, number):
    """True if the fault of a step has been there before; it comes once."""
    mark = folder / f"fault.{number}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def one(*arguments):
    try:
        train(*arguments)
    except InDoubtError as error:
        print(f"in doubt: {error}"[:300], file=sys.stderr, flush=True)
        os._exit(IN_DOUBT)
    except CalledAwayError:
        os._exit(CALLED_AWAY)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
        os._exit(5)


def lives(count, folder, steps, seed, mode, verify):
    """Starts the job again until it has come to its end; how each start ended."""
    context, found = multiprocessing.get_context("fork"), []
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = (count, port, folder, steps, seed, mode, len(found), verify)
        running = [
            context.Process(target=one, args=(index, *arguments))
            for index in range(count)
        ]
        for process in running:
            process.start()
        found.append(watched(running, folder))
        if found[-1] == "done" or found[-1] == "hangs":
            return found


def watched(running, folder):
    """Waits until all have ended, or one has not as it should, or nothing happens."""
    losses, last, at = folder / "losses", -1, time.monotonic()
    try:
        while True:
            codes = [process.exitcode for process in running]
            if all(code == 0 for code in codes):
                return "done"
            failed = [code for code in codes if code not in (None, 0)]
            if failed:
                return {IN_DOUBT: "in doubt", CALLED_AWAY: "ended", -9: "killed"}.get(
                    failed[0], f"failed {failed[0]}"
                )
            size = losses.stat().st_size if losses.exists() else 0
            if size != last:
                last, at = size, time.monotonic()
            if time.monotonic() - at > HANGS:
                return "hangs"
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
            process.join()


def losses_of(folder):
    """By step; a step that was made twice has the same loss both times, or is a set."""
    found = {}
    for line in (folder / "losses").read_text().splitlines():
        number, _, value = line.partition(" ")
        found.setdefault(int(number), set()).add(value)
    return found


def soak(steps, count, seed, verify):
    """Trains with faults and without; what came of it."""
    with tempfile.TemporaryDirectory() as place:
        plain, troubled = Path(place) / "plain", Path(place) / "troubled"
        plain.mkdir()
        troubled.mkdir()
        untuned = lives(count, plain, steps, seed, "off", verify)
        began = time.monotonic()
        starts = lives(count, troubled, steps, seed, "tune", verify)
        facts = [json.loads(p.read_text()) for p in troubled.glob("life.*")]
        # Every program is compiled once in the first rounds of a life.
        grown = [
            max(fact["memory"][PROGRAMS + 1 :]) - fact["memory"][PROGRAMS]
            for fact in facts
            if len(fact["memory"]) > PROGRAMS + 1
        ]
        faults = [fault_at(n, seed)[0] for n in range(EVERY, steps, EVERY)]
        return {
            "steps": steps,
            "processes": count,
            "untuned": untuned,
            "starts": starts,
            "faults": {name: faults.count(name) for name in FAULTS},
            "same losses": losses_of(plain) == losses_of(troubled),
            "plans at most": max((fact["plans"] for fact in facts), default=0),
            "bytes grown": grown,
            "seconds": round(time.monotonic() - began),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verify", choices=("model", "online"), default="model")
    chosen = parser.parse_args()
    print(json.dumps(soak(chosen.steps, chosen.processes, chosen.seed, chosen.verify)))
