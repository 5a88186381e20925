"""Trains a tiny model, plain, fused or in slices, on 8 virtual CPU devices.

In a process of its own, because the number of devices must be known before jax starts.
Each line that comes in is a JSON list, WAY, STEPS, HOW; a line goes out with the losses
and a digest of what was trained.
"""

import hashlib
import json
import os
import sys

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=8"
        # Compiling takes longer than running; as in train_on_cpu.py, for one program is
        # that of both.
        " --xla_backend_optimization_level=1"
    )

import jax
import numpy as np

import lagom_models
from lagom_jax import decompose
from tests.models.beginnings import Beginnings

WAYS = {
    "plain": ("tp", {}),
    "sliced": ("tp", {}),
    "half batches": ("tp", {}),
    "commfuse": ("tp", {"tp": "commfuse"}),
    "commfuse-sp": ("tp-sp", {"sp": "commfuse"}),
}


BEGIN = Beginnings()


def train(way: str, steps: int, how: str) -> dict[str, object]:
    parallelism, options = WAYS[way]
    step = lagom_models.build(
        "llama-3-8b",
        devices=8,
        parallelism=parallelism,
        tiny=True,
        batch=8,
        sequence=32,
        model_axis=4,
        learning_rate=3e-3,
        remat=how == "remat",
        **options,
    )
    shape, axes = tuple(step.mesh.shape.values()), step.mesh.axis_names
    mesh = jax.make_mesh(shape, axes, axis_types=step.mesh.axis_types)
    function = step.function
    if way == "sliced":
        function = decompose.sliced(function, slices=2)
    if way == "half batches":
        function = decompose.half_batch_loops(function)
    state, tokens = BEGIN.on(mesh, "llama-3-8b", step)
    if how == "exact":
        exactly = {"xla_allow_excess_precision": False}
        function = function.lower(state, tokens).compile(exactly)
    losses = []
    for _ in range(steps):
        state, loss = function(state, tokens)
        losses.append(float(loss))
    digest = hashlib.sha256()
    for part in jax.tree.leaves(state):
        digest.update(np.asarray(part).tobytes())
    return {"losses": losses, "state": digest.hexdigest()}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(train(*json.loads(line))), flush=True)
