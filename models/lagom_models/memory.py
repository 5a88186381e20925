"""Memory that a step needs, worked out before anything is compiled."""

import dataclasses
from typing import Any

from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.sizes import StepBatch
from lagom_models.build import build
from lagom_models.configs import ModelError
from lagom_models.step import TrainingStep
from lagom_models.traffic import mesh_sizes

_MOST = 1 << 14


def estimated_memory(step: TrainingStep) -> int:
    """Bytes that the fullest device needs; estimated, not compiled.

    Example:
        >>> step = build("llama-3-8b", devices=64, batch=1)
        >>> 5 < estimated_memory(step) / 1e9 < 15
        True
    """
    config = step.model.config
    how = framework_named("xla")
    if config.attention == "cudnn":
        how = dataclasses.replace(how, fused_attention=True)
    batch = StepBatch(step.batch, step.sequence)
    return mesh_memory(config.shape, mesh_sizes(step), batch, how).total


def largest_batch(name: str, *, memory_bytes: float, **options: Any) -> int:
    """The largest power of two of sequences in a micro batch that fits.

    Args:
        name: The model; see `names`.
        memory_bytes: Bytes that a device may hold.
        **options: As for `build`, without `batch`.

    Raises:
        ModelError: Not even the smallest batch fits, or something else is wrong.

    Example:
        >>> largest_batch("llama-3-8b", devices=64, memory_bytes=70e9)
        16
        >>> largest_batch("llama-3-8b", devices=1, memory_bytes=70e9)
        Traceback (most recent call last):
        ...
        lagom_models.configs.ModelError: ...
    """

    def needed(batch: int) -> int:
        return estimated_memory(build(name, batch=batch, **options))

    batch = 1
    try:
        smallest = needed(batch)
    except ModelError:
        # Some ways cut a batch in two. Whatever else is wrong still is.
        batch = 2
        smallest = needed(batch)
    if smallest > memory_bytes:
        raise ModelError(
            f"{name} does not fit even with the smallest batch: it needs "
            f"{smallest / 1e9:.1f} GB of {memory_bytes / 1e9:.1f}; take more devices, "
            "a parallelism that cuts weights or activations, or fewer tokens in a "
            "sequence"
        )
    while batch < _MOST and needed(2 * batch) <= memory_bytes:
        batch *= 2
    return batch
