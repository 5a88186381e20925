"""Framework conventions: what a training framework keeps, sends, hides and repeats."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Final, Literal

from lagom_jax.mesh.model_shape import MeshError
from lagom_jax.typed_json import typed

_HOPPER: Final = 9
# FlashAttention 2 reaches 60 % of an A100's peak (50 to 73 in its paper), and on the
# H100, for which it was not written, 35 % (the paper of FlashAttention 3).
_OLD_ATTENTION: Final = 0.60 / 0.35


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
    attention_times: float
    """Times that its fused attention takes what FlashAttention 2 takes on Ampere."""
    attention_from: int
    """The generation of GPUs that its fused attention is written for."""
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
    recomputes_whole: bool
    """A layer that is computed again is computed to its end, with its last product and
    its last sum over the tensor axis, which no gradient needs."""
    cuts_sequence: bool
    """Its recipes cut activations between matrices over the tensor axis."""
    hides_sums: bool
    """Backward, sums before matrices are under way beside the products that give the
    weights' gradients."""
    sums_gradients: Literal["reduce-scatter", "all-reduce"]
    """Of gradients whose optimizer state is cut over the replicas."""
    added_bytes: float
    """Memory traffic for each weight and micro batch, beside that of its products, to
    add its gradient to those of the micro batches before."""
    hands_on_parts: bool
    """Forward, the ranks of the tensor axis hand on a part of the activations each, and
    gather them in the next stage."""
    multiplies: Literal["bf16", "fp16", "16-bit"]
    """Type of what is multiplied: GPUs before Ampere have no bfloat16, and tables do
    not always tell."""
    reserved_bytes: float
    """Memory that the runtime takes for itself."""
    level: float
    """Published step times over predicted ones, in the median."""
    published_as: str
    """Its name in tables of published runs; empty if there are none."""
    source: str

    def on(self, generation: int) -> Framework:
        """The same on GPUs of a generation, on which its kernels may be old.

        Args:
            generation: As in compute capability 9.0.
        """
        if not self.fused_attention or self.attention_from >= min(generation, _HOPPER):
            return self
        times = self.attention_times * _OLD_ATTENTION
        return dataclasses.replace(
            self, attention_times=times, attention_from=generation
        )


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
