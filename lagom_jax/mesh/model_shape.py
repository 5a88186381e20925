"""Model dimensions, from which traffic, work and memory of a step follow."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, cast

from lagom_jax.errors import LagomError
from lagom_jax.typed_json import FormError, parse_object, typed


class MeshError(LagomError, ValueError):
    """A model, a mesh or a batch that cannot be as asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExpertShape:
    """The mixture-of-experts feed-forward of a model.

    Example:
        >>> published_shape("olmoe-1b-7b").experts.slots(2048)
        320
    """

    count: int
    top_k: int
    hidden: int
    shared: int = 0
    """Experts that every token visits."""
    capacity_factor: float = 1.25
    """Slots of each expert over its even share of the tokens."""

    def slots(self, tokens: int) -> int:
        """Slots that each expert offers to a group of tokens."""
        return -(-int(tokens * self.top_k * self.capacity_factor) // self.count)


Place = Literal["entering", "inside", "feeding", "leaving"]
"""Parts of a layer in their order, each of which waits for the one before: queries,
keys and values; attention's output and what stands beside the feed-forward; the
feed-forward; and its last product."""
PLACES: Final[tuple[Place, ...]] = ("entering", "inside", "feeding", "leaving")


@dataclasses.dataclass(frozen=True, slots=True)
class WeightShape:
    """One weight of a layer, or of what stands before and after the layers."""

    name: str
    size: int
    """Elements of one copy."""
    tensor: bool = False
    """Cut by tensor parallelism."""
    expert: bool = False
    """Cut by expert parallelism."""
    inside: bool = False
    """Used whole by every device on its part of the work, inside of the layer."""
    last: bool = False
    """A bias that nothing else in its layer depends on: not read to recompute."""
    merged: bool = False
    """Its gradient equals that of another bias, and is sent once for both."""
    place: Place = "inside"
    """The part of the layer that needs it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a decoder-only language model.

    Example:
        >>> shape = published_shape("llama-3-8b")
        >>> shape.head_width, round(shape.parameters / 1e9, 2)
        (128, 8.03)
    """

    name: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    """Width of the feed-forward of a dense layer."""
    gated: bool = True
    """A feed-forward of three matrices instead of two."""
    bias: bool = False
    layer_norm: bool = False
    """Norms that shift as well, where there are biases."""
    parallel_block: bool = False
    """Attention and feed-forward side by side instead of one after the other."""
    tied: bool = False
    """The head is the embedding."""
    qk_norm: bool = False
    linear_biases: bool = False
    """A bias for each distance between tokens is added to attention's scores."""
    experts: ExpertShape | None = None
    dense_layers: int = 0
    """Layers without experts, of a mixture."""
    sequence: int = 2048
    """Tokens that it was made for."""
    source: str = ""

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token."""
        return self.kv_heads * self.head_width

    @property
    def mixture_layers(self) -> int:
        """Layers that are repeated: all, but for the dense ones of a mixture."""
        return self.layers - self.dense_layers

    @property
    def parameters(self) -> int:
        """Weights in all."""
        outer = sum(weight.size for weight in self.outer_weights())
        dense = sum(weight.size for weight in self.layer_weights(dense=True))
        repeated = sum(weight.size for weight in self.layer_weights())
        return outer + self.dense_layers * dense + self.mixture_layers * repeated

    @property
    def active_parameters(self) -> int:
        """Weights that a token is multiplied with, the embedding left out."""
        if self.experts is None:
            return self.parameters - (0 if self.tied else self.vocabulary * self.width)
        idle = 1 - self.experts.top_k / self.experts.count
        routed = sum(w.size for w in self.layer_weights() if w.expert)
        whole = self.parameters - self.vocabulary * self.width
        return round(whole - idle * routed * self.mixture_layers)

    def flops(self, tokens: int, sequence: int) -> float:
        """Operations of a step that nothing recomputes, attention whole.

        Args:
            tokens: Of the step.
            sequence: Tokens in a sequence.
        """
        attention = 12 * self.layers * self.width * sequence
        return float(tokens) * (6 * self.active_parameters + attention)

    def outer_weights(self) -> tuple[WeightShape, ...]:
        """Weights before and after the layers."""
        words = self.vocabulary * self.width
        found = [WeightShape("table", words, tensor=True), *self._norm("norm")]
        if not self.tied:
            found.append(WeightShape("head", words, tensor=True))
        if self.bias:
            found.append(WeightShape("head_bias", self.vocabulary, tensor=True))
        return tuple(found)

    def layer_weights(self, *, dense: bool = False) -> tuple[WeightShape, ...]:
        """Weights of one layer.

        Args:
            dense: Of one without experts.
        """
        width, kv = self.width, self.kv_width
        found = [
            *self._norm("norm", place="entering"),
            WeightShape("query", width * width, tensor=True, place="entering"),
            WeightShape("key", width * kv, tensor=True, place="entering"),
            WeightShape("value", width * kv, tensor=True, place="entering"),
        ]
        sizes: dict[str, int] = {}
        if self.bias:
            sizes = {"query_bias": width, "key_bias": kv, "value_bias": kv}
        if self.qk_norm:
            sizes |= {"query_norm": width, "key_norm": kv}
        found += [
            WeightShape(n, size, tensor=True, place="entering")
            for n, size in sizes.items()
        ]
        found.append(WeightShape("out", width * width, tensor=True))
        if self.bias:
            side = self.parallel_block
            found.append(WeightShape("attention_bias", width, last=side, merged=side))
            found.append(WeightShape("forward_bias", width, last=True))
        if not self.parallel_block:
            found += self._norm("forward_norm")
        if dense or self.experts is None:
            return (*found, *self._feed_forward(self.hidden, bias=self.bias))
        experts = self.experts
        each = experts.count * width * experts.hidden
        found.append(WeightShape("router", width * experts.count, inside=True))
        found += [
            WeightShape("gate", each, tensor=True, expert=True, place="feeding"),
            WeightShape("up", each, tensor=True, expert=True, place="feeding"),
            WeightShape("down", each, tensor=True, expert=True, place="leaving"),
        ]
        if experts.shared:
            found += self._feed_forward(
                experts.shared * experts.hidden, bias=self.bias, prefix="shared_"
            )
        return tuple(found)

    def _norm(self, name: str, *, place: Place = "inside") -> list[WeightShape]:
        shift = self.layer_norm and self.bias
        names = (name, f"{name}_shift") if shift else (name,)
        return [WeightShape(n, self.width, place=place) for n in names]

    def _feed_forward(
        self, hidden: int, *, bias: bool, prefix: str = ""
    ) -> list[WeightShape]:
        # Beside experts it is needed by nothing that waits.
        first: Place = "inside" if prefix else "feeding"
        last: Place = "inside" if prefix else "leaving"
        size = self.width * hidden
        names = ("gate", "up") if self.gated else ("up",)
        found = [WeightShape(prefix + n, size, tensor=True, place=first) for n in names]
        found.append(WeightShape(f"{prefix}down", size, tensor=True, place=last))
        if bias:
            found.append(WeightShape(f"{prefix}up_bias", hidden, tensor=True))
        return found


_FILE: Final = "shapes.json"


@functools.cache
def _published() -> dict[str, ModelShape]:
    text = (resources.files(__name__.rpartition(".")[0]) / _FILE).read_text()
    found: list[dict[str, Any]] = json.loads(text)
    return {item["name"]: shape_of(item) for item in found}


def published_names() -> tuple[str, ...]:
    """Models whose dimensions are known by name.

    Example:
        >>> "llama-3-8b" in published_names()
        True
    """
    return tuple(_published())


def published_shape(name: str) -> ModelShape:
    """Dimensions of a published model.

    Args:
        name: One of `published_names()`.

    Raises:
        MeshError: There is no such model.
    """
    known = _published()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise MeshError(
            f"no model {name!r}{hint}; known are {', '.join(known)}; or name a JSON "
            "file with the dimensions (docs/how-to/mesh.md)"
        )
    return known[name]


def shape_of(fields: dict[str, Any]) -> ModelShape:
    """Dimensions from JSON; what has a default may be left out.

    Raises:
        MeshError: They are not whole, or contradict each other.

    Example:
        >>> sizes = dict(vocabulary=512, width=128, layers=4, heads=8, hidden=256)
        >>> shape_of({"name": "tiny", **sizes}).kv_heads
        8
    """
    given = {"name": "model", "kv_heads": fields.get("heads")}
    given |= {**_defaults(ModelShape), **fields}
    experts = given["experts"]
    if isinstance(experts, dict):
        named = cast("dict[str, Any]", experts)
        given["experts"] = {**_defaults(ExpertShape), **named}
    try:
        shape = typed(ModelShape, given)
    except FormError as error:
        raise MeshError(f"dimensions of {given['name']}: {error}") from None
    numbers = (shape.vocabulary, shape.width, shape.layers, shape.heads, shape.kv_heads)
    if min(*numbers, shape.hidden) < 1:
        raise MeshError(f"dimensions of {shape.name}: each must be at least 1")
    if shape.width % shape.heads or shape.heads % shape.kv_heads:
        raise MeshError(
            f"dimensions of {shape.name}: heads ({shape.heads}) must divide width "
            f"({shape.width}), and kv_heads ({shape.kv_heads}) heads"
        )
    return shape


def _defaults(kind: type[ModelShape] | type[ExpertShape]) -> dict[str, Any]:
    fields = dataclasses.fields(kind)
    none = dataclasses.MISSING
    return {field.name: field.default for field in fields if field.default is not none}


def read_shape(name: str) -> ModelShape:
    """Dimensions by a published name, or from a JSON file.

    Args:
        name: One of `published_names()`, or a path that ends with `.json`.

    Raises:
        MeshError: There is no such model or file.
    """
    if not name.endswith(".json"):
        return published_shape(name)
    try:
        found = parse_object(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshError(f"cannot read {name}: {error.strerror}") from None
    except (FormError, UnicodeDecodeError) as error:
        raise MeshError(f"{name}: {error}") from None
    if found is None:
        raise MeshError(f"{name} holds no JSON object with the dimensions of a model")
    return shape_of(found)
