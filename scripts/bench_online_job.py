"""A job of real processes on CPUs that is planned for by the real compiler meanwhile.

    python scripts/bench_online_job.py [--processes N] [--steps N] [--turns N]

The same training runs with jax.jit and with `lagom_jax.tune(verify="online")`, in
turns, each in processes of its own that `jax.distributed` joins. It prints, for each
turn, how long the first step took, how long steps took while planning went on and
otherwise, how often the step's plan changed between two steps, and in the end whether
all losses were the same to the last bit. What is planned for is a cluster with a slow
network, so that there is something to plan. CPUs run a plan's program as they run any
other, so nothing is gained here; it is about the cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTH, LAYERS, ROWS, COMPILES = 512, 4, 16, 3


def train(way: str, index: int, count: int, port: int, steps: int, cache: str) -> None:
    """One process; prints what it saw as JSON."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    import lagom_jax
    from lagom_jax.planner import Budget

    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    mesh = jax.make_mesh((count,), ("data",))
    cut, whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("data",), ()))

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ jax.lax.with_sharding_constraint(weight, whole))
        return jnp.mean((x - 0.5) ** 2)

    def step(weights: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        new = [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]
        return new, value

    jitted = jax.jit(step, donate_argnums=0, out_shardings=([cut] * LAYERS, whole))
    run = jitted
    if way == "online":
        run = lagom_jax.tune(
            jitted,
            verify="online",
            cluster=f"a40-nvlink:2x{count // 2}",
            cache=cache,
            budget=Budget(compiles=COMPILES),
        )
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    make = jax.jit(
        lambda key, rows: jax.random.normal(key, (rows, WIDTH)) / WIDTH**0.5,
        static_argnums=1,
        out_shardings=cut,
    )
    weights = [make(key, WIDTH) for key in keys[1:]]
    batch = make(keys[0], ROWS * count)
    jax.block_until_ready((weights, batch))
    times: list[float] = []
    losses: list[str] = []
    planning: list[int] = []
    switches: list[int] = []
    taken = 0
    plans: tuple[Any, ...] = ()
    for number in range(steps):
        # The process that has planned stays, and does nothing until it is asked.
        before, taken = taken, used(str(os.getpid())) if index == 0 else 0
        if taken > before:
            planning.append(number)
        start = time.perf_counter()
        weights, value = run(weights, batch)
        losses.append(float(value).hex())
        times.append(time.perf_counter() - start)
        if (now := getattr(run, "plans", ())) != plans:
            plans = now
            switches.append(number)
    found = {"times": times, "losses": losses, "planning": planning}
    found["switches"] = switches
    print(json.dumps(found), flush=True)
    os._exit(0)


def used(process: str) -> int:
    """Ticks of the processor that a process's children have taken, and theirs."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2]
                total += sum(map(int, fields.split()[11:13])) + used(child)
    return total


def job(way: str, count: int, steps: int, cache: str) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, __file__, "--way", way, "--cache", cache]
    more = [*map(str, ("--processes", count, "--port", port, "--steps", steps))]
    running = [
        subprocess.Popen(
            [*command, "--index", str(index), *more],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    said = [process.communicate()[0] for process in running]
    lines = [
        next(line for line in one.splitlines() if line.startswith('{"')) for one in said
    ]
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="What tuning beside a job costs it.")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--way")
    parser.add_argument("--cache", default="")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    if asked.way:
        train(
            *(asked.way, asked.index, asked.processes, asked.port, asked.steps),
            asked.cache,
        )
    losses: set[tuple[str, ...]] = set()
    for turn in range(asked.turns):
        for way in ("jit", "online"):
            with tempfile.TemporaryDirectory() as cache:
                found = job(way, asked.processes, asked.steps, cache)
            losses |= {tuple(one["losses"]) for one in found}
            times, planning = found[0]["times"], set(found[0]["planning"])
            parts = [
                [t for n, t in enumerate(times) if n > 1 and (n in planning) is there]
                for there in (True, False)
            ]
            beside, alone = (
                f"{1e3 * statistics.median(part):.2f} ms in {len(part)}"
                if part
                else "-"
                for part in parts
            )
            print(
                f"turn {turn}, {way}: first step {times[0]:.2f} s, second "
                f"{1e3 * times[1]:.1f} ms, median beside planning {beside}, without "
                f"{alone}; {len(found[0]['switches'])} switches, at the same steps in "
                f"all processes: {len({tuple(one['switches']) for one in found}) == 1}",
                flush=True,
            )
    print(f"losses of all processes and ways the same: {len(losses) == 1}")


if __name__ == "__main__":
    main()
