"""GPUs, links and systems from their JSON records, by name or by path."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from pathlib import Path

from lagom_jax.cluster.hardware import Gpu, Link, System
from lagom_jax.cluster.record_file import Fact, RecordFile
from lagom_jax.errors import ClusterError

_RECORDS = Path(__file__).parent / "records"
_LINK_KINDS = ("nvlink", "pcie", "network")
_TRIPLES = ("grid_size_limit", "block_size_limit")
_COUNTS = (
    "sm_count",
    "fp32_lanes_per_sm",
    "boost_clock_hz",
    "memory_bytes",
    "memory_bytes_per_s",
    "l2_bytes",
    "shared_memory_bytes_per_sm",
    "shared_memory_bytes_per_block",
    "shared_memory_bytes_per_block_optin",
    "shared_memory_bytes_reserved_per_block",
    "registers_per_sm",
    "registers_per_block",
    "threads_per_sm",
    "threads_per_block",
    "threads_per_warp",
    "blocks_per_sm",
)


def system_names() -> tuple[str, ...]:
    """Names of the systems that lagom_jax knows, sorted.

    Example:
        >>> "gb200-nvl72" in system_names()
        True
    """
    return tuple(sorted(path.stem for path in (_RECORDS / "systems").glob("*.json")))


def read_system(name_or_path: str) -> System:
    """The system of a known name, or in a JSON file of the user's.

    Args:
        name_or_path: one of `system_names()`, or a path, which has a slash in it or
            ends in `.json`. A user's record names its GPU and its links in the same
            way; paths in it start from the directory that it is in.

    Returns:
        The system with its GPU and links, all of them validated.

    Raises:
        ClusterError: there is no such record, or something is wrong in it.

    Example:
        >>> read_system("gb200-nvl72").hosts_per_domain
        18
    """
    path = _locate(name_or_path, "systems", Path())
    if path.is_relative_to(_RECORDS):
        return _builtin_system(path)
    return _load_system(path)


@functools.cache
def _builtin_system(path: Path) -> System:
    return _load_system(path)


def _load_system(path: Path) -> System:
    record = RecordFile.read(path)
    record.expect_keys(
        *("name", "title", "gpu", "inside", "between", "to_host"),
        *("facts", "sources", "notes"),
    )
    facts = record.facts(("gpus_per_host", "hosts_per_domain", "nics_per_host"))
    record.check_sources(facts)
    gpus_per_host, hosts_per_domain, nics_per_host = map(record.count, facts)
    gpu = _load_gpu(_locate(record.text("gpu"), "gpus", path.parent))
    links = {
        role: _load_link(_locate(record.text(role), "links", path.parent))
        for role in ("inside", "between", "to_host")
    }
    adapter, inside = links["between"], links["inside"]
    if adapter.kind != "network":
        raise record.error("between", "must be a link of the kind `network`")
    if inside.kind == "network":
        raise record.error("inside", "must be a link of the kind `nvlink` or `pcie`")
    if inside.kind != "nvlink":
        gpu = dataclasses.replace(gpu, nvlink_links=0)
    share = adapter.bytes_per_s * nics_per_host / gpus_per_host
    return System(
        name=record.text("name"),
        title=record.text("title"),
        gpu=gpu,
        inside=inside,
        between=dataclasses.replace(adapter, bytes_per_s=share),
        to_host=links["to_host"],
        gpus_per_host=gpus_per_host,
        hosts_per_domain=hosts_per_domain,
        nics_per_host=nics_per_host,
        sources=_sources(facts),
        notes=record.texts("notes"),
    )


def _load_gpu(path: Path) -> Gpu:
    record = RecordFile.read(path)
    record.expect_keys(
        *("name", "title", "xla_device_name", "compute_capability"),
        *("facts", "sources"),
    )
    facts = record.facts(
        (*_COUNTS, *_TRIPLES, "nvlink_links"),
        tables=("dense_flops_per_s", "vector_flops_per_s"),
    )
    dense = record.fact_table(
        "dense_flops_per_s", ("bf16", "f16", "tf32", "s8"), ("f8", "f4", "f64")
    )
    vector = record.fact_table("vector_flops_per_s", ("f32", "f64"))
    record.check_sources([*facts, *dense, *vector])
    by_name = {_name(fact): fact for fact in facts}
    return Gpu(
        name=record.text("name"),
        title=record.text("title"),
        xla_device_name=record.text("xla_device_name"),
        compute_capability=record.text("compute_capability"),
        **{key: record.count(by_name[key]) for key in _COUNTS},
        grid_size_limit=record.triple(by_name["grid_size_limit"]),
        block_size_limit=record.triple(by_name["block_size_limit"]),
        nvlink_links=record.count(by_name["nvlink_links"], least=0),
        dense_flops_per_s={_name(fact): record.count(fact) for fact in dense},
        vector_flops_per_s={_name(fact): record.count(fact) for fact in vector},
        sources=_sources([*facts, *dense, *vector]),
    )


def _load_link(path: Path) -> Link:
    record = RecordFile.read(path)
    record.expect_keys("name", "title", "kind", "facts", "sources")
    facts = record.facts(("bytes_per_s", "latency_s"), optional=("gpus_joined",))
    record.check_sources(facts)
    kind = record.text("kind")
    if kind not in _LINK_KINDS:
        raise record.error("kind", f"must be one of {', '.join(_LINK_KINDS)}")
    bytes_per_s, latency_s, *joined = facts
    return Link(
        name=record.text("name"),
        title=record.text("title"),
        kind=kind,
        bytes_per_s=record.quantity(bytes_per_s),
        latency_s=record.quantity(latency_s),
        sources=_sources(facts),
        gpus_joined=record.count(joined[0], least=2) if joined else None,
    )


def _locate(name_or_path: str, folder: str, directory: Path) -> Path:
    if "/" in name_or_path or name_or_path.endswith(".json"):
        return directory / name_or_path
    known = {path.stem: path for path in (_RECORDS / folder).glob("*.json")}
    typed = name_or_path.lower()
    if typed in known:
        return known[typed]
    near = [name for name in sorted(known) if typed and name.startswith(typed)]
    near = near or difflib.get_close_matches(typed, known, n=1)
    raise ClusterError(
        f"no {folder.removesuffix('s')} is known as {name_or_path!r}"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + f" Known: {', '.join(sorted(known))}."
        + " A record of your own is given by its path, such as ./mine.json"
    )


def _name(fact: Fact) -> str:
    return fact.key.rpartition(".")[2]


def _sources(facts: list[Fact]) -> dict[str, str]:
    return {fact.key.removeprefix("facts."): fact.source for fact in facts}
