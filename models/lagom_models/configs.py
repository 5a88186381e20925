"""The five models, by the shapes their authors published.

Every record names the page its numbers were read from. `tiny` shrinks a record to
a size that trains on a CPU and keeps what makes the model itself: the kind of norm,
of positions and of feed-forward, shared key-value heads, shared and routed experts.
"""

import dataclasses
from typing import Literal

from lagom_jax.errors import LagomError


class ModelError(LagomError, ValueError):
    """A model, a parallelism or a size that does not exist or does not fit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts feed-forward of a model.

    Example:
        >>> CONFIGS["olmoe-1b-7b"].experts.top_k
        8
    """

    count: int
    top_k: int
    hidden: int
    shared: int
    balance_weight: float
    # Chosen here, not published: both models were trained without dropping tokens,
    # which a program of static shapes cannot do without paying for the worst case.
    capacity_factor: float = 1.25

    def capacity(self, tokens: int) -> int:
        """Slots that each expert offers to a group of `tokens` tokens.

        Example:
            >>> CONFIGS["olmoe-1b-7b"].experts.capacity(2048)
            320
        """
        return -(-int(tokens * self.top_k * self.capacity_factor) // self.count)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shapes of one decoder-only language model.

    Attributes:
        hidden: Width of the feed-forward of a dense layer.
        dense_layers: How many of the first layers are dense in a mixture of experts.
        rotary: The fraction of each head that is rotated; None means ALiBi.
        gated: Whether the feed-forward is silu(gate) * up instead of gelu(up).
        parallel_block: Whether attention and feed-forward read the same norm and
            are added together, instead of one after the other.
        micro_batch: Sequences in one micro batch of one replica, by parallelism.
        source: Where the numbers were read.

    Example:
        >>> config = CONFIGS["llama-3-8b"]
        >>> config.width, config.layers, config.head_width
        (4096, 32, 128)
    """

    name: str
    source: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    sequence: int
    micro_batch: dict[str, int]
    rotary: float | None = 1.0
    rotary_base: float = 10_000.0
    norm: Literal["rms", "layer"] = "rms"
    epsilon: float = 1e-5
    gated: bool = True
    bias: bool = False
    parallel_block: bool = False
    tied: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    dense_layers: int = 0

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def norm_bias(self) -> bool:
        """True if norms shift as well as scale."""
        return self.norm == "layer" and self.bias


_DENSE = {"dp": 1, "fsdp": 1, "tp": 4, "pp": 1}
_MIXTURE = {"dp": 2, "fsdp": 2, "tp": 2, "ep": 2, "pp": 2}

CONFIGS: dict[str, ModelConfig] = {
    config.name: config
    for config in (
        ModelConfig(
            name="phi-2",
            source="https://huggingface.co/microsoft/phi-2/blob/main/config.json",
            vocabulary=51_200,
            width=2560,
            layers=32,
            heads=32,
            kv_heads=32,
            hidden=10_240,
            sequence=2048,
            micro_batch={"dp": 2, "fsdp": 2, "tp": 8, "pp": 2},
            rotary=0.4,
            norm="layer",
            gated=False,
            bias=True,
            parallel_block=True,
        ),
        ModelConfig(
            name="llama-3-8b",
            source="https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json",
            vocabulary=128_256,
            width=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            hidden=14_336,
            sequence=8192,
            micro_batch=_DENSE,
            rotary_base=500_000.0,
        ),
        ModelConfig(
            name="mpt-7b",
            source="https://huggingface.co/mosaicml/mpt-7b/blob/main/config.json",
            vocabulary=50_432,
            width=4096,
            layers=32,
            heads=32,
            kv_heads=32,
            hidden=16_384,
            sequence=2048,
            micro_batch={**_DENSE, "tp": 2},
            rotary=None,
            norm="layer",
            gated=False,
            tied=True,
        ),
        ModelConfig(
            name="deepseek-moe-16b",
            source="https://huggingface.co/deepseek-ai/deepseek-moe-16b-base/blob/main/config.json",
            vocabulary=102_400,
            width=2048,
            layers=28,
            heads=16,
            kv_heads=16,
            hidden=10_944,
            sequence=4096,
            micro_batch=_MIXTURE,
            epsilon=1e-6,
            experts=Experts(64, top_k=6, hidden=1408, shared=2, balance_weight=0.001),
            dense_layers=1,
        ),
        ModelConfig(
            name="olmoe-1b-7b",
            source="https://huggingface.co/allenai/OLMoE-1B-7B-0924/blob/main/config.json",
            vocabulary=50_304,
            width=2048,
            layers=16,
            heads=16,
            kv_heads=16,
            hidden=1024,
            sequence=4096,
            micro_batch=_MIXTURE,
            qk_norm=True,
            experts=Experts(64, top_k=8, hidden=1024, shared=0, balance_weight=0.01),
        ),
    )
}


def config_for(name: str) -> ModelConfig:
    """The record of a model.

    Raises:
        ModelError: If there is no such model.

    Example:
        >>> config_for("gpt-2")
        Traceback (most recent call last):
        ...
        lagom_models.configs.ModelError: no model 'gpt-2'; the models are: phi-2, ...
    """
    if name not in CONFIGS:
        raise ModelError(f"no model {name!r}; the models are: {', '.join(CONFIGS)}")
    return CONFIGS[name]


def tiny(config: ModelConfig) -> ModelConfig:
    """The same model at a size that trains on a CPU.

    Example:
        >>> tiny(CONFIGS["llama-3-8b"]).width
        128
    """
    experts = config.experts
    if experts is not None:
        experts = dataclasses.replace(experts, count=16, hidden=64)
    return dataclasses.replace(
        config,
        vocabulary=512,
        width=128,
        layers=4 + config.dense_layers,
        heads=16,
        kv_heads=16 if config.kv_heads == config.heads else 8,
        hidden=256,
        sequence=64,
        experts=experts,
    )


def names() -> tuple[str, ...]:
    """The models.

    Example:
        >>> names()
        ('phi-2', 'llama-3-8b', 'mpt-7b', 'deepseek-moe-16b', 'olmoe-1b-7b')
    """
    return tuple(CONFIGS)
