"""Runs the commands of the README and the tutorial, and writes what they print.

python scripts/write_outputs.py [PAGE ...]

A block marked `console` holds commands, each behind `$ `, and what each prints. The
commands of a page run one after another in one new folder, in a terminal of 96 columns.
They take some two minutes of processor time. Commands that begin with `python` train,
which takes longer: their output is left as it stands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial" / "first-plan.md")
COLUMNS = 96
_BLOCK = re.compile(r"```console\n(.*?)```", re.S)
# It is there or not as the machine is slow or fast.
_PROGRESS = re.compile(r"lagom: \d+ s: ")


def outputs_of(text: str) -> list[tuple[str, str]]:
    """Commands of a page's console blocks, each with the output that stands there."""
    found: list[tuple[str, str]] = []
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def run(command: str, folder: Path) -> str:
    """Output of `command`, as a page shows it; `lagom` is that of this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"COLUMNS": str(COLUMNS), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if "Traceback" in done.stdout:
        raise SystemExit(f"{command}: {done.stdout}")
    return "".join(
        f"{line.rstrip()}\n"
        for line in done.stdout.splitlines()
        if not _PROGRESS.match(line)
    )


def rewritten(text: str, answer: Callable[[str], str]) -> str:
    """The page with what `answer` says to each of its commands."""

    def block(match: re.Match[str]) -> str:
        parts = outputs_of(match[0])
        told = [
            (command, output if command.startswith("python") else answer(command))
            for command, output in parts
        ]
        return "```console\n" + "".join(f"$ {c}\n{o}" for c, o in told) + "```"

    return _BLOCK.sub(block, text)


def main(pages: list[str]) -> None:
    for page in [Path(page) for page in pages] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            text = page.read_text(encoding="utf-8")
            new = rewritten(text, lambda command, at=folder: run(command, Path(at)))
        page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
