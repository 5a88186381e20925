"""Scores of a fit, and how its records are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

LARGE = 1 << 20


def scores(found: Iterable[tuple[float, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    pairs = np.array(list(found)).reshape(-1, 2)
    for name, chosen in (
        ("1 MiB and more", pairs[:, 0] >= LARGE),
        ("below 1 MiB", pairs[:, 0] < LARGE),
    ):
        part = pairs[chosen, 1]
        if len(part):
            result[name] = {
                "rows": len(part),
                "median": round(float(np.median(part)), 4),
                "p90": round(float(np.quantile(part, 0.9)), 4),
            }
    return result


def show(gpu: str, kind: str, judged: dict[str, Any]) -> None:
    for name, result in judged.items():
        for size, figures in result.items():
            print(
                f"{gpu:12} {kind:19} {name:22} {size:15} {figures['rows']:4} rows"
                f"  median {figures['median']:6.1%}  p90 {figures['p90']:6.1%}"
            )


def compact(value: Any, indent: int = 0) -> str:
    """JSON with lists of numbers on one line each, so that tables can be read."""
    pad = "\n" + " " * (indent + 2)
    end = "\n" + " " * indent
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {compact(v, indent + 2)}" for k, v in value.items()]
        return "{" + pad + ("," + pad).join(parts) + end + "}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        parts = [compact(v, indent + 2) for v in value]
        return "[" + pad + ("," + pad).join(parts) + end + "]"
    return json.dumps(value)
