"""Constants measured on a GPU, in the place of those estimated for any.

`constants/measured/GPU.json` has a section for each module that asks, in it the values
by name, each with its source.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def measured(gpu: str, section: str) -> dict[str, Any]:
    """The values measured on a GPU; none where nobody measured.

    Args:
        gpu: As in `Gpu.name`.
        section: `kernels` or `sharing`.

    Example:
        >>> measured("a GPU that nobody has", "sharing")
        {}
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "measured"
    path = folder / f"{gpu}.json"
    if not path.is_file():
        return {}
    record: dict[str, Any] = json.loads(path.read_text())
    return {name: item["value"] for name, item in record.get(section, {}).items()}
