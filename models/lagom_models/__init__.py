"""Training steps of five language models, as workloads to compile and to run.

Example:
    >>> step = build("llama-3-8b", devices=8, parallelism="tp", tiny=True)
    >>> traced = step.function.trace(*step.arguments)
    >>> lowered = traced.lower(lowering_platforms=("cuda",))
"""

try:
    import flax as _flax
    import optax as _optax
except ImportError as error:
    raise ImportError(
        f'lagom_models needs flax and optax ({error}): pip install "lagom_jax[models]"'
    ) from error

from lagom_models.build import build, build_on, parallelisms
from lagom_models.configs import CONFIGS, ModelConfig, ModelError, names
from lagom_models.memory import estimated_memory, largest_batch
from lagom_models.step import (
    TrainingStep,
    TrainState,
    sharded_gradient,
    sharded_loss,
    state_shapes,
)

del _flax, _optax

__all__ = [
    "CONFIGS",
    "ModelConfig",
    "ModelError",
    "TrainState",
    "TrainingStep",
    "build",
    "build_on",
    "estimated_memory",
    "largest_batch",
    "names",
    "parallelisms",
    "sharded_gradient",
    "sharded_loss",
    "state_shapes",
]
