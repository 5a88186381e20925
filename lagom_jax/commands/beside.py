"""The model's slowdown for a row of a table of kernels beside collectives."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from lagom_jax.commands.rows import model_of
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
from lagom_jax.measurements.table import Cells, RowError, whole
from lagom_jax.plan.setting import Setting, largest_chunk

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
_ELEMENTS: Final = {"tf32": "f32"}


def predicted_slowdown(cells: Cells) -> float:
    """Slowdown of the row's kernel beside its collective.

    Args:
        cells: Of the columns `CONTENTION_COLUMNS`, empty where nobody knows: then a
            matmul is as long as `alone_us` says and about square, another kernel
            is limited by memory but for its launch, and a send or receive waits.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = dict.fromkeys(CONTENTION_COLUMNS, "")
        >>> row |= {"gpu": "a100-sxm", "kernel": "copy", "alone_us": "5"}
        >>> row |= {"collective": "all-gather", "group_size": "4"}
        >>> 1.5 < predicted_slowdown(row) < 2.5
        True
    """
    kind = cells["collective"].strip()
    kind = "all-gather" if kind == SEVERAL else kind
    if kind == _WAITS and not cells["tensor_bytes"].strip():
        return 1.0
    model = model_of(cells["gpu"].strip(), 8, nccl=cells.get("nccl", "").strip())
    collective = _collective_load(cells, kind, model)
    return model.contention().slowdown(_kernel_load(cells, model), collective)


def _collective_load(cells: Cells, kind: str, model: CostModel) -> CollectiveLoad:
    size = _number(cells, "group_size") or model.cluster.gpus_per_host
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
    if channels and threads in (_LL_THREADS, _LL_THREADS + 32):
        protocol = "ll" if threads == _LL_THREADS else "simple"
        chunk = largest_chunk("ring", protocol)
        told = Setting("ring", protocol, channels, threads, chunk)
        model = model.under({task: told})
    return model.collective_load(task)


def _kernel_load(cells: Cells, model: CostModel) -> KernelLoad:
    alone = _seconds(cells)
    gpu, blocks = model.cluster.gpu, _number(cells, "blocks")
    if "matmul" in cells["kernel"]:
        work = kernel_of(matmul_row(_matmul_cells(cells, model, alone))).work
        load = kernel_load(work, Price(alone, "arithmetic"), gpu)
        return dataclasses.replace(load, tiles=blocks or load.tiles)
    kernels = model.constants.kernels
    share = max(0.0, 1 - kernels.start_seconds / alone)
    if blocks:
        share *= min(1.0, blocks / gpu.sm_count)
    return KernelLoad(share * kernels.memory_shares["fusion"], 0.0, 0, alone)


def _matmul_cells(cells: Cells, model: CostModel, alone: float) -> Cells:
    types = cells["types"].strip()
    types = _ELEMENTS.get(types, types)
    full = {**cells, "batch": "1", "types": f"{types}x{types}->{types}"}
    if not cells["m"].strip():
        probe = Matmul(1, 1024, 1024, 1024, types, types, types)
        rate = probe.flops / model.kernel(kernel_of(MatmulRow("", probe))).seconds
        side = str(max(1, round((alone * rate / 2) ** (1 / 3))))
        full |= {"m": side, "n": side, "k": side}
    return full


def _number(cells: Cells, name: str) -> int:
    return whole(cells, name, 0) if cells[name].strip() else 0


def _seconds(cells: Cells) -> float:
    text = cells["alone_us"].strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RowError(f"alone_us is {text!r}, not a time")
    return value * 1e-6
