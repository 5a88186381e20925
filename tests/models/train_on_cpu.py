"""Trains a tiny model on 8 virtual CPU devices and prints its losses as JSON.

Run by test_training.py in a process of its own, because the number of devices must be
known before jax starts: `train_on_cpu.py MODEL PARALLELISM SCAN STEPS`.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp

import lagom_models

# The same 16 sequences for everyone, however many there are to a micro batch.
SIZES: dict[str, dict[str, int]] = {
    "dp": {"batch": 2},
    "fsdp": {"batch": 2},
    "ep": {"batch": 2, "model_axis": 4},
    "pp": {"batch": 1, "model_axis": 4, "micro_batches": 8},
}


def losses(name: str, parallelism: str, *, scan: bool, steps: int) -> list[float]:
    step = lagom_models.build(
        name,
        devices=8,
        parallelism=parallelism,
        tiny=True,
        scan=scan,
        learning_rate=3e-3,
        **SIZES.get(parallelism, {"batch": 8, "model_axis": 4}),
    )
    shape, axes = tuple(step.mesh.shape.values()), step.mesh.axis_names
    mesh = jax.make_mesh(shape, axes, axis_types=step.mesh.axis_types)
    state, tokens = step.initialise(mesh)
    # Random words cannot be predicted, but the same batch can be remembered.
    found = []
    for _ in range(steps):
        state, loss = step.function(state, tokens)
        found.append(float(loss))
    for leaf in jax.tree.leaves(state.weights):
        assert leaf.dtype == jnp.float32
        assert bool(jnp.isfinite(leaf).all())
    return found


if __name__ == "__main__":
    name, parallelism, scan, steps = sys.argv[1:]
    print(json.dumps(losses(name, parallelism, scan=scan == "scan", steps=int(steps))))
