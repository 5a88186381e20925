"""Trains tiny models on 8 virtual CPU devices and writes down what happened.

Run by test_training.py in a process of its own, because the number of devices must be
known before jax starts. Each line that comes in is a JSON list, MODEL, PARALLELISM, LOOP,
STEPS, FILE.npz; a line goes out when the file is written.
"""

import json
import os
import sys
from typing import Any

# Tests that read this file are of another process, whose flags stay as they are.
if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=8"
        # Compiling takes longer than running.
        " --xla_backend_optimization_level=1"
    )

import jax
import jax.numpy as jnp
import numpy as np

import lagom_models
from tests.models.beginnings import Beginnings

# The same 16 sequences for everyone, however many there are to a micro batch.
SIZES: dict[str, dict[str, Any]] = {
    "dp": {"batch": 2},
    "fsdp": {"batch": 2},
    "ep": {"batch": 2, "model_axis": 4},
    "pp": {"batch": 1, "model_axis": 4, "micro_batches": 8},
    "tp-sp x pp": {
        "parallelism": "tp-sp",
        "batch": 1,
        "model_axis": 2,
        "stage_axis": 2,
        "micro_batches": 8,
    },
    "tp x ep": {"parallelism": "tp", "batch": 4, "model_axis": 2, "experts_axis": 2},
    "ep x pp": {
        "parallelism": "ep",
        "batch": 2,
        "model_axis": 2,
        "stage_axis": 2,
        "micro_batches": 2,
    },
}


BEGIN = Beginnings()


def train(
    name: str, parallelism: str, *, scan: bool, steps: int
) -> dict[str, np.ndarray]:
    sizes = SIZES.get(parallelism, {"batch": 8, "model_axis": 4})
    step = lagom_models.build(
        name,
        devices=8,
        tiny=True,
        scan=scan,
        sequence=16,
        learning_rate=3e-3,
        # Room for every token, so that no two ways to group tokens drop others.
        capacity_factor=8.0,
        **{"parallelism": parallelism, **sizes},
    )
    shape, axes = tuple(step.mesh.shape.values()), step.mesh.axis_names
    mesh = jax.make_mesh(shape, axes, axis_types=step.mesh.axis_types)
    # Random words cannot be predicted, but the same batch can be remembered.
    # Pairs make it themselves by day, too: on every layout it is the same.
    begin = (
        step.initialise(mesh) if " x " in parallelism else BEGIN.on(mesh, name, step)
    )
    state, tokens = begin
    state, loss = step.function(state, tokens)
    # After one step, adamw's first moment is a tenth of the gradient.
    moment = jax.tree_util.tree_leaves_with_path(state.optimizer[0].mu)
    found = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in moment}
    losses = [float(loss)]
    for _ in range(steps - 1):
        state, loss = step.function(state, tokens)
        losses.append(float(loss))
    for leaf in jax.tree.leaves(state.weights):
        assert leaf.dtype == jnp.float32
        # On the device each shape would be a program to compile.
        assert np.isfinite(np.asarray(leaf)).all()
    return {"losses": np.array(losses), **found}


if __name__ == "__main__":
    BEGIN.shared = sys.argv[1:] != ["nightly"]
    for line in sys.stdin:
        model, way, loop, count, path = json.loads(line)
        np.savez(path, **train(model, way, scan=loop == "scanned", steps=count))
        print("trained", flush=True)
