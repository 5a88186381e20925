"""One process of a region that is several: parameters cut over all of its devices.

It is told everything as JSON in its first argument and prints lines of JSON.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")

from lagom_jax import regions  # noqa: E402

SPEC = jax.P("fsdp")


def main(told):
    jax.config.update("jax_num_cpu_devices", 2)
    if told["processes"] > 1:
        jax.distributed.initialize(
            *(told["coordinator"], told["processes"], told["process"]),
            initialization_timeout=60,
        )
    axis = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2 * told["processes"],), ("fsdp",), axis_types=axis)
    exchange = regions.Exchange(
        told["meeting"],
        told["region"],
        patience=told.get("patience", 60.0),
        process=told["process"],
        processes=told["processes"],
    )
    whole = regions.cocodc(exchange, within=("fsdp",), **told["outer"])
    outer = regions.sharded(whole, mesh, SPEC)
    cut = jax.NamedSharding(mesh, SPEC)
    size = told["size"]

    def laid_out(values):
        return jax.make_array_from_callback(values.shape, cut, lambda at: values[at])

    goal = laid_out(np.linspace(-1, 1, size, dtype=np.float32) + told["region"])
    params = {k: laid_out(np.zeros(size, np.float32)) for k in ("a", "b")}

    @jax.jit
    def step(params, state, goal):
        params = jax.tree.map(lambda x: x - 0.05 * (x - goal), params)
        return outer.update(params, state)

    state = outer.init(params)
    joined = exchange.join(outer, params, state) if told.get("rejoin") else None
    if joined is None:
        exchange.enter(outer, state)
    else:
        params, state = joined
    begins = int(state.common.step)
    print(json.dumps({"begins": begins}), flush=True)
    asked, end = not told.get("asked"), begins + told["steps"]
    while int(state.common.step) < end:
        params, state = jax.block_until_ready(step(params, state, goal))
        now = int(state.common.step)
        print(json.dumps({"step": now}), flush=True)
        if exchange.offer(outer, state):
            asked = True
            end = now + told["steps"]
        end = end if asked else now + 2
        if now == told.get("dies_at"):
            os._exit(9)
    total = jax.jit(lambda tree: sum(jnp.sum(x) for x in jax.tree.leaves(tree)))
    mine = [s.data.tolist() for s in state.common.anchor["a"].addressable_shards]
    print(
        json.dumps(
            {
                "mine": mine,
                "sum": float(total(state.common.anchor)),
                "step": int(state.common.step),
                "sent": np.asarray(state.common.sent).tolist(),
                "missed": int(state.own.missed),
            }
        ),
        flush=True,
    )
    exchange.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
