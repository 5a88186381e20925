"""Trains a tiny model on 8 virtual CPU devices, compiled as a plan says.

Run by test_training.py in a process of its own, which knows the number of devices from
its environment: `train_through_plan.py PLAN.json|none STEPS`.
"""

import sys

import jax

import lagom_models
from lagom_jax.plan import load


def losses(path: str, steps: int) -> list[float]:
    step = lagom_models.build("llama-3-8b", devices=8, tiny=True, learning_rate=3e-3)
    options = {} if path == "none" else load(path).compiler_options()
    shape, axes = tuple(step.mesh.shape.values()), step.mesh.axis_names
    mesh = jax.make_mesh(shape, axes, axis_types=step.mesh.axis_types)
    state, tokens = step.initialise(mesh)
    lowered = step.function.lower(state, tokens)
    run = lowered.compile(compiler_options=options)
    found: list[float] = []
    for _ in range(steps):
        state, loss = run(state, tokens)
        found.append(float(loss))
    return found


if __name__ == "__main__":
    for loss in losses(sys.argv[1], int(sys.argv[2])):
        print(loss.hex())
