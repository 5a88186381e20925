"""Reading what the programs of nccl-tests print."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.rows import CollectiveRow

_KINDS = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": "collective-permute",
}
_PROGRAM = re.compile(r"\b(" + "|".join(_KINDS) + r")_perf\b")
_OTHER_PROGRAM = re.compile(r"\b(?:broadcast|reduce|gather|scatter|hypercube)_perf\b")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?$")
# Of the bus bandwidth to the bandwidth of the algorithm: (n-1)/n, times this.
_BUS_FACTOR = {
    "all-gather": 1,
    "all-reduce": 2,
    "reduce-scatter": 1,
    "all-to-all": 1,
}


@dataclasses.dataclass(frozen=True, slots=True)
class NcclTests:
    """Rows of one file, and the lines that could not be used."""

    rows: tuple[CollectiveRow, ...]
    skipped: tuple[str, ...]
    """Lines that could not be used, with their numbers."""


@dataclasses.dataclass(slots=True)
class _Run:
    """One run of one program, as far as its output has been read."""

    kind: str = ""
    ranks: set[int] = dataclasses.field(default_factory=set[int])
    groups: set[int] = dataclasses.field(default_factory=set[int])
    hosts: set[str] = dataclasses.field(default_factory=set[str])
    columns: int = 0
    """From the first `time` on, in the line of column names."""
    rows: list[tuple[int, int, float, float, float]] = dataclasses.field(
        default_factory=list[tuple[int, int, float, float, float]]
    )
    """Line number, bytes, microseconds, and both bandwidths."""


def read_nccl_tests(
    text: str,
    *,
    gpu: str = "",
    ranks: int | None = None,
    operation: str = "",
    origin: str = "",
) -> NcclTests:
    """Reads the output of one or several runs.

    The operation is taken from the output (`# Collective test starting`, or the command
    line, if it stands there), else from the name of the file. The ranks are counted in
    the list of devices; where that is missing, they follow from the two bandwidths. The
    out-of-place times count: XLA's collectives write to another buffer.

    Args:
        text: What the program printed.
        gpu: What to write into the rows' column of that name.
        ranks: The number of GPUs, where the output does not show it.
        operation: The program, such as `all_gather_perf`, where it shows none.
        origin: The name of the file, for messages.

    Raises:
        MeasurementError: It is no such output, or does not say which operation, or how
            many ranks.

    Example:
        >>> text = '''# Collective test starting: all_gather_perf
        ... # size   count  type   redop  root  time  algbw  busbw #wrong
        ...  1048576 32768  float  none   -1    20.0  52.43  45.88      0
        ... '''
        >>> read_nccl_tests(text).rows[0].group_size
        8
    """
    hint = _PROGRAM.search(operation) or _PROGRAM.search(Path(origin).stem + " ")
    fallback = _KINDS[hint[1]] if hint else _bare(operation or Path(origin).stem)
    skipped: list[str] = []
    runs: list[_Run] = []
    current = _Run()
    for number, line in enumerate(text.splitlines(), 1):
        named = _PROGRAM.search(line)
        other = _OTHER_PROGRAM.search(line) if not named else None
        starts = "# nThread" in line
        if current.rows and (named or other or starts or "Rank  0 " in line):
            runs.append(current)
            current = _Run()
        if named or other:
            current.kind = _KINDS[named[1]] if named else "?"
        _read_line(line, number, current, skipped)
    runs.append(current)
    rows: list[CollectiveRow] = []
    for run in runs:
        if not run.rows:
            continue
        run.kind = run.kind or fallback
        if run.kind == "?":
            skipped.append(
                f"line {run.rows[0][0]}: an operation that XLA does not use this way"
            )
            continue
        rows.extend(_rows(run, gpu, ranks, origin))
    if not rows:
        raise MeasurementError(
            f"{origin or 'the text'} holds no table of nccl-tests; keep what "
            "all_gather_perf, all_reduce_perf, reduce_scatter_perf, alltoall_perf or "
            "sendrecv_perf print, from the lines that begin with # on"
        )
    return NcclTests(tuple(rows), tuple(skipped))


def _bare(name: str) -> str:
    """The kind in a file's name: `all_reduce-8gpus`, `alltoall`."""
    found = [kind for word, kind in _KINDS.items() if word in name.replace("-", "_")]
    return found[0] if len(found) == 1 else ""


def _read_line(line: str, number: int, run: _Run, skipped: list[str]) -> None:
    rank = _RANK.search(line)
    words = line.split()
    if rank:
        run.ranks.add(int(rank[1]))
        run.groups.add(int(rank[2] or 0))
        run.hosts.add(rank[3])
    elif "busbw" in words and "time" in words:
        run.columns = len(words) - words.index("time")
    elif run.columns and len(words) > run.columns and words[0].isdecimal():
        # Counted from the right: the column `root` may be blank.
        size, figures = int(words[0]), words[-run.columns :]
        if not all(map(_NUMBER.match, figures[:3])) or not words[1].isdecimal():
            skipped.append(f"line {number}: no time for {size} bytes")
            return
        time, algorithm, bus = map(float, figures[:3])
        if not time or not size:
            return
        # The bandwidth is printed with two decimals.
        if abs(size / time * 1e-3 - algorithm) > 0.006 + 0.02 * algorithm:
            skipped.append(f"line {number}: time and bandwidth contradict each other")
            return
        run.rows.append((number, size, time, algorithm, bus))


def _rows(run: _Run, gpu: str, ranks: int | None, origin: str) -> list[CollectiveRow]:
    if not run.kind:
        raise MeasurementError(
            f"{origin or 'the output'} does not say which operation it measured; name "
            "the file after the program, as in all_gather_perf.txt"
        )
    devices = ranks or len(run.ranks) or _ranks_from_bandwidths(run)
    if not devices:
        raise MeasurementError(
            f"{origin or 'the output'} does not list the ranks; say how many GPUs took "
            "part (--ranks)"
        )
    groups = max(1, len(run.groups))
    pairs = run.kind == "collective-permute"
    return [
        CollectiveRow(
            gpu=gpu,
            op=run.kind,
            devices=devices,
            groups=None if pairs else groups,
            group_size=None if pairs else devices // groups,
            tensor_bytes=size,
            microseconds=time,
            hosts=len(run.hosts),
            line=number,
        )
        for number, size, time, _, _ in run.rows
    ]


def _ranks_from_bandwidths(run: _Run) -> int:
    """The number of ranks that follows from the two bandwidths; 0 if none does."""
    factor = _BUS_FACTOR.get(run.kind)
    algorithm, bus = max(row[3:] for row in run.rows)
    share = bus / factor / algorithm if factor and algorithm else 0.0
    if not 0 < share < 1:
        return 0
    ranks = round(1 / (1 - share))
    # Both are rounded to two decimals, which must tell a number from its neighbours.
    doubt = ranks**2 * 0.01 / algorithm
    return ranks if doubt < 0.5 else 0
