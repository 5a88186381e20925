"""The model's slowdown for a row of a table of kernels beside collectives."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from lagom_jax.commands.rows import cluster_of, model_of
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad, kernel_load
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.measurements.rows import (
    CollectiveRow,
    MatmulRow,
    collective_of,
    kernel_of,
    matmul_row,
)
from lagom_jax.measurements.spelled import (
    collective_kind,
    product_types,
    version_in,
)
from lagom_jax.measurements.table import Cells, RowError, given, whole
from lagom_jax.plan.setting import REDUCING, Setting, largest_chunk

CONTENTION_COLUMNS: Final = (
    *("gpu", "kernel", "m", "n", "k", "types", "blocks", "collective", "arrays"),
    *("tensor_bytes", "group_size", "channels", "threads", "alone_us"),
)
SEVERAL: Final = "all-gather and reduce-scatter"
"""Word of a table where kernels were beside either; one stands for both."""
_WAITS: Final = "send-recv"
# Of a collective whose size nobody wrote down: long enough to be busy all along.
_LONG_BYTES: Final = 256 << 20
_LL_THREADS: Final = 512
_HOST: Final = 8
_USUAL_TYPE: Final = "bf16"


def predicted_slowdown(cells: Cells) -> float:
    """Slowdown of the row's kernel beside its collective.

    Args:
        cells: Of the columns `CONTENTION_COLUMNS`, empty where nobody knows: then a
            matmul is as long as `alone_us` says and about square, or as long as the
            model says where its sizes are known, another kernel is limited by
            memory but for its launch, and a send or receive waits.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = dict.fromkeys(CONTENTION_COLUMNS, "")
        >>> row |= {"gpu": "a100-sxm", "kernel": "copy", "alone_us": "5"}
        >>> row |= {"collective": "all-gather", "group_size": "4"}
        >>> 1.5 < predicted_slowdown(row) < 2.5
        True
    """
    gpu, spelled = cells["gpu"].strip(), cells["collective"].strip()
    cluster_of(gpu, 1)
    if spelled.lower() == _WAITS and not given(cells, "tensor_bytes"):
        return 1.0
    kind = "all-gather" if spelled == SEVERAL else collective_kind(spelled)
    size, nccl = _number(cells, "group_size") or _HOST, given(cells, "nccl")
    model = model_of(gpu, size, nccl=version_in(nccl))
    collective = _collective_load(cells, kind, size, model)
    return model.contention().slowdown(_kernel_load(cells, model), collective)


def _collective_load(
    cells: Cells, kind: str, size: int, model: CostModel
) -> CollectiveLoad:
    row = CollectiveRow(
        gpu=cells["gpu"],
        op=kind,
        devices=size,
        groups=1,
        group_size=size,
        tensor_bytes=_number(cells, "tensor_bytes") or _LONG_BYTES,
    )
    task = collective_of(row, model.cluster)
    if task is None:
        raise RowError(f"{size} devices do not fit on {model.cluster.name}")
    count = max(1, _number(cells, "arrays"))
    element, nbytes = task.operands[0]
    task = dataclasses.replace(task, operands=((element, nbytes // count),) * count)
    channels, threads = _number(cells, "channels"), _number(cells, "threads")
    if channels and kind in REDUCING and threads in (_LL_THREADS, _LL_THREADS + 32):
        protocol = "ll" if threads == _LL_THREADS else "simple"
        chunk = largest_chunk("ring", protocol)
        told = Setting("ring", protocol, channels, threads, chunk)
        model = model.under({task: told})
    return model.collective_load(task)


def _kernel_load(cells: Cells, model: CostModel) -> KernelLoad:
    gpu, blocks = model.cluster.gpu, _number(cells, "blocks")
    if "matmul" in cells["kernel"].lower():
        kernel = kernel_of(matmul_row(_matmul_cells(cells, model)))
        alone = model.kernel(kernel).seconds
        if given(cells, "alone_us"):
            alone = _seconds(cells)
        load = kernel_load(kernel.work, Price(alone, "arithmetic"), gpu)
        return dataclasses.replace(load, tiles=blocks or load.tiles)
    kernels, alone = model.constants.kernels, _seconds(cells)
    share = max(0.0, 1 - kernels.start_seconds / alone)
    if blocks:
        share *= min(1.0, blocks / gpu.sm_count)
    return KernelLoad(share * kernels.memory_shares["fusion"], 0.0, 0, alone)


def _matmul_cells(cells: Cells, model: CostModel) -> Cells:
    types = product_types(given(cells, "types") or _USUAL_TYPE)
    full = {**cells, "batch": "1", "types": "{}x{}->{}".format(*types)}
    if not given(cells, "m"):
        probe = Matmul(1, 1024, 1024, 1024, *types)
        rate = probe.flops / model.kernel(kernel_of(MatmulRow("", probe))).seconds
        side = str(max(1, round((_seconds(cells) * rate / 2) ** (1 / 3))))
        full |= {"m": side, "n": side, "k": side}
    return full


def _number(cells: Cells, name: str) -> int:
    return whole(cells, name, 0) if given(cells, name) else 0


def _seconds(cells: Cells) -> float:
    text = given(cells, "alone_us")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RowError(f"alone_us is {text!r}, not a time")
    return value * 1e-6
