"""Groups in every spelling, against the same groups written out by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.compile.schema import message_class
from lagom_jax.errors import HloError
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import read_collective
from lagom_jax.hlo.groups import iota_groups, mesh_groups, pairs_from_text

from ..texts import parse

GATHER = """
ENTRY main {{
  x = f32[8] parameter(0)
  ROOT y = f32[{out}] all-gather(x), {attributes}, dimensions={{0}}
}}"""


def gather(attributes, out=16, header=", num_partitions=8"):
    module = parse(GATHER.format(attributes=attributes, out=out), header=header)
    return read_collective(module, module.entry, module.entry.root)


@pytest.mark.parametrize(
    "spelling",
    [
        "replica_groups={{0,1},{2,3},{4,5},{6,7}}",
        "replica_groups=[4,2]<=[8]",
        "replica_groups=mesh['a'=4,'b'=2] {'b'}",
    ],
)
def test_three_spellings_of_neighbours(spelling):
    found = gather(f"channel_id=1, {spelling}, use_global_device_ids=true").groups
    assert found.members.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (found.count, found.size) == (4, 2)


@pytest.mark.parametrize(
    "spelling",
    [
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}",
        "replica_groups=[4,2]<=[2,4]T(1,0)",
        "replica_groups=mesh['a'=2,'b'=4] {'a'}",
        "replica_groups=mesh['a'=8] {'a':(1)2}",
    ],
)
def test_spellings_of_strides(spelling):
    found = gather(f"channel_id=1, {spelling}, use_global_device_ids=true").groups
    assert found.members.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_no_groups_means_everybody():
    found = gather(
        "channel_id=1, replica_groups={}, use_global_device_ids=true", out=64
    )
    assert found.groups.members.tolist() == [list(range(8))]


def test_without_channel_groups_are_of_replicas():
    """Each partition has its own groups then."""
    found = gather(
        "replica_groups={{0,1}}", header=", replica_count=2, num_partitions=2"
    ).groups
    assert found.members.tolist() == [[0, 2], [1, 3]]


def test_channel_without_global_ids_takes_all_partitions_in():
    found = gather(
        "channel_id=1, replica_groups={{0},{1}}",
        header=", replica_count=2, num_partitions=2",
    ).groups
    assert found.members.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "operation",
    [
        "all-to-all(x), dimensions={0}, channel_id=1, replica_groups={{0,1}}",
        "collective-broadcast(x), channel_id=1, replica_groups={{0,1}}",
    ],
)
def test_kinds_without_global_ids_are_among_partitions(operation):
    module = parse(
        f"""
ENTRY main {{
  x = f32[8] parameter(0)
  ROOT y = f32[8] {operation}
}}""",
        header=", replica_count=2, num_partitions=2",
    )
    found = read_collective(module, module.entry, module.entry.root).groups
    assert found.members.tolist() == [[0, 1], [2, 3]]


def test_groups_are_of_the_devices_that_run_the_partitions():
    """A mesh may take devices in any order, and their ids may leap."""
    module = parse(
        GATHER.format(
            attributes="channel_id=1, replica_groups={{0,1},{2,3}}, "
            "use_global_device_ids=true",
            out=16,
        ),
        header=", num_partitions=4",
    )
    for row, device in zip(
        module.proto.device_assignment.computation_devices,
        (0, 100, 1, 101),
        strict=True,
    ):
        row.replica_device_ids[:] = [device]
    module = read_module(module.proto.SerializeToString())
    found = read_collective(module, module.entry, module.entry.root).groups
    assert found.members.tolist() == [[0, 2], [1, 3]]


def test_groups_beyond_the_job_are_refused():
    with pytest.raises(HloError, match=r"devices up to 8, .* for 8;"):
        gather("channel_id=1, replica_groups={{0,8}}, use_global_device_ids=true")


def test_groups_of_different_sizes_are_refused():
    with pytest.raises(HloError, match="different sizes"):
        gather("channel_id=1, replica_groups={{0,1},{2}}, use_global_device_ids=true")


def test_pairs_of_send_and_recv():
    assert pairs_from_text("{{0,1},{1,2},{2,3}}").size == 3
    assert pairs_from_text("").size == 0


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(st.data(), SIZES)
def test_mesh_axes_group_what_differs_only_along_them(data, sizes):
    chosen = data.draw(
        st.lists(st.integers(0, len(sizes) - 1), unique=True, min_size=1)
    )
    proto = message_class("MeshAxesReplicaGroupListProto")()
    for number, size in enumerate(sizes):
        proto.mesh.axes.add(name=f"a{number}", size=size)
    for number in chosen:
        proto.axes.add(mesh_axis_index=number)
    found = mesh_groups(proto)
    expected = {}
    for device, place in enumerate(itertools.product(*map(range, sizes))):
        rest = tuple(p for i, p in enumerate(place) if i not in chosen)
        order = tuple(place[i] for i in chosen)
        expected.setdefault(rest, []).append((order, device))
    assert found.tolist() == [
        [device for _, device in sorted(members)]
        for _, members in sorted(expected.items())
    ]


@given(st.permutations(range(8)))
def test_a_mesh_may_list_its_devices(order):
    proto = message_class("MeshAxesReplicaGroupListProto")()
    proto.mesh.axes.add(name="a", size=2)
    proto.mesh.axes.add(name="b", size=4)
    proto.mesh.device_ids.extend(order)
    proto.axes.add(mesh_axis_index=1)
    assert mesh_groups(proto).tolist() == np.array(order).reshape(2, 4).tolist()


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_every_device_is_in_exactly_one_group(data, dimensions):
    total = int(np.prod(dimensions))
    size = data.draw(
        st.sampled_from([d for d in range(1, total + 1) if total % d == 0])
    )
    permutation = data.draw(st.permutations(range(len(dimensions))))
    found = iota_groups(total // size, size, tuple(dimensions), tuple(permutation))
    assert sorted(found.reshape(-1).tolist()) == list(range(total))
