"""What a whole run found: a JSON document, and what is made of it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpu_stages.registry import STAGES
from gpu_stages.stage import Json, Row, Score, Spread, Update

FORMAT: Final = "lagom_jax gpu check"
VERSION: Final = 1
_OF_A_RUN: Final = ("command", "date")


class ResultError(Exception):
    """A file holds no result that can be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageResult:
    """What came of one stage."""

    status: str
    """`ran`, `cannot run` or `failed`."""
    seconds: float
    why: str = ""
    last_lines: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    scores: tuple[Score, ...] = ()
    findings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    updates: tuple[Update, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @classmethod
    def read(cls, found: dict[str, Json]) -> StageResult:
        """From JSON."""
        made: dict[str, Callable[[Any], Any]] = {
            "rows": lambda row: Row(**{**row, "measured": Spread(**row["measured"])}),
            "scores": lambda score: Score(**score),
            "updates": lambda update: Update(**update),
            "findings": str,
            "left_out": str,
            "last_lines": str,
        }
        fields: dict[str, Any] = {
            name: tuple(map(made[name], value)) if name in made else value
            for name, value in found.items()
        }
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A run."""

    gpu: str
    dry: bool
    machine: Mapping[str, str]
    stages: Mapping[str, StageResult]

    def to_json(self) -> str:
        """As it is written to a file."""
        return json.dumps(
            {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}, indent=1
        )

    @classmethod
    def read(cls, path: Path) -> Result:
        """From a file.

        Raises:
            ResultError: It holds none.
        """
        try:
            found = json.loads(path.read_text())
            if found.pop("format") != FORMAT or found.pop("version") != VERSION:
                raise ValueError(f"it is not in version {VERSION} of this format")
            unknown = set(found["stages"]) - set(STAGES)
            if unknown:
                raise ValueError(f"no such stage: {', '.join(sorted(unknown))}")
            stages = {
                name: StageResult.read(stage) for name, stage in found["stages"].items()
            }
            return cls(**{**found, "stages": stages})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResultError(
                f"{path} is no result of gpu_check.py: {error}"
            ) from error


def merged(results: Sequence[Result]) -> Result:
    """One result of several runs, where each stage is that of the last run that has it.

    Raises:
        ResultError: They are not of the same GPU, versions and sources.
    """
    first = results[0]
    for one in results[1:]:
        if _where(one) != _where(first):
            differing = dict(_where(one).items() ^ _where(first).items())
            raise ResultError(
                "these results do not belong together: they differ in "
                + ", ".join(sorted(differing))
            )
    stages = {name: stage for one in results for name, stage in one.stages.items()}
    told = {
        name: "; ".join(dict.fromkeys(one.machine[name] for one in results))
        for name in _OF_A_RUN
    }
    return dataclasses.replace(
        first,
        machine={**first.machine, **told},
        stages={name: stages[name] for name in STAGES if name in stages},
    )


def _where(result: Result) -> dict[str, str]:
    machine = {n: v for n, v in result.machine.items() if n not in _OF_A_RUN}
    return {**machine, "record": result.gpu, "dry run": str(result.dry)}


def shown(value: float, unit: str) -> str:
    """A number as people read it.

    Example:
        >>> shown(0.0432, "%"), shown(1234.5, "us"), shown(0.0312, "s")
        ('4.3 %', '1234 us', '0.0312 s')
    """
    if unit == "%":
        return f"{100 * value:.1f} %"
    if not value or not math.isfinite(value) or unit == "channels":
        return f"{value:g} {unit}".strip()
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f} {unit}".strip()
