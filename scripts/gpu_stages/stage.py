"""A stage: one question, what it is asked with, and what it answers."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from lagom_jax.cluster import Cluster
from lagom_jax.files import write_whole
from lagom_jax.typed_json import parse_object, plain, typed

# A stage has a process of its own.
_STARTED: Final = time.monotonic()


class CannotRunError(Exception):
    """A stage cannot run on this machine; its text says why, and what would help."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A claim that one GPU can refute."""

    text: str
    if_refuted: str
    """Consequence of a refutation: what is then wrong, and what to do until it is
    mended."""


STAGES: Final = {
    "contention": Question(
        "Do NCCL and kernels slow each other as the model says?",
        "Predicted steps with overlap are off on this GPU, and with them what a plan "
        "prefers. Its pairs.csv has what constants in "
        "lagom_jax/cost/constants/measured would be fitted to; where none fit, the law "
        "itself is wrong.",
    ),
    "obeyed": Question(
        "Does NCCL do what the tuner plugin says, call by call?",
        "Settings of a plan are not what runs: use plans without the lever `settings` "
        "with this release of NCCL.",
    ),
    "transports": Question(
        "Does a call run where its memory and the policy ask it to?",
        "Plans that take collectives off the rings are for another program with this "
        "release of NCCL: use plans without the lever `transports`.",
    ),
    "schedule": Question(
        "Is the schedule compiled without a GPU the one compiled on it?",
        "Plans made on a laptop are for another program: make them where they run, "
        "with `--lagom=tune`, and take reports from dumps.",
    ),
    "job": Question(
        "Does a job train as before behind `--lagom=tune`?",
        "Do not tune jobs with this version: leave `--lagom` off.",
    ),
}
"""All stages, in the order in which they run; each is a module of this package."""


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows that have the same cells as a table, if there are any."""
    if rows:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)


def say(line: str) -> None:
    """Reports the progress of a stage to whoever waits for it."""
    print(f"    {line}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A stage's input."""

    system: str
    """The system that has such a GPU, as `lagom clusters` names it: `h100`."""
    dry: bool
    """No GPU: stand-ins at small sizes, whose figures mean nothing."""
    seconds: float
    """Time limit, the start included. What does not fit is left out and listed, so
    measurements come in order of importance."""
    folder: str
    """A folder of the stage's own, for logs and tables."""

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    def cluster(self, gpus: int = 1) -> Cluster:
        """One host of the system with so many GPUs."""
        return Cluster.parse(f"{self.system}:1x{gpus}")

    def left(self) -> float:
        """Seconds until the time limit of this process; negative once it is over."""
        return self.seconds - (time.monotonic() - _STARTED)

    @property
    def patience(self) -> float:
        """Seconds after which something that is waited for counts as hung.

        Example:
            >>> Request("h100", False, 280.0, ".").patience
            20.0
        """
        # Something that hangs must leave enough time to report it.
        return min(20.0, 0.1 * self.seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A number that answers the question, with the goal that it has to meet.

    Example:
        >>> Check("calls run otherwise", 0, at_most=0).met, Check("changes", 1).met
        (True, None)
    """

    title: str
    value: float
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return None if self.at_most is None else self.value <= self.at_most


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A stage's output."""

    checks: tuple[Check, ...] = ()
    findings: tuple[str, ...] = ()
    """Each disagreement with the model or the plan, as a sentence for people."""
    left_out: tuple[str, ...] = ()
    """Measurements that were not made, and why."""
    calibrate: tuple[str, ...] = ()
    """Commands that calibrate with what was measured, in the stage's folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageResult:
    """The end of one stage."""

    status: Literal["ran", "cannot run", "failed"]
    seconds: float
    why: str = ""
    """Reason why it did not run to its end."""
    outcome: Outcome = Outcome()

    @property
    def verdict(self) -> str:
        """The answer: `refuted`, `holds` or `open`.

        Refuted if a goal is missed, holding if there are goals and all are met, open if
        nothing could be judged.

        Example:
            >>> missed = Outcome(checks=(Check("a", 1.0, at_most=0.5),))
            >>> StageResult("ran", 1.0, outcome=missed).verdict
            'refuted'
            >>> StageResult("failed", 1.0, "it hung").verdict
            'open'
        """
        met = [check.met for check in self.outcome.checks if check.met is not None]
        if self.status != "ran" or not met:
            return "open"
        return "holds" if all(met) else "refuted"

    def write(self, folder: Path) -> None:
        """Writes it into a stage's folder."""
        text = json.dumps(plain(self), indent=1)
        write_whole(folder / "outcome.json", text.encode())

    @classmethod
    def read(cls, folder: Path) -> StageResult:
        """The result that lies in a stage's folder.

        Raises:
            FormError: It is damaged.
        """
        return typed(cls, parse_object((folder / "outcome.json").read_text()))


def answer(name: str, stage: StageResult) -> Iterator[str]:
    """What a stage has to say, as lines of Markdown."""
    outcome = stage.outcome
    yield f"## {name.capitalize()}: {stage.verdict}\n"
    yield STAGES[name].text
    if stage.verdict == "refuted":
        yield f"**No.** {STAGES[name].if_refuted}"
    yield ""
    if stage.why:
        yield f"**{stage.status.capitalize()}**: {stage.why}\n"
    if outcome.checks:
        met = {None: "", True: "yes", False: "**no**"}
        yield "| check | value | at most | met |"
        yield "|---|---|---|---|"
        for one in outcome.checks:
            cells = (_shown(one.value), _shown(one.at_most), met[one.met])
            yield f"| {' | '.join((one.title, *cells))} |"
        yield ""
    for heading, lines in (
        ("Disagreements", outcome.findings),
        ("Not measured", outcome.left_out),
        (f"To calibrate with, in {name}/", outcome.calibrate),
    ):
        if lines:
            yield f"{heading}:\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"


def _shown(value: float | None) -> str:
    """A number for people.

    Example:
        >>> _shown(1234.5), _shown(0.0312), _shown(1 << 26), _shown(None)
        ('1234', '0.0312', '67108864', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
