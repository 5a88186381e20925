"""Steps to equal loss of strategies for regions, on a small language model.

`python scripts/regions_experiment.py run OUT.jsonl` trains a byte-level transformer on
the texts of Python's own documentation (`pydoc_data.topics`, which comes with Python)
in four regions, each with a quarter of the text; `... table OUT.jsonl` prints what
docs/how-to/regions.md says of it. What is in the file already is not run again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from lagom_jax import regions
from lagom_jax.regions.placing import state_axes

REGIONS, BATCH, SEQUENCE, STEPS, EVERY, SEEDS = 4, 4, 32, 360, 10, 5
WIDTH, HEADS, LAYERS, FRAGMENTS, BYTES = 32, 2, 4, 3, 128
RATE, WARMUP, LINK_USE = 3e-3, 30, 0.9
# Period and delay in inner steps.
SETTINGS = ((60, 6), (24, 2), (24, 6))
EVALUATED = 64


class Case(NamedTuple):
    """One strategy in one setting."""

    name: str
    period: int
    delay: int

    def outer(self) -> Any:
        """The outer optimiser; None where gradients are averaged in every step."""
        shape: dict[str, Any] = {
            "period": self.period,
            "fragments": FRAGMENTS,
            "delay": self.delay,
        }
        full: dict[str, Any] = {
            **shape,
            "link_use": LINK_USE,
            "inner_learning_rate": RATE,
            "bits": 4,
        }
        often = regions.Cadence.adaptive_within(
            self.period or 1, FRAGMENTS if self.period else 1, self.delay, LINK_USE
        )
        made = {
            "DiLoCo": lambda: regions.diloco("region", period=self.period),
            "streaming": lambda: regions.streaming("region", **shape),
            "streaming, as often": lambda: regions.streaming(
                "region", **{**shape, "period": FRAGMENTS * often.interval}
            ),
            "CoCoDC": lambda: regions.cocodc("region", **full),
            "without compensation": lambda: regions.cocodc(
                "region", **full, compensation=0.0
            ),
            "without second order": lambda: regions.cocodc(
                "region", **full, compensation=1e-9
            ),
            "without adaptive": lambda: regions.cocodc(
                "region", **full, adaptive=False
            ),
        }
        return made[self.name]() if self.name in made else None


def cases() -> Iterator[Case]:
    yield Case("data parallel", 0, 0)
    for period, delay in SETTINGS:
        for name in (
            *("streaming", "CoCoDC", "without compensation", "without adaptive"),
            *("streaming, as often", "without second order"),
        ):
            yield Case(name, period, delay)
    for period in sorted({period for period, _ in SETTINGS}):
        yield Case("DiLoCo", period, 0)


def text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and bytes held out."""
    whole = "\n".join(topics[name] for name in sorted(topics)).encode(
        "ascii", "replace"
    )
    tokens = np.frombuffer(whole, np.uint8)
    # Pages in turn, so that what is held out is of all kinds.
    pages = tokens[: len(tokens) // 4096 * 4096].reshape(-1, 4096)
    held = np.arange(len(pages)) % 16 == 7
    return pages[~held].reshape(-1), pages[held].reshape(-1)


def initial(key: jax.Array) -> dict[str, Any]:
    keys = iter(jax.random.split(key, 8))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[-2])

    return {
        "embedding": 0.3 * normal(BYTES, WIDTH),
        "place": 0.1 * normal(SEQUENCE, WIDTH),
        "layers": {
            "qkv": normal(LAYERS, WIDTH, 3 * WIDTH),
            "out": normal(LAYERS, WIDTH, WIDTH) / np.sqrt(2 * LAYERS),
            "up": normal(LAYERS, WIDTH, 4 * WIDTH),
            "down": normal(LAYERS, 4 * WIDTH, WIDTH) / np.sqrt(2 * LAYERS),
            "scale": jnp.ones((LAYERS, 2, WIDTH)),
        },
        "last": jnp.ones(WIDTH),
        "head": normal(WIDTH, BYTES),
    }


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * scale * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def loss_of(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embedding"][inputs] + params["place"]
    mask = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        parts = (norm(x, w["scale"][0]) @ w["qkv"]).reshape(
            *x.shape[:2], 3, HEADS, WIDTH // HEADS
        )
        q, k, v = jnp.moveaxis(parts, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape)
        x = x + mixed @ w["out"]
        return x + jax.nn.gelu(norm(x, w["scale"][1]) @ w["up"]) @ w["down"], None

    x, _ = lax.scan(layer, x, params["layers"])
    logits = norm(x, params["last"]) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def make_run(case: Case) -> Any:
    """The losses on held-out text, every few steps, as a function of the seed."""
    trained, held = text()
    shards = jnp.asarray(trained[: len(trained) // REGIONS * REGIONS])
    shards = shards.reshape(REGIONS, -1)
    starts = np.linspace(0, len(held) - SEQUENCE - 1, EVALUATED).astype(int)
    test = jnp.asarray(np.stack([held[s : s + SEQUENCE + 1] for s in starts]), int)
    rate = optax.schedules.linear_schedule(0.0, RATE, WARMUP)
    inner = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1)
    )
    outer = case.outer()
    axes = state_axes() if outer else 0

    def one(params: Any, moments: Any, state: Any, shard: jax.Array, key: jax.Array):
        begin = jax.random.randint(key, (BATCH,), 0, shard.size - SEQUENCE - 1)
        rows = begin[:, None] + jnp.arange(SEQUENCE + 1)
        gradient = jax.grad(loss_of)(params, shard[rows].astype(int))
        if outer is None:
            gradient = lax.pmean(gradient, "region")
        change, moments = inner.update(gradient, moments, params)
        params = optax.apply_updates(params, change)
        if outer is not None:
            params, state = outer.update(params, state)
        return params, moments, state

    together = jax.vmap(
        one, axis_name="region", in_axes=(0, 0, axes, 0, 0), out_axes=(0, 0, axes)
    )

    def run(seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.key(seed)
        params = initial(key)
        world = jax.tree.map(lambda x: jnp.stack([x] * REGIONS), params)
        moments = jax.vmap(inner.init)(world)
        state: Any = jnp.zeros(REGIONS)
        if outer is not None:
            state = jax.vmap(outer.init, axis_name="region", out_axes=axes)(world)

        def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
            keys = jax.random.split(jax.random.fold_in(key, number + 1), REGIONS)
            params, moments, outer_state = carry
            return together(params, moments, outer_state, shards, keys), None

        def stretch(carry: Any, first: jax.Array) -> tuple[Any, jax.Array]:
            carry, _ = lax.scan(step, carry, first + jnp.arange(EVERY))
            shown = (
                carry[2].common.anchor
                if outer is not None
                else jax.tree.map(lambda x: x[0], carry[0])
            )
            return carry, loss_of(shown, test)

        carry = (world, moments, state)
        carry, losses = lax.scan(stretch, carry, jnp.arange(0, STEPS, EVERY))
        sent = carry[2].common.sent if outer is not None else jnp.zeros(FRAGMENTS, int)
        return losses, sent

    return jax.jit(run)


def run_all(path: Path) -> None:
    done = (
        {(row["case"], row["seed"]) for row in rows(path)} if path.exists() else set()
    )
    for case in cases():
        label = list(case)
        missing = [s for s in range(SEEDS) if (tuple(label), s) not in done]
        if not missing:
            continue
        run = make_run(case)
        for seed in missing:
            began = time.process_time()
            losses, sent = jax.block_until_ready(run(seed))
            row = {
                "case": label,
                "seed": seed,
                "losses": [round(float(x), 5) for x in losses],
                "sent": np.asarray(sent).tolist(),
            }
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            spent = time.process_time() - began
            print(f"{label} {seed}: {row['losses'][-1]:.4f}, {spent:.0f} s", flush=True)


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**row, "case": tuple(row["case"])} for row in found]


def smoothed(losses: list[float]) -> np.ndarray:
    """Each the mean with its neighbours, and then the lowest so far."""
    padded = np.pad(np.array(losses), 1, mode="edge")
    return np.minimum.accumulate((padded[:-2] + padded[1:-1] + padded[2:]) / 3)


def steps_to(losses: list[float], target: float) -> float:
    """The step at which a loss is first reached, between two evaluations."""
    curve = smoothed(losses)
    reached = np.flatnonzero(curve <= target)
    if not reached.size:
        return float("nan")
    at = int(reached[0])
    if at == 0:
        return float(EVERY)
    part = (curve[at - 1] - target) / (curve[at - 1] - curve[at])
    return float((at + part) * EVERY)


def aimed_at(losses: list[float]) -> float:
    return float(smoothed(losses)[len(losses) * 4 // 5 - 1])


def table(path: Path) -> None:
    """Steps to a loss over those of Streaming DiLoCo, mean and deviation of the seeds.

    The loss is what Streaming DiLoCo has after four fifths of its steps, seed by seed.
    """
    curves: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    sends: dict[tuple[Any, ...], float] = {}
    for row in rows(path):
        curves.setdefault(row["case"], {})[row["seed"]] = row["losses"]
        sends[row["case"]] = sum(row["sent"]) / STEPS
    print("| period | delay | strategy | sends in a period | steps to equal loss |")
    print("|--:|--:|---|--:|--:|")
    for period, delay in SETTINGS:
        base = curves.get(("streaming", period, delay), {})
        for case, seeds in curves.items():
            mine = case[1:] == (period, delay) or (
                case[0] == "DiLoCo" and case[1] == period
            )
            if not (mine or case[0] == "data parallel"):
                continue
            shares: list[float] = []
            for seed in sorted(set(base) & set(seeds)):
                target = aimed_at(base[seed])
                own = steps_to(base[seed], target)
                shares.append(steps_to(seeds[seed], target) / own)
            reached = [share for share in shares if share == share]
            if len(reached) < len(shares) or not shares:
                final = [
                    seeds[s][-1] - base[s][-1] for s in sorted(set(base) & set(seeds))
                ]
                said = (
                    f"reached by {len(reached)} of {len(shares)}; final loss "
                    f"{statistics.mean(final):+.3f}"
                )
            else:
                spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
                said = f"{statistics.mean(shares):.3f} ± {spread:.3f}"
            count = sends[case] * period
            print(f"| {period} | {delay} | {case[0]} | {count:.1f} | {said} |")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("run", "table"):
        sys.exit(__doc__)
    {"run": run_all, "table": table}[sys.argv[1]](Path(sys.argv[2]))
