"""Real jobs: some processes that jax.distributed joins, and what they print."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys

from tests.forked import Forked
from tests.kept_programs import COMPILED_SOONER

LONGEST = 240
# What a busy machine may add to a limit.
PATIENCE = 30.0


def _start(script, job, count, folder):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("LAGOM_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": COMPILED_SOONER,
    }
    return [
        Forked(
            [script, job, index, count, port, folder],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def run(script, jobs, folder, *, dying=(), endless=()):
    """By job, process and name: what came of it.

    `jobs` says how many processes each has. Of those in `dying` some are killed, and jax
    may then end any other. `endless` are processes that never end, by job and index.
    """
    try:
        return _run(script, jobs, folder / "first", dying, endless)
    except AssertionError:
        # A machine that stands still for longer than a limit, or gives the port away,
        # ends a job that nothing is wrong with. It does not do so twice. What the first
        # try left in its folder is not for the second.
        return _run(script, jobs, folder / "second", dying, endless)


def _run(script, jobs, folder, dying, endless):
    folder.mkdir()
    running = {job: _start(script, job, count, folder) for job, count in jobs.items()}
    found = {}
    try:
        for job, processes in running.items():
            for index, process in enumerate(processes):
                if (job, index) in endless:
                    continue
                printed, said = process.communicate(timeout=LONGEST)
                assert process.returncode == 0 or job in dying, said
                # Gloo prints, too.
                lines = map(json.loads, re.findall(r"^\{.*\}$", printed, re.MULTILINE))
                found[job, index] = {line["name"]: line for line in lines}
    finally:
        for process in (one for processes in running.values() for one in processes):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()
    return found


def outcomes(found, name, job):
    """What came of it in each process of a job."""
    return [
        lines[name]
        for (one, _), lines in sorted(found.items())
        if one == job and name in lines
    ]
