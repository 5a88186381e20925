"""Figures of `lagom_jax.regions`: each prints a table of docs/how-to/regions.md.

- `bandwidth`: needed bandwidth of 1B, 10B and 100B parameters beside the published;
- `overhead`: seconds of `update` on a step without an exchange, and with one;
- `memory`: what each strategy keeps, predicted and measured;
- `quadratic`: error of a late fragment on a quadratic, compensated and not;
- `schedule`: link use and the longest time unsent, under random link times;
- `link`: waiting steps of two processes over a shaped link between network namespaces.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lagom_jax import regions
from lagom_jax.errors import RegionError
from lagom_jax.regions.bandwidth_table import entries
from lagom_jax.regions.choice import choose
from lagom_jax.regions.volume import kept_bytes

STEP_SECONDS = 0.05
ROOT = Path(__file__).parents[1]
PEER = ROOT / "tests" / "regions" / "peer.py"


def bandwidth() -> None:
    """Gbit/s, predicted over published in brackets."""
    rows: dict[tuple[str, str], list[str]] = {}
    worst = 0.0
    for entry in entries():
        row = rows.setdefault((entry.method, entry.model), [])
        row.append(f"{entry.predicted:.3g} ({entry.ratio:.2f})")
        worst = max(worst, abs(entry.ratio - 1))
    print("| method | model | 50 % | 80 % | 90 % | 95 % | 99 % |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for (method, model), row in rows.items():
        print(f"| {method} | {model} | {' | '.join(row)} |")
    print(f"\nThe furthest from what was published: {worst:.0%}")


def model(scale: int) -> dict[str, Any]:
    return {
        "embedding": jnp.ones((256, scale)),
        "layers": {"w": jnp.ones((12, scale, scale)), "b": jnp.ones((12, scale))},
    }


def strategies(axis: str | None) -> dict[str, Any]:
    shape: dict[str, Any] = {"period": 100, "fragments": 4, "delay": 5}
    return {
        "diloco": regions.diloco(axis, period=100),
        "streaming": regions.streaming(axis, **shape),
        "cocodc": regions.cocodc(axis, **shape),
    }


def overhead() -> None:
    """Milliseconds of `update` alone, in place, on this machine's CPU."""
    params = model(1024)
    size = sum(x.size for x in jax.tree.leaves(params))
    print(f"{size / 1e6:.1f} million parameters; a step is taken to last 50 ms\n")
    print("| strategy | without an exchange | of a step | with a send |")
    print("|---|--:|--:|--:|")
    for name, outer in strategies(None).items():
        update = jax.jit(outer.update, donate_argnums=(0, 1))
        # Each argument is donated, and so none may be another's buffer.
        here = jax.tree.map(jnp.copy, params)
        state = jax.jit(outer.init)(here)
        idle, busy = [], []
        for step in range(1, 2 * outer.cadence.interval + 2):
            began = time.perf_counter()
            here, state = jax.block_until_ready(update(here, state))
            taken = time.perf_counter() - began
            if outer.cadence.sends_after(step):
                busy.append(taken)
            elif step > 1 and not outer.cadence.arrives_after(step):
                idle.append(taken)
        quiet = float(np.median(idle))
        print(
            f"| {name} | {quiet * 1e3:.3f} ms | {quiet / STEP_SECONDS:.2%} | "
            f"{min(busy) * 1e3:.0f} ms |"
        )


def memory() -> None:
    """Bytes of the state of one region."""
    params = model(256)
    size = sum(x.size for x in jax.tree.leaves(params))
    print(f"{size / 1e6:.2f} million parameters\n")
    print("| strategy | bits | predicted | measured | over the parameters |")
    print("|---|--:|--:|--:|--:|")
    for name, outer in strategies(None).items():
        state = outer.init(params)
        measured = sum(x.nbytes for x in jax.tree.leaves(state))
        predicted = kept_bytes(
            size,
            bits=outer.strategy.bits,
            fragment=max(regions.Fragments.of(params, outer.cadence.fragments).sizes),
            in_flight=outer.cadence.in_flight,
            compensated=bool(outer.strategy.compensation),
        )
        print(
            f"| {name} | {outer.strategy.bits} | {predicted / 1e6:.3f} MB | "
            f"{measured / 1e6:.3f} MB | {measured / 4 / size:.2f} |"
        )


def quadratic() -> None:
    """Distance from what would be had the fragment not been late, over 1000 points."""
    rate, curvature, delay = 0.05, 1.0, 5
    rng = np.random.default_rng(0)
    local = rng.normal(1.0, 0.3, 1000)
    together = local + rng.normal(0.0, 0.2, 1000)
    keep = (1 - rate * curvature) ** delay
    ideal = together * keep
    errors = {"as it is": np.abs(together - ideal)}
    errors["half and half with its own"] = np.abs(
        0.5 * local * keep + 0.5 * together - ideal
    )
    for name, strength in (("first order", 1e-12), ("second order", None)):
        # Matched to the curvature where the local value is 1.
        drift = (keep - 1) / delay
        matched = (1 - keep) * rate / (delay * drift**2)
        value = landed(local, together, rate, curvature, delay, strength or matched)
        errors[name] = np.abs(value - ideal)
    theory = (1 - keep) * np.abs(together)
    first = (1 - keep) * np.abs(together - local)
    print("| late fragment | mean error | in theory |")
    print("|---|--:|--:|")
    said = {"as it is": theory, "first order": first}
    for name, error in errors.items():
        expected = f"{said[name].mean():.5f}" if name in said else ""
        print(f"| {name} | {error.mean():.5f} | {expected} |")


def landed(
    local: np.ndarray,
    together: np.ndarray,
    rate: float,
    curvature: float,
    delay: int,
    strength: float,
) -> np.ndarray:
    """A region's value after a fragment arrived, by the optimiser itself.

    The other region's message is such that the global value becomes `together`.
    """
    outer = regions.cocodc(
        "region",
        period=delay + 1,
        fragments=1,
        delay=delay,
        outer_learning_rate=1.0,
        momentum=0.0,
        mixing=0.0,
        compensation=strength,
        inner_learning_rate=rate,
        adaptive=False,
        bits=32,
    )
    world = jnp.asarray(np.stack([local, 2 * together - local]), jnp.float32)
    axes = regions.state_axes()
    state = jax.vmap(outer.init, axis_name="region", out_axes=axes)(0 * world)
    update = jax.jit(
        jax.vmap(
            outer.update, axis_name="region", in_axes=(0, axes), out_axes=(0, axes)
        )
    )
    for step in range(1, 2 * delay + 2):
        # Sent after step delay + 1, which is where these values are.
        if step > delay + 1:
            world = world - rate * curvature * world
        world, state = update(world, state)
    return np.asarray(world[0])


def schedule() -> None:
    """Link use in shares of the time, and steps unsent in shares of the period."""
    chance = random.Random(0)
    worst_use = worst_gap = 0.0
    count = refused = 0
    while count < 200:
        period, fragments = chance.randint(8, 200), chance.randint(1, 8)
        takes, use = chance.uniform(0, 20), chance.uniform(0.1, 1.0)
        try:
            cadence = regions.Cadence.adaptive_within(
                period, fragments, int(takes) + 1, use, takes
            )
        except RegionError:
            refused += 1
            continue
        count += 1
        used, gap = simulated(cadence, takes, chance.randint(0, 10**6))
        worst_use, worst_gap = max(worst_use, used / use), max(worst_gap, gap / period)
    print(f"{count} random links and periods; {refused} more were refused beforehand")
    print(f"link use over its share, the most: {worst_use:.3f}")
    print(f"longest time unsent over the period, the most: {worst_gap:.3f}")


def simulated(cadence: Any, takes: float, seed: int) -> tuple[float, int]:
    """The link's use and the longest time unsent, with random rates of change."""
    rng = np.random.default_rng(seed)
    last = np.zeros(cadence.fragments, int)
    air: list[tuple[int, int]] = []
    busy, longest, steps = 0.0, 0, 6 * cadence.period
    decide = jax.jit(lambda *a: choose(cadence, *a))
    for step in range(cadence.interval, steps + 1, cadence.interval):
        air = [(at, p) for at, p in air if at + cadence.delay > step]
        flying = np.isin(np.arange(cadence.fragments), [p for _, p in air])
        rates = rng.exponential(size=cadence.fragments).astype(np.float32)
        p = int(decide(step, jnp.asarray(last), jnp.asarray(rates), flying))
        longest = max(longest, step - int(last[p]))
        last[p] = step
        air.append((step, p))
        busy += takes
    longest = max(longest, *(steps - int(x) for x in last))
    return busy / steps, longest


def link() -> None:
    """Two processes, in namespaces of their own, with 8 Mbit/s between them."""
    names = ("lagomA", "lagomB")
    cleanup = [["ip", "netns", "del", name] for name in names]
    try:
        make_link(names, "8mbit")
    except (OSError, subprocess.CalledProcessError) as error:
        for words in cleanup:
            subprocess.run(words, check=False, capture_output=True)
        sys.exit(f"no network namespaces here: {error}")
    try:
        print(
            "| delay | a send takes | arrivals that were waited for | waited in all |"
        )
        print("|--:|--:|--:|--:|")
        for delay in (6, 1):
            print(over_link(names, delay))
    finally:
        for words in cleanup:
            subprocess.run(words, check=False)


def make_link(names: tuple[str, str], rate: str) -> None:
    """Two namespaces, and a shaped link between them."""
    one, other = names
    commands = [
        f"ip netns add {one}",
        f"ip netns add {other}",
        f"ip link add lagv0 netns {one} type veth peer name lagv1 netns {other}",
    ]
    for name, end, address in ((one, "lagv0", 1), (other, "lagv1", 2)):
        inside = f"ip netns exec {name}"
        commands += [
            f"{inside} ip addr add 10.77.0.{address}/24 dev {end}",
            f"{inside} ip link set {end} up",
            f"{inside} ip link set lo up",
            f"{inside} tc qdisc add dev {end} root tbf rate {rate} burst 16kb "
            "latency 2s",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)


def over_link(names: tuple[str, str], delay: int, steps: int = 60) -> str:
    """A row of the table: what two regions waited for."""
    size, computes = 100_000, 0.1
    told = {
        "steps": steps,
        "size": size,
        "computes": computes,
        "meeting": "10.77.0.1:12911",
        "outer": {
            "period": 20,
            "fragments": 2,
            "delay": delay,
            "adaptive": False,
            "bits": 8,
        },
    }
    words = ["--listen", "10.77.0.1:12911", "--regions", "2"]
    enter = ["ip", "netns", "exec"]
    meeting = subprocess.Popen(
        [
            *enter,
            names[0],
            sys.executable,
            "-m",
            "lagom_jax",
            "regions",
            "meet",
            *words,
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        peers = [
            subprocess.Popen(
                [*enter, name, sys.executable, str(PEER), json.dumps(one)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for region, name in enumerate(names)
            for one in [{**told, "region": region}]
        ]
        for peer in peers:
            assert peer.stdout is not None
            peer.stdout.readline()
        results = []
        for peer in peers:
            assert peer.stdin is not None
            peer.stdin.write("go\n")
            peer.stdin.flush()
        for peer in peers:
            out, _ = peer.communicate(timeout=300)
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        meeting.terminate()
        meeting.wait()
    takes = size * (1 + 2 / 64) / 1e6
    arrivals = sum(results[0]["sent"]) * 2
    waits = sum(one["waits"] for one in results)
    waited = sum(one["waited_s"] for one in results)
    return (
        f"| {delay} steps of {computes} s | {takes:.2f} s | {waits} of {arrivals} | "
        f"{waited:.2f} s |"
    )


COMMANDS: dict[str, Callable[[], None]] = {
    "bandwidth": bandwidth,
    "overhead": overhead,
    "memory": memory,
    "quadratic": quadratic,
    "schedule": schedule,
    "link": link,
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    jax.config.update("jax_platforms", "cpu")
    COMMANDS[sys.argv[1]]()
