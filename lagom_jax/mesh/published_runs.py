"""Published training runs: rows of a table, predicted for the mesh that they name."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.measurements.table import Cells, RowError, whole
from lagom_jax.mesh.estimate import MeshEstimate, estimate
from lagom_jax.mesh.frameworks import Framework, framework_named, frameworks
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import ModelShape, published_shape
from lagom_jax.mesh.sizes import MeshSizes, Remat, StepBatch

RUN_COLUMNS: Final = ("framework", "model", "gpu", "num_gpus", "gbs_seqs", "seq_len")
"""Columns that a table of training runs must have."""
_VOCABULARY: Final = 51200
"""Of GPT-2, padded: where a row names none."""
_MOST_WORDS: Final = 262144
"""Of the largest vocabularies in use."""
_SYSTEMS: Final = {
    "A100": "a100",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "L40S": "l40s",
    "V100": "a100",
}
_PRODUCTS: Final = {"fp8": "f8e4m3fn", "mxfp8": "f8e4m3fn", "nvfp4": "f4e2m1fn"}
_TOLD: Final = ("bf16", "fp16")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*Gb(?:ps|/s|it/s)")
# GPU memory by the size in its name: what is left of it for a program.
_MEMORY: Final = re.compile(r"(\d+)GB")
_OPA_BYTES_PER_S: Final = 12.5e9
# NVIDIA's data sheet of the V100 SXM2; other constants are the A100's. Of its six links
# two join each pair of four GPUs, without a switch.
_V100: Final = {
    "sm_count": 80,
    "boost_clock_hz": 1_530_000_000,
    "memory_bytes_per_s": 900_000_000_000,
    "l2_bytes": 6 << 20,
}
_V100_RATE: Final = 125_000_000_000_000
_V100_LINK: Final = 150e9


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedRun:
    """A row's model, cluster, batch and mesh."""

    shape: ModelShape
    cluster: Cluster
    batch: StepBatch
    sizes: MeshSizes
    framework: Framework


@dataclasses.dataclass(frozen=True, slots=True)
class RunPrediction:
    """Figures that are predicted of a published run."""

    seconds: float
    memory_bytes: int
    fits: bool
    estimate: MeshEstimate
    run: PublishedRun


def predicted_run(
    cells: Cells, *, level: bool = True, framework: Framework | None = None
) -> RunPrediction:
    """Predicts the run of one row.

    Args:
        cells: Text by column.
        level: Times the framework's constant for the level of published times.
        framework: In place of the one that the row names.

    Raises:
        RowError: The row names no dimensions, or a mesh that cannot be.

    Example:
        >>> row = {"framework": "MaxText (JAX)", "model": "Llama 3 70B", "gpu": "H100",
        ...        "num_gpus": "128", "gbs_seqs": "256", "mbs_seqs": "2",
        ...        "seq_len": "8192", "fsdp": "128", "layers": "80", "hidden": "8192",
        ...        "heads": "64", "kv_heads": "8", "ffn": "28672", "vocab": "128256"}
        >>> predicted_run(row).fits
        True
    """
    framework = framework or _framework(cells)
    if _text(cells, "kernel") == "no Transformer Engine":
        framework = dataclasses.replace(framework, fused_attention=False)
    if not level:
        framework = dataclasses.replace(framework, level=1.0)
    shape = _shape(cells)
    cluster = _cluster(
        *(_text(cells, "gpu"), whole(cells, "num_gpus")),
        *(_count(cells, "gpus_per_host", 0), _text(cells, "network")),
    )
    batch = StepBatch(
        whole(cells, "gbs_seqs"),
        whole(cells, "seq_len"),
        _PRODUCTS.get(_text(cells, "precision").split("-")[0], "bf16"),
    )
    sizes = _sizes(cells, cluster, framework)
    if batch.micro_batches(sizes) < 1:
        raise RowError(
            f"{batch.sequences} sequences do not divide over {sizes.replicas} replicas "
            f"with micro batches of {sizes.micro_batch}"
        )
    room = cluster.gpu.memory_bytes
    for one in _left_open(cells, sizes):
        if mesh_memory(shape, one, batch, framework).total <= room:
            sizes = one
            break
    found = estimate(shape, sizes, batch, framework, _prices(cluster))
    needed = found.memory.total
    run = PublishedRun(shape, cluster, batch, sizes, framework)
    return RunPrediction(found.seconds, needed, needed <= room, found, run)


def _left_open(cells: Cells, sizes: MeshSizes) -> Iterator[MeshSizes]:
    """The meshes that a row may mean, the fastest first.

    It need not name its remat, and often says only over how many GPUs weights are cut.
    """
    remats: tuple[Remat, ...] = (sizes.remat,)
    if not _text(cells, "remat"):
        remats = ("selective", "full")
    whole = [dataclasses.replace(sizes, remat=remat) for remat in remats]
    yield from whole
    if not _text(cells, "zero") and sizes.data > 1 and sizes.pipeline == 1:
        for one in whole:
            yield dataclasses.replace(one, data=1, fsdp=sizes.data * sizes.fsdp)


def _text(cells: Cells, column: str) -> str:
    return cells.get(column, "").strip()


def _count(cells: Cells, column: str, default: int) -> int:
    return whole(cells, column, 0) if _text(cells, column) else default


def _framework(cells: Cells) -> Framework:
    name = _text(cells, "framework")
    titles = {one: _short_title(one) for one in frameworks().values()}
    inside = [title for title in titles.values() if title and title in name.lower()]
    longest = max(inside, key=len, default="")
    same = [one for one, title in titles.items() if inside and title == longest]
    if same:
        told = _text(cells, "precision")
        kind = "fp16" if _kind(cells) == "V100" else told if told in _TOLD else "16-bit"
        return next((one for one in same if one.multiplies == kind), same[0])
    cut = _count(cells, "fsdp", 1) > 1 or _text(cells, "zero") == "3"
    jax = "jax" in name.lower() or "maxtext" in name.lower()
    return framework_named("maxtext" if jax else "fsdp" if cut else "megatron")


def _short_title(framework: Framework) -> str:
    """Its name in tables, without release or library; other releases have it, too."""
    return framework.published_as.partition(" (")[0].lower()


def _kind(cells: Cells) -> str:
    """The GPU's name without its memory."""
    return _text(cells, "gpu").split("-")[0].upper()


def _shape(cells: Cells) -> ModelShape:
    """Dimensions of the row's model.

    Where only the width is given, the layers follow from the size in the model's name;
    sizes of the GPT-3 family are known without any.
    """
    name = _text(cells, "model")
    width, layers = _count(cells, "hidden", 0), _count(cells, "layers", 0)
    words = _count(cells, "vocab", 0) or _words(name, layers, width)
    if not width:
        return _known(name, layers)
    if not layers:
        size = _billions(cells, name) * 1e9 - words * width
        stages = max(1, _count(cells, "pp", 1))
        layers = max(1, round(size / (12 * width**2) / stages)) * stages
    tensor = max(1, _count(cells, "tp", 1))
    heads = _count(cells, "heads", 0) or _heads(width, tensor)
    hidden = _count(cells, "ffn", 0) or 4 * width
    gated = hidden != 4 * width
    return ModelShape(
        name=name,
        vocabulary=-(-words // (128 * tensor)) * 128 * tensor,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=_count(cells, "kv_heads", 0) or heads,
        hidden=hidden,
        gated=gated,
        layer_norm=not gated,
        bias=not gated,
        tied=not gated,
    )


def _words(name: str, layers: int, width: int) -> int:
    """Vocabulary that the size in a model's name leaves beside its layers.

    Sizes are rounded, so that only larger ones than GPT-2's are told from it.
    """
    found = _SIZE.search(name)
    if not (found and layers and width):
        return _VOCABULARY
    left = _billions({}, name) * 1e9 - 12 * layers * width**2
    return min(max(round(left / width), _VOCABULARY), _MOST_WORDS)


def _known(name: str, layers: int) -> ModelShape:
    found = _SIZE.search(name)
    key = f"gpt-3-{found[1]}{found[2]}".lower() if found else ""
    if not name.lower().startswith("gpt") or "oss" in name.lower():
        raise RowError(f"{name or 'the model'} is not given by its dimensions")
    try:
        shape = published_shape(key)
    except ValueError:
        raise RowError(f"{name} is not given by its dimensions") from None
    return dataclasses.replace(shape, layers=layers or shape.layers)


def _billions(cells: Cells, name: str) -> float:
    if _text(cells, "params"):
        return whole(cells, "params") / 1e9
    found = _SIZE.search(name)
    if not found:
        raise RowError(f"{name or 'the model'} is not given by its dimensions")
    return float(found[1]) / (1 if found[2].upper() == "B" else 1e3)


def _heads(width: int, tensor: int) -> int:
    """As many heads as divide the width, about 128 wide each."""
    fits = [n for n in range(1, width // 32 + 1) if width % n == 0 and n % tensor == 0]
    return min(fits or [tensor], key=lambda n: abs(width / n - 128))


@functools.cache
def _cluster(gpu: str, devices: int, per_host: int, network: str) -> Cluster:
    kind = gpu.split("-")[0].upper()
    if kind not in _SYSTEMS:
        raise RowError(f"no GPU {gpu!r}; known are {', '.join(_SYSTEMS)}")
    one = Cluster.parse(_SYSTEMS[kind])
    full = per_host or one.system.gpus_per_host
    each = min(full, devices, one.system.gpus_per_host)
    hosts = -(-devices // each)
    cluster = Cluster.parse(f"{_SYSTEMS[kind]}:{hosts}x{each}")
    system, card = cluster.system, cluster.gpu
    memory = _MEMORY.search(gpu)
    if memory:
        card = dataclasses.replace(card, memory_bytes=int(memory[1]) * 2**30)
    if kind == "V100":
        card = dataclasses.replace(card, **_V100)
        rates = {**card.dense_flops_per_s, "bf16": _V100_RATE, "f16": _V100_RATE}
        card = dataclasses.replace(card, dense_flops_per_s=rates)
        inside = dataclasses.replace(system.inside, bytes_per_s=_V100_LINK)
        system = dataclasses.replace(system, inside=inside)
    rate = _network_rate(network)
    if rate:
        between = dataclasses.replace(system.between, bytes_per_s=rate / full)
        system = dataclasses.replace(system, between=between)
    return dataclasses.replace(cluster, system=dataclasses.replace(system, gpu=card))


def _network_rate(network: str) -> float:
    """Bytes per second of a host, where the row says so; 0 if it does not."""
    if "OPA" in network:
        return 4 * _OPA_BYTES_PER_S
    found = _RATE.search(network)
    return float(found[1]) * 1e9 / 8 if found else 0.0


@functools.cache
def _prices(cluster: Cluster) -> MeshPrices:
    return MeshPrices(CostModel.of(cluster))


def _sizes(cells: Cells, cluster: Cluster, framework: Framework) -> MeshSizes:
    tensor, pipeline = _count(cells, "tp", 1) or 1, _count(cells, "pp", 1) or 1
    sequence, expert = _count(cells, "cp", 1) or 1, _count(cells, "ep", 1) or 1
    replicas = cluster.devices // (tensor * pipeline * sequence)
    if replicas * tensor * pipeline * sequence != cluster.devices:
        raise RowError(
            f"tp {tensor}, pp {pipeline} and cp {sequence} do not divide "
            f"{cluster.devices} GPUs"
        )
    cut = _count(cells, "fsdp", 1) > 1 or _text(cells, "zero") == "3"
    if replicas % expert:
        raise RowError(f"ep {expert} does not divide {replicas} replicas")
    rest = replicas // expert
    fsdp = rest if cut else 1
    given = _count(cells, "fsdp", 1)
    if cut and 1 < given < rest and rest % given == 0:
        fsdp = given
    micro = _count(cells, "mbs_seqs", 0) or 1
    along = _text(cells, "sp_megatron").lower() in ("1", "true")
    along = along or (framework.cuts_sequence and not _text(cells, "sp_megatron"))
    return MeshSizes(
        data=rest // fsdp,
        fsdp=fsdp,
        tensor=tensor,
        sequence=sequence,
        pipeline=pipeline,
        expert=expert,
        micro_batch=micro,
        remat=_remat(_text(cells, "remat")),
        tensor_sequence=along and tensor > 1,
        interleave=_count(cells, "vp", 1) or 1,
    )


def _remat(text: str) -> Remat:
    if text.startswith("full"):
        return "full"
    return "none" if text == "none" else "selective"
