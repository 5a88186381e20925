"""Rules of thumb: meshes as frameworks publish them, to compare a choice with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.mesh.candidates import Asks, candidates
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import REMATS, MeshSizes, StepBatch


@dataclasses.dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """One published way to choose a mesh without a model of its time."""

    name: str
    words: str
    source: str
    order: Callable[[MeshSizes], tuple[float, ...]]
    """The mesh that fits and comes first by this is taken."""


def _megatron(sizes: MeshSizes) -> tuple[float, ...]:
    # As little model parallelism as fits; tensor within the host first, then stages.
    whole = sizes.tensor * sizes.pipeline
    return (
        sizes.sharded,
        whole,
        sizes.pipeline,
        REMATS.index(sizes.remat),
        -sizes.interleave,
        -sizes.micro_batch,
        not sizes.tensor_sequence,
    )


def _maxtext(sizes: MeshSizes) -> tuple[float, ...]:
    # All devices along fsdp, and what then fits with the least computed again.
    return (
        -sizes.fsdp,
        sizes.tensor * sizes.pipeline * sizes.sequence * sizes.expert,
        REMATS.index(sizes.remat),
        -sizes.micro_batch,
    )


RULES: Final = (
    RuleOfThumb(
        "megatron",
        "tensor parallelism inside a host until the model fits, then pipeline stages, "
        "data parallelism for the rest; the least remat, then the largest micro batch",
        "Narayanan et al., Efficient Large-Scale Language Model Training on GPU "
        "Clusters (arXiv 2104.04473), section 3: takeaways 1 to 3",
        _megatron,
    ),
    RuleOfThumb(
        "maxtext",
        "every device along fsdp; the least remat, then the largest micro batch",
        "MaxText's GPU presets: ici and dcn parallelism on fsdp",
        _maxtext,
    ),
)


def by_rule(
    rule: RuleOfThumb,
    shape: ModelShape,
    cluster: Cluster,
    batch: StepBatch,
    framework: Framework,
    asks: Asks | None = None,
) -> MeshSizes | None:
    """The mesh that a rule of thumb takes; None if none fits.

    Args:
        rule: One of `RULES`.
        shape: The model.
        cluster: What it is trained on.
        batch: What a step is trained on.
        framework: How the step is built.
        asks: What the user has settled.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> by_rule(RULES[1], published_shape("llama-3-8b"), Cluster.parse("h100:2x8"),
        ...         StepBatch(32, 2048), framework_named("maxtext")).fsdp
        16
    """
    found = candidates(shape, cluster, batch, framework, asks or Asks()).found
    return min(found, key=rule.order, default=None)
