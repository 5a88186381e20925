"""The five models, by the shapes their authors published.

The dimensions are those of `lagom_jax.mesh`, with the pages they were read from.
`tiny` shrinks a record to a size that trains on a CPU and keeps what makes the model
itself: the kind of norm, of positions and of feed-forward, shared key-value heads,
shared and routed experts.
"""

import dataclasses
from typing import Any, Literal

from lagom_jax.errors import LagomError
from lagom_jax.mesh.model_shape import ExpertShape, ModelShape, published_shape


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
        attention: `plain`: the scores are written to memory; `cudnn`: one kernel of the
            library, which keeps them on the chip.

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
    attention: Literal["plain", "cudnn"] = "plain"

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def shape(self) -> ModelShape:
        """Its dimensions, as `lagom_jax.mesh` takes them."""
        experts = self.experts
        return ModelShape(
            name=self.name,
            vocabulary=self.vocabulary,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            hidden=self.hidden,
            gated=self.gated,
            bias=self.bias,
            layer_norm=self.norm == "layer",
            parallel_block=self.parallel_block,
            tied=self.tied,
            qk_norm=self.qk_norm,
            linear_biases=self.rotary is None,
            experts=experts
            and ExpertShape(
                *(experts.count, experts.top_k, experts.hidden, experts.shared),
                experts.capacity_factor,
            ),
            dense_layers=self.dense_layers,
            sequence=self.sequence,
            source=self.source,
        )

    @property
    def norm_bias(self) -> bool:
        """True if norms shift as well as scale."""
        return self.norm == "layer" and self.bias


_DENSE = {"dp": 1, "fsdp": 1, "tp": 4, "cp": 1, "pp": 1}
_MIXTURE = {"dp": 2, "fsdp": 2, "tp": 2, "cp": 2, "ep": 2, "pp": 2}


def _config(name: str, micro_batch: dict[str, int], **more: Any) -> ModelConfig:
    """A record of a published model: its dimensions, and what only training needs."""
    shape = published_shape(name)
    experts = shape.experts
    if experts is not None:
        experts = Experts(
            experts.count,
            top_k=experts.top_k,
            hidden=experts.hidden,
            shared=experts.shared,
            balance_weight=more.pop("balance_weight"),
            capacity_factor=experts.capacity_factor,
        )
    return ModelConfig(
        name=name,
        source=shape.source,
        vocabulary=shape.vocabulary,
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        hidden=shape.hidden,
        sequence=shape.sequence,
        micro_batch=micro_batch,
        norm="layer" if shape.layer_norm else "rms",
        gated=shape.gated,
        bias=shape.bias,
        parallel_block=shape.parallel_block,
        tied=shape.tied,
        qk_norm=shape.qk_norm,
        experts=experts,
        dense_layers=shape.dense_layers,
        **more,
    )


CONFIGS: dict[str, ModelConfig] = {
    config.name: config
    for config in (
        _config("phi-2", {"dp": 2, "fsdp": 2, "tp": 8, "cp": 2, "pp": 2}, rotary=0.4),
        _config("llama-3-8b", _DENSE, rotary_base=500_000.0),
        _config("mpt-7b", {**_DENSE, "tp": 2}, rotary=None),
        _config("deepseek-moe-16b", _MIXTURE, epsilon=1e-6, balance_weight=0.001),
        _config("olmoe-1b-7b", _MIXTURE, balance_weight=0.01),
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
