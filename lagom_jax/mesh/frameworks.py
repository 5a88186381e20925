"""Framework conventions: what a training framework keeps, sends, hides and repeats."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Literal

from lagom_jax.mesh.model_shape import MeshError
from lagom_jax.typed_json import typed


@dataclasses.dataclass(frozen=True, slots=True)
class Framework:
    """Conventions by which a step is built.

    Example:
        >>> framework_named("xla").fused_attention
        False
    """

    name: str
    title: str
    weight_bytes: float
    """Of one weight and its gradient, as long as the step runs, where it is whole."""
    optimizer_bytes: float
    """Of one weight's optimizer state, and its copy in float32 where it has one."""
    optimizer_sharded: bool
    """The optimizer's state is cut over the replicas, as in ZeRO-1."""
    gradient_bytes: float
    """Of one weight's gradient on its way."""
    fused_attention: bool
    """Attention in one kernel, which keeps no scores."""
    fused_norms: bool
    """Norms, activations and dropouts in few passes over memory."""
    looped_pipeline: bool
    """A pipeline as one loop: bubbles compute, and all stages share both ends.
    Otherwise one forward and one backward take turns, ends are on the first and the
    last stage."""
    once: bool
    """Gradients of all micro batches are sent once for a step, not each time."""
    prefetches: bool
    """Weights of the next layer are on their way while one is computed, and gradients
    while the layer before is."""
    combined_gather_bytes: int
    """Up to which gathers of one layer's weights are combined, array by array; 0 where
    a layer's weights are one array."""
    overlaps_from: int
    """The generation of GPUs, as in compute capability 9.0, from which on communication
    is under way beside kernels."""
    recomputes: Literal["scores", "feed-forward"]
    """Part of a layer that the selective remat computes again."""
    short_tokens: float
    """Tokens by which each micro batch of a device is longer for the kernels: gaps
    between launches, short products, and gradients added to those before."""
    tensor_stretch: float
    """Times that collectives of the tensor axis take what they take alone: their ranks
    arrive apart."""
    reserved_bytes: float
    """Memory that the runtime takes for itself."""
    level: float
    """Published step times over predicted ones, in the median."""
    published_as: str
    """Its name in tables of published runs; empty if there are none."""
    source: str


@functools.cache
def frameworks() -> dict[str, Framework]:
    """All frameworks whose conventions are known, by name.

    Example:
        >>> sorted(frameworks())[:3]
        ['automodel', 'fsdp', 'maxtext']
    """
    folder = resources.files(__name__.rpartition(".")[0])
    found = json.loads((folder / "frameworks.json").read_text())
    return {item["name"]: typed(Framework, item) for item in found}


def framework_named(name: str) -> Framework:
    """The conventions of a framework.

    Raises:
        MeshError: It is not known.
    """
    known = frameworks()
    if name not in known:
        raise MeshError(f"no framework {name!r}; known are {', '.join(known)}")
    return known[name]
