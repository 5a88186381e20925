"""The result of a run: a JSON document with a format, a version and typed parts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpu_stages.stage import STAGES, Check, Row, Spread, Table
from lagom_jax.files import write_whole

FORMAT: Final = "lagom_jax gpu check"
VERSION: Final = 2
MEASURED: Final = (
    Path(__file__).parents[2] / "lagom_jax" / "cost" / "constants" / "measured"
)
"""Records of constants that were measured, by GPU."""
_OF_A_RUN: Final = ("command", "date")
_PARTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "checks": lambda part: Check(**part),
    "rows": lambda part: Row(**{**part, "measured": Spread(**part["measured"])}),
    "tables": lambda part: Table(**{**part, "more": tuple(part["more"])}),
    "findings": str,
    "left_out": str,
    "last_lines": str,
}


class ResultError(Exception):
    """A result that cannot be read, merged or used."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageResult:
    """Result of one stage."""

    status: str
    """`ran`, `cannot run` or `failed`."""
    seconds: float
    why: str = ""
    """Reason why it did not run to its end."""
    last_lines: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    rows: tuple[Row, ...] = ()
    findings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    constants: Mapping[str, float | bool] = dataclasses.field(
        default_factory=dict[str, float | bool]
    )
    tables: tuple[Table, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def verdict(self) -> str:
        """The answer: `refuted`, `holds` or `open`.

        Refuted if a goal is missed, holding if there are goals and all are met, open if
        nothing could be judged.

        Example:
            >>> StageResult("ran", 1.0, checks=(Check("a", 1.0, at_most=0.5),)).verdict
            'refuted'
            >>> StageResult("failed", 1.0, "it hung").verdict
            'open'
        """
        met = [check.met for check in self.checks if check.met is not None]
        if self.status != "ran" or not met:
            return "open"
        return "holds" if all(met) else "refuted"

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> StageResult:
        """A result from JSON.

        Raises:
            TypeError: A field is unknown or missing.
        """
        fields: dict[str, Any] = {
            name: tuple(map(_PARTS[name], value)) if name in _PARTS else value
            for name, value in found.items()
        }
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Result of a run of several stages on one machine."""

    gpu: str
    """Record that was compared with."""
    dry: bool
    machine: Mapping[str, str]
    stages: Mapping[str, StageResult]

    def write(self, path: Path) -> None:
        """Writes the JSON document."""
        document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        for name, stage in self.stages.items():
            document["stages"][name]["verdict"] = stage.verdict
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Result:
        """Reads a JSON document.

        Raises:
            ResultError: It is none.
        """
        try:
            found = json.loads(path.read_text())
            if found.pop("format") != FORMAT or found.pop("version") != VERSION:
                raise ValueError(f"it is not in version {VERSION} of this format")
            unknown = set(found["stages"]) - set(STAGES)
            if unknown:
                raise ValueError(f"no such stage: {', '.join(sorted(unknown))}")
            stages: dict[str, StageResult] = {}
            for name, stage in found["stages"].items():
                del stage["verdict"]  # It follows from the checks.
                stages[name] = StageResult.read(stage)
            return cls(**{**found, "stages": stages})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResultError(
                f"{path} is no result of gpu_check.py: {error}"
            ) from error


def merged(results: Sequence[Result]) -> Result:
    """One result of several runs on one machine; of a stage the last run counts.

    Raises:
        ResultError: They differ in GPU, versions or sources.
    """
    first = results[0]
    for one in results[1:]:
        if _place(one) != _place(first):
            differing = dict(_place(one).items() ^ _place(first).items())
            raise ResultError(
                "these results do not belong together: they differ in "
                + ", ".join(sorted(differing))
            )
    stages = {name: stage for one in results for name, stage in one.stages.items()}
    joined = {
        name: "; ".join(dict.fromkeys(one.machine[name] for one in results))
        for name in _OF_A_RUN
    }
    return dataclasses.replace(
        first,
        machine={**first.machine, **joined},
        stages={name: stages[name] for name in STAGES if name in stages},
    )


def update_constants(result: Result, folder: Path = MEASURED) -> Path | None:
    """Writes a run's constants of `cost.sharing` into the record of its GPU.

    Returns:
        The record; None where the run measured no constant.

    Raises:
        ResultError: It was a dry run.
    """
    if result.dry:
        raise ResultError("a dry run measures nothing that a record could hold")
    constants = {n: v for s in result.stages.values() for n, v in s.constants.items()}
    if not constants:
        return None
    path = folder / f"{result.gpu}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    machine = result.machine
    versions = ", ".join(
        f"{name} {version}"
        for name, version in machine.items()
        if name in ("driver_version", "jax", "source") or name.startswith("nvidia-nccl")
    )
    source = (
        f"measured by scripts/gpu_check.py on {machine['date']}, on a "
        f"{machine['name']} ({versions}): fitted to slowdowns of kernels, and better "
        "for those of other kernels and settings that were kept out"
    )
    for name, value in constants.items():
        section = record.setdefault("sharing", {})
        section[name] = {"value": value, "source": source}
    folder.mkdir(exist_ok=True)
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def shown(value: float, unit: str) -> str:
    """A number for people.

    Example:
        >>> shown(0.0432, "%"), shown(1234.5, "us"), shown(0.0312, "s")
        ('4.3 %', '1234 us', '0.0312 s')
    """
    if unit == "%":
        return f"{100 * value:.1f} %"
    if not value or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    if value == int(value):
        return f"{value:.0f} {unit}".strip()
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f} {unit}".strip()


def _place(result: Result) -> dict[str, str]:
    machine = {n: v for n, v in result.machine.items() if n not in _OF_A_RUN}
    return {**machine, "record": result.gpu, "dry run": str(result.dry)}
