"""The records as tables in Markdown, for the documentation.

`python -m lagom_jax.cluster.tables docs/reference/clusters.md` writes them into the
document, in place of what stands between its markers.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from lagom_jax.cluster.cluster import Cluster
from lagom_jax.cluster.hardware import Gpu

_UNITS: dict[str, tuple[float, str]] = {
    "hz": (1e9, "GHz"),
    "bytes_per_s": (1e9, "GB/s"),
    "flops_per_s": (1e12, "TFLOP/s"),
}


def systems_table() -> str:
    """One line a system: its hosts and its links.

    Example:
        >>> print(systems_table().splitlines()[0])
        | name | system | GPU | GPUs per host | hosts per domain | ...
    """
    head = (
        *("name", "system", "GPU", "GPUs per host", "hosts per domain"),
        *("inside a domain, GB/s", "between domains, GB/s per GPU", "to host, GB/s"),
    )
    rows: list[list[str]] = []
    for name in Cluster.names():
        cluster = Cluster.parse(name)
        system = cluster.system
        links = (system.inside, system.between, system.to_host)
        rows.append(
            [
                *(f"`{name}`", system.title, f"`{system.gpu.name}`"),
                *(str(system.gpus_per_host), str(system.hosts_per_domain)),
                *(f"{link.bytes_per_s / 1e9:g} (`{link.name}`)" for link in links),
            ]
        )
    return _table(head, rows)


def gpus_table() -> str:
    """One column a GPU, one line a figure.

    Example:
        >>> [line for line in gpus_table().splitlines() if "sm_count" in line]
        ['| `sm_count` | 108 | 108 | 84 | 148 | 148 | 152 | ...']
    """
    gpus = _gpus()
    figures = {gpu.name: _flat(gpu) for gpu in gpus}
    fields = [field.name for field in dataclasses.fields(Gpu)]
    keys = sorted(
        {key for gpu in gpus for key in figures[gpu.name]},
        key=lambda key: (fields.index(key.partition(".")[0]), key),
    )
    rows = [
        [_label(key), *(_shown(key, figures[gpu.name].get(key)) for gpu in gpus)]
        for key in keys
    ]
    return _table(["", *(f"`{gpu.name}`" for gpu in gpus)], rows)


def sources_list() -> str:
    """Sources, record by record.

    Example:
        >>> "- `nvlink4`" in sources_list()
        True
    """
    records: dict[str, dict[str, list[str]]] = {}
    for name in Cluster.names():
        system = Cluster.parse(name).system
        parts = (system.gpu, system.inside, system.between, system.to_host)
        for record in (system, *parts):
            by_source: dict[str, list[str]] = {}
            for key, source in record.sources.items():
                by_source.setdefault(source, []).append(key)
            label = f"{name} (system)" if record is system else record.name
            records[label] = by_source
    lines: list[str] = []
    for label, by_source in sorted(records.items()):
        lines.append(f"- `{label}`")
        for source, keys in by_source.items():
            lines.append(f"  - {source}: {', '.join(_compact(keys))}")
    return "\n".join(lines)


def notes_list() -> str:
    """Notes about systems.

    Example:
        >>> "one NVLink domain" in notes_list()
        True
    """
    return "\n".join(
        f"- `{name}`: {note}"
        for name in Cluster.names()
        for note in Cluster.parse(name).system.notes
    )


TABLES: dict[str, Callable[[], str]] = {
    "systems": systems_table,
    "gpus": gpus_table,
    "notes": notes_list,
    "sources": sources_list,
}
"""Text that may stand between the markers of a document, by the markers' name."""


def fill_in(document: str) -> str:
    r"""The document with every table between its markers made anew.

    Example:
        >>> print(fill_in("<!-- table: notes -->\n<!-- end -->").splitlines()[1])
        - `a40-nvlink`: ...
    """
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}",
        document,
        flags=re.DOTALL,
    )


def _gpus() -> list[Gpu]:
    gpus = {gpu.name: gpu for gpu in (Cluster.parse(n).gpu for n in Cluster.names())}
    return [gpus[name] for name in sorted(gpus)]


def _flat(gpu: Gpu) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in gpu.as_dict().items():
        rates = {
            "dense_flops_per_s": gpu.dense_flops_per_s,
            "vector_flops_per_s": gpu.vector_flops_per_s,
        }.get(key)
        if rates is not None:
            flat |= {f"{key}.{part}": rate for part, rate in rates.items()}
        elif key not in ("name", "title", "nvlink_links"):
            flat[key] = value
    return flat


def _label(key: str) -> str:
    unit = _unit(key)
    return f"`{key}`" + (f", {unit[1]}" if unit else "")


def _shown(key: str, value: object) -> str:
    if value is None:
        return ""
    unit = _unit(key)
    if unit and isinstance(value, int):
        return f"{value / unit[0]:g}"
    return str(value)


def _unit(key: str) -> tuple[float, str] | None:
    quantity = key.partition(".")[0]
    return next((u for end, u in _UNITS.items() if quantity.endswith(end)), None)


def _compact(keys: Iterable[str]) -> list[str]:
    grouped: dict[str, list[str]] = {}
    for key in keys:
        table, _, part = key.partition(".")
        grouped.setdefault(table, []).append(part)
    return [
        f"`{table}`" + (f" ({', '.join(parts)})" if parts != [""] else "")
        for table, parts in grouped.items()
    ]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(paths: Iterable[str]) -> None:
    """Fills in the tables of the documents at `paths`."""
    for path in map(Path, paths):
        path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
