"""One region as a process: a model with a known gradient, and what became of it.

It is told everything as JSON in its first argument and prints lines of JSON.
"""

import json
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")

from lagom_jax import regions  # noqa: E402


def main(told):
    exchange = regions.Exchange(
        told["meeting"], told["region"], patience=told.get("patience", 60.0)
    )
    outer = regions.cocodc(exchange, **told["outer"])
    size = told.get("size", 256)
    goal = jnp.linspace(-1, 1, size) + told["region"]
    params = {"a": jnp.zeros(size), "b": jnp.zeros(size)}

    @jax.jit
    def step(params, state, bad):
        params = jax.tree.map(lambda x: x - 0.05 * (x - goal) + bad, params)
        return outer.update(params, state)

    state = outer.init(params)
    kept = told.get("checkpoint")
    if told.get("resume"):
        with np.load(kept) as arrays:
            # numpy's format knows no bfloat16, and float32 holds all of it.
            leaves = [
                jnp.asarray(arrays[str(n)], leaf.dtype)
                for n, leaf in enumerate(jax.tree.leaves((params, state)))
            ]
        params, state = jax.tree.unflatten(jax.tree.structure((params, state)), leaves)
    joined = exchange.join(outer, params, state) if told.get("rejoin") else None
    if joined is not None:
        params, state = joined
    else:
        exchange.enter(outer, state)
    compiled = step.lower(params, state, jnp.zeros(())).compile()
    print(json.dumps({"begins": int(state.common.step)}), flush=True)
    sys.stdin.readline()
    longest, began = 0.0, time.monotonic()
    end = told["steps"] + (int(state.common.step) if joined is not None else 0)
    # Whoever is to be asked for its state does not end before it was.
    asked = not told.get("asked")
    while int(state.common.step) < end:
        now = int(state.common.step) + 1
        bad = jnp.asarray(np.nan if now == told.get("nan_at") else 0.0, jnp.float32)
        time.sleep(told.get("computes", 0.0))
        if now == told.get("hangs_at"):
            time.sleep(told["hangs_for"])
        before = time.monotonic()
        params, state = jax.block_until_ready(compiled(params, state, bad))
        longest = max(longest, time.monotonic() - before)
        if exchange.offer(outer, state) and not asked:
            asked, end = True, now + told["steps"]
        end = end if asked else now + 2
        if now == told.get("saves_at"):
            leaves = jax.tree.leaves((params, state))
            plain = [
                x.astype(jnp.float32) if x.dtype == "bfloat16" else x for x in leaves
            ]
            np.savez(kept, **{str(n): np.asarray(x) for n, x in enumerate(plain)})
        print(json.dumps({"step": now}), flush=True)
        if now == told.get("dies_at"):
            os._exit(9)
    spent = time.monotonic() - began
    loss = float(sum(jnp.mean((x - goal) ** 2) for x in params.values()))
    print(
        json.dumps(
            {
                "anchor": np.asarray(state.common.anchor["a"]).tolist()[:8],
                "sum": float(sum(x.sum() for x in state.common.anchor.values())),
                "loss": loss,
                "sent": np.asarray(state.common.sent).tolist(),
                "refused": int(state.own.refused),
                "no_answer": int(state.own.missed),
                "waits": exchange.waits,
                "waited_s": exchange.waited_s,
                "longest_s": longest,
                "seconds": spent,
            }
        ),
        flush=True,
    )
    exchange.close()
    time.sleep(0.2)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
