"""Writes what was measured into the GPU's record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpu_stages.result import Result, ResultError
from lagom_jax.cost.measured import measured
from lagom_jax.files import write_whole

FOLDER: Final = (
    Path(__file__).parents[2] / "lagom_jax" / "cost" / "constants" / "measured"
)


def measured_before(gpu: str, section: str) -> Iterator[str]:
    """What a stage must say of a record that has measurements of it already.

    Args:
        gpu: The name of the GPU's record.
        section: As in `Update.section`.
    """
    if names := ", ".join(measured(gpu, section)):
        yield (
            f"The record has values of {names} that were measured on such a GPU: what "
            "is predicted here was fitted to an earlier run like this one."
        )


def update(result: Result, folder: Path = FOLDER) -> Path | None:
    """Puts a run's constants in the place of older or estimated ones.

    Returns:
        The record; None where the run measured no constant.

    Raises:
        ResultError: It was a dry run.
    """
    if result.dry:
        raise ResultError("a dry run measures nothing that a record could hold")
    updates = [update for stage in result.stages.values() for update in stage.updates]
    if not updates:
        return None
    path = folder / f"{result.gpu}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    machine = result.machine
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine.items()
        if name in ("driver_version", "jax", "source") or name.startswith("nvidia-nccl")
    )
    for one in updates:
        record.setdefault(one.section, {})[one.name] = {
            "value": one.value,
            "source": (
                f"measured by scripts/gpu_check.py on {machine['date']}, on a "
                f"{machine['name']} ({versions}): {one.source}"
            ),
        }
    folder.mkdir(exist_ok=True)
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
    return path
