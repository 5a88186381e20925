"""A process that trains on 8 virtual CPU devices, and what it answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.forked import TRAINING, Forked
from tests.kept_programs import kept_programs


class OnCpu:
    """A script of this folder that answers each line with a line."""

    def __init__(self, script: str, folder: Path, *words: str) -> None:
        self.said = (folder / "stderr").open("w+")
        self.process = Forked(
            [Path(__file__).with_name(script), *words],
            modules=TRAINING,
            env={
                **os.environ,
                **kept_programs(),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def answer(self, *question: object) -> str:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.said.seek(0)
            raise AssertionError(self.said.read())
        return answer

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.said.close()
