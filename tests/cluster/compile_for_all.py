"""Compiles one small sharded step for 16 GPUs of every system; prints a JSON line each.

Run as a program, in a process of its own: XLA ends the process on a bad target. What it
compiles is kept with all that the compiler was told, so that another target, however
little it differs, is compiled for anew.
"""

import json
import os
import re
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import jaxlib
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.xla_client import XlaComputation

from lagom_jax.cluster import Cluster, target_config, topology
from lagom_jax.compile import Compiler, compile_step, lower

WIDTH, LAYERS, ROWS = 1024, 2, 4096


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for shard in weights:
        x = jnp.tanh(x @ jax.lax.all_gather(shard, "data", tiled=True))
    return jax.lax.pmean(jnp.mean(x.astype(jnp.float32) ** 2), "data")


def main(compiler: Compiler) -> None:
    mesh = AbstractMesh((16,), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, P("data"))
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16, sharding=split)
    x = jax.ShapeDtypeStruct((16 * ROWS, WIDTH), jnp.bfloat16, sharding=split)
    step = jax.shard_map(
        jax.value_and_grad(loss),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=(P(), P("data")),
    )
    lowered = lower(step, [weight] * LAYERS, x)
    for name in Cluster.names():
        gpus = Cluster.parse(name).gpus_per_host
        cluster = Cluster.parse(f"{name}:{16 // gpus}x{gpus}")
        described = topologies.get_topology_desc(
            platform="cuda",
            topology=topology(cluster),
            target_config=target_config(cluster.gpu, jaxlib.__version__),
        )
        done = compile_step(lowered, cluster, compiler=compiler)
        text = XlaComputation(done.module_bytes).get_hlo_module().to_string()
        collective = r"= .* (?:all-gather|all-reduce|reduce-scatter)(?:-start)?\("
        async_pair = r'(?:-start\(|async-start\().*"is_sync":false'
        print(
            json.dumps(
                {
                    "system": name,
                    "devices": len(described.devices),
                    "device_kind": described.devices[0].device_kind,
                    "scheduled": "is_scheduled=true" in text,
                    "collectives": len(re.findall(collective, text)),
                    "asynchronous": len(re.findall(async_pair, text)),
                }
            )
        )


if __name__ == "__main__":
    with Compiler() as started:
        main(started)
