"""Output of nccl-tests, in its format, with figures made up here."""

import pytest

from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.nccl_tests import read_nccl_tests

BUS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}


def output(
    program="all_gather",
    *,
    ranks=8,
    hosts=1,
    groups=1,
    sizes=(1 << 10, 1 << 20, 1 << 28),
    rate=100e3,
    announced=True,
    listed=True,
    blank_root=False,
    wrong="0",
):
    """What a run prints; `rate` is bytes per microsecond of the algorithm."""
    lines = ["# nccl-tests version 2.17.1"]
    if announced:
        lines.append(f"# Collective test starting: {program}_perf")
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor)", "#"]
    lines.append("# Using devices")
    if listed:
        lines += [
            f"#  Rank {rank:2} Group {rank * groups // ranks:2} Pid {4000 + rank} on "
            f"  node{rank * hosts // ranks:03} device {rank % 8:2} [0x{rank}f] NVIDIA H100"
            for rank in range(ranks)
        ]
    lines += [
        "#",
        "#                                   out-of-place              in-place",
        "#  size   count   type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong",
        "#   (B)  (elements)                         (us)  (GB/s)  (GB/s)"
        "            (us)  (GB/s)  (GB/s)",
    ]
    share = BUS.get(program, 1) * (ranks // groups - 1) / (ranks // groups)
    root = "" if blank_root else "-1"
    for size in sizes:
        time = 10 + size / rate
        algorithm = size / time / 1e3
        bus = algorithm * (share if program in BUS else 1)
        figures = f"{time:8.2f} {algorithm:7.2f} {bus:7.2f} {wrong:>6}"
        lines.append(
            f"{size:12} {size // 4:12}  float   sum  {root:>6} {figures} {figures}"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#", ""]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("all_gather", "all-gather"),
        ("all_reduce", "all-reduce"),
        ("reduce_scatter", "reduce-scatter"),
        ("alltoall", "all-to-all"),
    ],
)
def test_a_run_in_groups(program, kind):
    rows = read_nccl_tests(output(program), gpu="h100").rows
    assert [row.tensor_bytes for row in rows] == [1 << 10, 1 << 20, 1 << 28]
    (row, *_) = rows
    assert (row.gpu, row.op) == ("h100", kind)
    assert (row.devices, row.groups, row.group_size, row.hosts) == (8, 1, 8, 1)
    assert row.microseconds == pytest.approx(10.01, abs=0.005)


def test_pairs():
    (row, *_) = read_nccl_tests(output("sendrecv", ranks=4)).rows
    assert (row.op, row.devices, row.groups) == ("collective-permute", 4, None)


def test_hosts_and_groups_are_counted():
    (row, *_) = read_nccl_tests(output(ranks=16, hosts=2, groups=4)).rows
    assert (row.devices, row.groups, row.group_size, row.hosts) == (16, 4, 4, 2)


@pytest.mark.parametrize("program", BUS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ranks_follow_from_the_bandwidths(program, ranks):
    text = output(program, ranks=ranks, listed=False, sizes=(1 << 10, 1 << 28, 1 << 30))
    assert read_nccl_tests(text).rows[0].devices == ranks


def test_ranks_that_cannot_be_told_are_asked_for():
    text = output("sendrecv", listed=False)
    with pytest.raises(MeasurementError, match="--ranks"):
        read_nccl_tests(text)
    assert read_nccl_tests(text, ranks=6).rows[0].devices == 6


def test_few_bytes_cannot_tell_ranks():
    with pytest.raises(MeasurementError, match="--ranks"):
        read_nccl_tests(output(listed=False, sizes=(64, 128)))


@pytest.mark.parametrize(
    "more", [{"blank_root": True}, {"wrong": "N/A"}], ids=["root", "unchecked"]
)
def test_columns_that_older_or_faster_runs_leave_blank(more):
    assert read_nccl_tests(output(**more)).rows == read_nccl_tests(output()).rows


def test_several_runs_in_one_file():
    text = output() + output("all_reduce", ranks=4)
    rows = read_nccl_tests(text).rows
    assert [(r.op, r.devices) for r in rows] == [("all-gather", 8)] * 3 + [
        ("all-reduce", 4)
    ] * 3


def test_the_same_program_twice():
    assert len(read_nccl_tests(output() + output(ranks=4)).rows) == 6


def test_the_operation_from_the_command_line_or_the_name_of_the_file():
    plain = output(announced=False)
    typed = f"$ mpirun -np 8 ./build/all_gather_perf -b 8 -e 8G -f 2\n{plain}"
    assert read_nccl_tests(typed).rows[0].op == "all-gather"
    for name in ("runs/all_gather_perf.txt", "all-gather-8gpus.log", "all_gather.txt"):
        assert read_nccl_tests(plain, origin=name).rows[0].op == "all-gather"
    with pytest.raises(MeasurementError, match="which operation"):
        read_nccl_tests(plain, origin="results.txt")


def test_operations_that_xla_does_not_use_are_left_out():
    found = read_nccl_tests(output("broadcast") + output())
    assert {row.op for row in found.rows} == {"all-gather"}
    assert "does not use" in found.skipped[0]


def test_rows_that_contradict_themselves_are_told():
    text = output().replace("10.01", "77.00")
    found = read_nccl_tests(text)
    assert len(found.rows) == 2
    assert found.skipped == (
        f"line {text[: text.index('77.00')].count(chr(10)) + 1}: "
        "time and bandwidth contradict each other",
    )


def test_noise_between_the_lines_does_not_matter():
    noisy = output().replace(
        "#\n", "#\nnode000:12:34 [0] NCCL INFO Connected all rings\n\n"
    )
    assert len(read_nccl_tests(noisy).rows) == 3


@pytest.mark.parametrize("text", ["", "not a table", "# size time busbw\n", "\x00\xff"])
def test_garbage_is_refused(text):
    with pytest.raises(MeasurementError, match="no table of nccl-tests"):
        read_nccl_tests(text, origin="all_gather_perf.txt")
