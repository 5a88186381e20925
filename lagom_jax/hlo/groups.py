"""Replica groups of a collective, read from each of HLO's notations.

A module names the participants as explicit lists, as a reshaped and transposed
iota (`[2,4]<=[8]T(1,0)`), or as axes of a mesh. All three become one array with a row
per group of places in the job, `replica * partitions + partition`, and then of the
devices that the module puts there: a mesh need not take devices in their order.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lagom_jax.errors import HloError
from lagom_jax.hlo.module import Instruction, Module

Devices = npt.NDArray[np.int64]

# What has no `use_global_device_ids`: a channel alone makes its groups of partitions.
_CROSS_PARTITION_KINDS = frozenset(
    {"all-to-all", "collective-broadcast", "ragged-all-to-all"}
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Groups:
    """The groups of devices among which one collective runs at the same time.

    For a point-to-point exchange (`collective-permute`, `send`, `recv`) a row is a
    source and its target.
    """

    members: Devices
    """Device numbers, a row per group."""
    point_to_point: bool = False
    assumed: bool = False
    """True if only the number of pairs is known, and not who sends to whom."""

    @property
    def count(self) -> int:
        """The number of groups; one for a point-to-point exchange."""
        return 1 if self.point_to_point else self.members.shape[0]

    @property
    def size(self) -> int:
        """Devices in a group; for a point-to-point exchange, how many pairs."""
        return self.members.shape[0 if self.point_to_point else 1]

    @property
    def communicator(self) -> bytes:
        """Equal where each device has one communicator for both, however it is listed.

        Example:
            >>> rows = Groups(np.array([[0, 1], [2, 3]]))
            >>> again = Groups(np.array([[2, 3], [0, 1]]))
            >>> rows.communicator == again.communicator
            True
        """
        rows = self.members[self.members[:, 0].argsort()]
        return bytes(str(rows.shape), "ascii") + rows.tobytes()

    def most_shared(self, other: Groups) -> int:
        """The most devices that a group of one has in common with a group of another.

        Example:
            >>> rows = Groups(np.array([[0, 1], [2, 3]]))
            >>> columns = Groups(np.array([[0, 2], [1, 3]]))
            >>> rows.most_shared(columns), rows.most_shared(rows)
            (1, 2)
        """
        if not self.members.size or not other.members.size:
            return 0
        devices = 1 + int(max(self.members.max(), other.members.max()))
        found = self._membership(devices) @ other._membership(devices).T
        return int(found.max())

    def _membership(self, devices: int) -> npt.NDArray[np.int32]:
        """A row per group: 1 for each device that is in it."""
        table = np.zeros((len(self.members), devices), np.int32)
        np.put_along_axis(table, self.members, 1, axis=1)
        return table

    def placed(self, placement: Sequence[int]) -> Groups:
        """Groups of places in the job as groups of the devices that are there.

        Args:
            placement: The device at each place; empty if they are in order.

        Raises:
            HloError: A group has a place that the job does not have.

        Example:
            >>> Groups(np.array([[0, 1], [2, 3]])).placed([0, 2, 1, 3]).members.tolist()
            [[0, 2], [1, 3]]
        """
        if not placement or not self.members.size:
            return self
        if not 0 <= self.members.min() <= self.members.max() < len(placement):
            raise HloError(
                f"a collective is among devices up to {self.members.max()}, but the "
                f"program is for {len(placement)}; the file is damaged, or its first "
                "line was changed"
            )
        return dataclasses.replace(self, members=np.array(placement)[self.members])


def iota_groups(
    groups: int, size: int, reshape: tuple[int, ...], permutation: tuple[int, ...]
) -> Devices:
    """The groups that `[groups,size]<=[reshape]T(permutation)` stands for.

    Example:
        >>> iota_groups(2, 2, (2, 2), (1, 0)).tolist()
        [[0, 2], [1, 3]]
    """
    dimensions = reshape or (groups * size,)
    ids = np.arange(groups * size, dtype=np.int64).reshape(dimensions)
    if permutation:
        ids = ids.transpose(permutation)
    return ids.reshape(groups, size)


def mesh_groups(proto: Any) -> Devices:
    """The groups that axes of a mesh stand for, whole axes or parts of them."""
    mesh = proto.mesh
    sizes = [axis.size for axis in mesh.axes]
    total = math.prod(sizes)
    if len(mesh.device_ids):
        ids = np.array(mesh.device_ids, dtype=np.int64)
    elif len(mesh.iota_transform.reshape_dims):
        transform = mesh.iota_transform
        ids = iota_groups(
            total, 1, tuple(transform.reshape_dims), tuple(transform.transpose_perm)
        ).reshape(-1)
    else:
        ids = np.arange(total, dtype=np.int64)

    # Every axis is cut where a reference to a part of it begins or ends; `factors`
    # holds the pieces of all axes in mesh order, `place` finds an axis's pieces.
    wanted = [_part_of_axis(axis, sizes) for axis in proto.axes]
    factors: list[int] = []
    place: dict[tuple[int, int], int] = {}
    for number, size in enumerate(sizes):
        inner = [w for w in wanted if w[0] == number]
        cuts = sorted({1, size, *(w[1] for w in inner), *(w[1] * w[2] for w in inner)})
        for before, after in itertools.pairwise(cuts):
            place[number, before] = len(factors)
            factors.append(after // before)
        if len(cuts) == 1:
            place[number, 1] = len(factors)
            factors.append(1)
    chosen: list[int] = []
    for number, before, size in wanted:
        reached = before
        while reached < before * size:
            position = place[number, reached]
            chosen.append(position)
            reached *= factors[position]
    kept = [i for i in range(len(factors)) if i not in chosen]
    width = math.prod(factors[i] for i in chosen)
    return ids.reshape(factors).transpose([*kept, *chosen]).reshape(-1, width)


def _part_of_axis(axis: Any, sizes: list[int]) -> tuple[int, int, int]:
    number: int = axis.mesh_axis_index
    if axis.HasField("sub_axis_info") and axis.sub_axis_info.size:
        return number, axis.sub_axis_info.pre_size, axis.sub_axis_info.size
    return number, 1, sizes[number]


def replica_groups(module: Module, instruction: Instruction, kind: str) -> Groups:
    """The groups of a collective, as places in the job."""
    proto = instruction.proto
    listed = _listed_groups(instruction)
    replicas, partitions = module.replicas, module.partitions
    has_channel = proto.channel_id > 0
    if proto.use_global_device_ids:
        everyone = module.devices
    elif has_channel and kind in _CROSS_PARTITION_KINDS:
        everyone = partitions
    else:
        everyone = replicas
    if listed is None:
        listed = np.arange(everyone, dtype=np.int64)[None, :]
    if proto.use_global_device_ids:
        return Groups(listed)
    if has_channel and kind in _CROSS_PARTITION_KINDS:
        # The same groups of partitions exist in every replica.
        offsets = np.arange(replicas, dtype=np.int64)[:, None, None] * partitions
        return Groups((listed[None] + offsets).reshape(-1, listed.shape[1]))
    if has_channel:
        # Groups of replicas, each with all of its partitions.
        spread = listed[:, :, None] * partitions + np.arange(partitions)
        return Groups(spread.reshape(listed.shape[0], -1))
    # Groups of replicas, once for each partition.
    spread = listed[:, None, :] * partitions + np.arange(partitions)[None, :, None]
    return Groups(spread.reshape(-1, listed.shape[1]))


def _listed_groups(instruction: Instruction) -> Devices | None:
    proto = instruction.proto
    if proto.HasField("mesh_axes_replica_group_list"):
        return mesh_groups(proto.mesh_axes_replica_group_list)
    iota = proto.iota_collective_device_list
    if iota.num_replica_groups:
        return iota_groups(
            iota.num_replica_groups,
            iota.num_devices_per_group,
            tuple(iota.iota_reshape_dims),
            tuple(iota.iota_transpose_perm),
        )
    rows = proto.replica_groups or proto.collective_device_list.replica_groups
    members = [list(row.replica_ids) for row in rows]
    if not members or not members[0]:
        return None
    if len({len(row) for row in members}) > 1:
        raise HloError(
            f"'{instruction.name}' has groups of different sizes, which no GPU "
            "collective supports"
        )
    return np.array(members, dtype=np.int64)


def permute_pairs(instruction: Instruction) -> Groups:
    """Sources and targets of a collective-permute."""
    pairs = [(p.source, p.target) for p in instruction.proto.source_target_pairs]
    return Groups(np.array(pairs, dtype=np.int64).reshape(-1, 2), point_to_point=True)


def pairs_from_text(text: str) -> Groups:
    """Sources and targets as `send` and `recv` carry them in an attribute.

    Example:
        >>> pairs_from_text("{{0,1},{1,2}}").members.tolist()
        [[0, 1], [1, 2]]
    """
    numbers = [
        int(n)
        for n in text.replace("{", " ").replace("}", " ").replace(",", " ").split()
    ]
    return Groups(np.array(numbers, dtype=np.int64).reshape(-1, 2), point_to_point=True)
