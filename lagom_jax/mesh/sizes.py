"""Mesh sizes: in how many parts each axis cuts a training step, and in what order."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.span import Span, span_of
from lagom_jax.hlo.groups import Groups

Axis = Literal["data", "fsdp", "tensor", "sequence", "pipeline", "expert"]
Axes = tuple[Axis, ...]
Remat = Literal["none", "selective", "full"]
AXES: Axes = ("tensor", "sequence", "expert", "fsdp", "data", "pipeline")
"""All axes, neighbours on a host first: the usual order of ranks."""
REMATS: tuple[Remat, ...] = ("none", "selective", "full")


@dataclasses.dataclass(frozen=True, slots=True)
class MeshSizes:
    """Sizes of the mesh axes, whose product is the number of devices.

    `data` repeats weights, `fsdp` cuts them, `tensor` cuts matrices, `sequence` cuts
    the tokens of a sequence, `pipeline` cuts the layers into stages, and `expert` cuts
    the experts; batches are cut over `data`, `fsdp` and `expert`.

    Example:
        >>> sizes = MeshSizes(fsdp=8, tensor=8)
        >>> sizes.devices, sizes.replicas
        (64, 8)
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1
    pipeline: int = 1
    expert: int = 1
    micro_batch: int = 1
    """Sequences that a replica works on at a time."""
    remat: Remat = "full"
    """Part that the backward pass computes again: nothing, what is cheap, or all."""
    tensor_sequence: bool = False
    """Activations between matrices cut along the sequence, over the tensor axis."""
    interleave: int = 1
    """Parts of the layers that each stage of a pipeline has."""
    sharded: bool = False
    """Weights are cut over all replicas; so they are wherever `fsdp` is above 1."""
    order: Axes = AXES
    """Axes from the one whose devices are neighbours to the one farthest apart."""

    def __post_init__(self) -> None:
        """Weights that fsdp cuts are cut."""
        if self.fsdp > 1:
            object.__setattr__(self, "sharded", True)

    @property
    def devices(self) -> int:
        """GPUs in all."""
        return math.prod(self.of(axis) for axis in AXES)

    @property
    def replicas(self) -> int:
        """Parts that the sequences of a step are cut into."""
        return self.data * self.fsdp * self.expert

    def of(self, axis: Axis) -> int:
        """The size of one axis."""
        return getattr(self, axis)

    def size(self, axes: Axes) -> int:
        """Devices along some axes together."""
        return math.prod([getattr(self, axis) for axis in axes])

    def real(self, axes: Axes) -> Axes:
        """Those axes along which there is more than one device."""
        return tuple([axis for axis in axes if getattr(self, axis) > 1])

    def groups(self, axes: Axes) -> Groups:
        """The devices along some axes: a row for each group.

        Example:
            >>> MeshSizes(fsdp=2, tensor=2).groups(("fsdp",)).members.tolist()
            [[0, 2], [1, 3]]
        """
        return _groups(self._extent, axes, False)

    def pairs(self, axis: Axis) -> Groups:
        """Each device with the next one along an axis."""
        return _groups(self._extent, (axis,), True)

    def span(self, axes: Axes, cluster: Cluster, *, pairs: bool = False) -> Span:
        """The way in which the devices along some axes lie on a cluster."""
        return _span(self._extent, axes, pairs, cluster)

    @property
    def _extent(self) -> tuple[tuple[Axis, int], ...]:
        return tuple([(axis, getattr(self, axis)) for axis in self.order])


@functools.lru_cache(maxsize=1 << 12)
def _groups(extent: tuple[tuple[Axis, int], ...], axes: Axes, pairs: bool) -> Groups:
    shape = [size for _, size in reversed(extent)]
    names = [axis for axis, _ in reversed(extent)]
    ids = np.arange(math.prod(shape)).reshape(shape)
    places = [names.index(axis) for axis in axes]
    last = list(range(len(shape) - len(places), len(shape)))
    rows = np.moveaxis(ids, places, last)
    rows = rows.reshape(-1, math.prod(shape[place] for place in places))
    if not pairs:
        return Groups(rows)
    both = np.stack([rows[:, :-1], rows[:, 1:]], axis=-1)
    return Groups(both.reshape(-1, 2), point_to_point=True)


@functools.lru_cache(maxsize=1 << 14)
def _span(
    extent: tuple[tuple[Axis, int], ...], axes: Axes, pairs: bool, cluster: Cluster
) -> Span:
    groups = _groups(extent, axes, pairs)
    if not pairs:
        return span_of(groups, cluster)
    # All pairs along an axis are alike: each device hands on over the same distance.
    domains = groups.members // cluster.scale_up_size
    crossed = bool((domains[:, 0] != domains[:, 1]).any())
    chained = dict(extent)[axes[0]] > 2
    return Span(
        *(cluster.devices, 1 + crossed, 1 if crossed else 2, len(groups.members)),
        in_step=chained,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StepBatch:
    """Tokens of a training step.

    Example:
        >>> StepBatch(sequences=1024, length=4096).tokens
        4194304
    """

    sequences: int
    """Sequences in a step, over all devices."""
    length: int
    """Tokens in a sequence."""
    products: str = "bf16"
    """Element type of what the layers' matrices multiply."""

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.sequences * self.length

    def micro_batches(self, sizes: MeshSizes) -> int:
        """Micro batches of a replica in a step; 0 where it does not divide."""
        each = sizes.replicas * sizes.micro_batch
        return self.sequences // each if self.sequences % each == 0 else 0
