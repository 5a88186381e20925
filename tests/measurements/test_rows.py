"""Tables of measurements, and the tasks that their rows describe."""

from pathlib import Path

import pytest

import lagom_jax.cost
from lagom_jax.cluster import Cluster
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.work import Matmul
from lagom_jax.measurements.rows import (
    CollectiveRow,
    collective_of,
    kernel_of,
    read_collectives,
    read_matmuls,
)

MEASURED = Path(lagom_jax.cost.__file__).parent / "measured"
H100 = Cluster.parse("h100:2x8")
HEAD = "gpu,op,devices,groups,group_size,tensor_bytes,microseconds\n"
MATMULS = "gpu,batch,m,n,k,types,microseconds\n"


def test_every_row_of_the_measurements_can_be_read():
    collectives = read_collectives((MEASURED / "collectives.csv").read_text())
    matmuls = read_matmuls((MEASURED / "matmuls.csv").read_text())
    assert not collectives.skipped
    assert not matmuls.skipped
    assert {row.gpu for row in matmuls.rows} == {"h100-sxm", "b200"}


BAD = {
    "h100,all-gather,8,1,8,0,24.5": "tensor_bytes is 0; it must be 1 or more",
    "h100,all-gather,8,1,8,1024,-1": "microseconds is '-1'",
    "h100,all-gather,8,1,8,1024,nan": "microseconds is 'nan'",
    "h100,all-gather,8,1,8,1024,": "microseconds is ''",
    "h100,gather,8,1,8,1024,1": "no collective is called 'gather'; known are",
    "h100,all-gather,8,x,8,1024,1": "groups is 'x', not a whole number",
    "h100,all-gather,8,4,8,1024,1": "4 groups of 8 do not fit on 8 devices",
    "h100,all-gather": "too few columns",
    "h100,all-gather,8,1,8,1024,1,2": "too many",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_rows_are_told_and_the_others_used(line):
    good = "h100,all-gather,8,1,8,1024,12.5\n"
    found = read_collectives(HEAD + good + line + "\n" + good)
    assert [row.line for row in found.rows] == [2, 4]
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("line 3: ")
    assert BAD[line] in found.skipped[0]
    with pytest.raises(MeasurementError, match="no row that can be used"):
        read_collectives(HEAD + line, "my.csv")


@pytest.mark.parametrize("types", ["bf16xbf16->", "bf16*bf16->bf16", ""])
def test_types_of_a_matmul_must_be_written_so(types):
    found = read_matmuls(
        f"{MATMULS}h100,1,8,8,8,{types},5\nh100,1,8,8,8,f32xf32->f32,5\n"
    )
    assert "as bf16xbf16->bf16" in found.skipped[0]


def test_a_type_that_no_array_has():
    found = read_matmuls(
        f"{MATMULS}h100,1,8,8,8,f32xf33->f32,5\nh100,1,8,8,8,f32xf32->f32,5\n"
    )
    assert "types has 'f33'; known are" in found.skipped[0]


def test_columns_are_found_by_name_and_others_left_alone():
    (row,) = read_matmuls(
        "types, note ,n,m,k,batch,microseconds,gpu\n"
        'f32xf32->f32,"two\nlines",2,1,3,4,5,h100\n'
    ).rows
    assert row.matmul == Matmul(4, 1, 2, 3, "f32", "f32", "f32")
    assert (row.microseconds, row.line) == (5.0, 3)


def test_a_missing_column_is_named():
    with pytest.raises(MeasurementError, match=r"my.csv has no column op, devices"):
        read_collectives("gpu,tensor_bytes,microseconds\n1,2,3\n", "my.csv")


def members(**fields):
    row = CollectiveRow(**{"gpu": "", "tensor_bytes": 64, "microseconds": 1, **fields})
    found = collective_of(row, H100)
    return None if found is None else found.groups.members.tolist()


def test_ranks_lie_on_their_hosts():
    group = {"op": "all-gather", "groups": 1}
    assert members(**group, devices=4, group_size=4) == [[0, 1, 2, 3]]
    assert members(**group, devices=4, group_size=4, hosts=2) == [[0, 1, 8, 9]]
    assert members(**group, devices=9, group_size=9) == [list(range(9))]
    assert members(**group, devices=16, group_size=16) == [list(range(16))]
    assert members(**group, devices=32, group_size=32) is None
    assert members(**group, devices=4, group_size=4, hosts=3) is None


def test_groups_and_pairs():
    assert members(op="all-reduce", devices=4, groups=2, group_size=2) == [
        [0, 1],
        [2, 3],
    ]
    pairs = members(op="collective-permute", devices=3, groups=None, group_size=None)
    assert pairs == [[0, 1], [1, 2], [2, 0]]


def test_sides_of_a_collective():
    row = CollectiveRow("", "all-gather", 8, 1, 8, 1024, 1.0)
    gather = collective_of(row, H100)
    assert (gather.operand_bytes, gather.result_bytes, gather.bytes) == (
        128,
        1024,
        1024,
    )


def test_work_of_a_matmul():
    (row,) = read_matmuls(f"{MATMULS},2,8,16,32,f8e4m3fnxbf16->f32,5\n").rows
    work = kernel_of(row).work
    assert work.flops == 2 * 2 * 8 * 16 * 32
    assert work.bytes_read == 2 * (8 * 32 + 2 * 16 * 32)
    assert work.bytes_written == 2 * 8 * 16 * 4
