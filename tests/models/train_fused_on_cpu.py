"""Trains a tiny model on 8 virtual CPU devices: `train_fused_on_cpu.py WAY STEPS HOW`.

HOW is `remat`, or `exact`: nothing is computed again, and no fusion may leave out a
rounding to bfloat16. Run by test_fused_training.py in a process of its own, because the
number of devices must be known before jax starts.
"""

import hashlib
import json
import os
import sys

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    # As in train_on_cpu.py, for one program is that of both.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    if sys.argv[3] == "exact":
        os.environ["XLA_FLAGS"] += " --xla_allow_excess_precision=false"

import jax
import numpy as np

import lagom_models
from lagom_jax import decompose

WAYS = {
    "plain": ("tp", {}),
    "sliced": ("tp", {}),
    "half batches": ("tp", {}),
    "commfuse": ("tp", {"tp": "commfuse"}),
    "commfuse-sp": ("tp-sp", {"sp": "commfuse"}),
}


def main(way: str, steps: int, remat: bool) -> dict[str, object]:
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
        remat=remat,
        **options,
    )
    shape, axes = tuple(step.mesh.shape.values()), step.mesh.axis_names
    mesh = jax.make_mesh(shape, axes, axis_types=step.mesh.axis_types)
    function = step.function
    if way == "sliced":
        function = decompose.sliced(function, slices=2)
    if way == "half batches":
        function = decompose.half_batch_loops(function)
    state, tokens = step.initialise(mesh)
    losses = []
    for _ in range(steps):
        state, loss = function(state, tokens)
        losses.append(float(loss))
    digest = hashlib.sha256()
    for part in jax.tree.leaves(state):
        digest.update(np.asarray(part).tobytes())
    return {"losses": losses, "state": digest.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "remat")))
