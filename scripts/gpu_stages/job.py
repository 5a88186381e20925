"""Stage `job`: does a job train as before behind `--lagom=tune`?

`scripts/train.py` runs twice, with `--lagom=off` and with `--lagom=tune`, as processes
of one job that share the GPU. Both must have the same losses, bit by bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.clusters import cluster_of
from gpu_stages.gpu import FIRST_WITH_SHARED_GPUS
from gpu_stages.running import child_process, how_ended, last_line, wait_for
from gpu_stages.stage import Check, Clock, Outcome, Request, Row, Spread, say
from gpu_stages.steering import MOST_CHANNELS, ON_ONE_HOST, as_host
from lagom_jax import processes
from lagom_jax.errors import TunerError
from lagom_jax.plan import Plan, load
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import guard
from lagom_jax.tuner.nccl_library import find_nccl, read_nccl

TRAIN: Final = Path(__file__).parents[1] / "train.py"
_RANKS: Final = 2
_AFTER_THE_GUARD, _DRY_STEPS = 4, 3
# What one of the two runs takes at least; a case with less time is not begun.
_LEAST_SECONDS: Final = 70.0
_KEPT_BACK: Final = 5.0
_MEMORY: Final = "0.40"  # Of the GPU for each process; the rest is NCCL's and CUDA's.
_WARNED: Final = re.compile(r"LagomWarning: (.*)")
# Both programs then have the same kernels, and every all-reduce is one of NCCL.
_XLA_FLAGS: Final = (
    "--xla_gpu_autotune_level=0 "
    "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false"
)
_CASES: Final = {"FSDP": f"data={_RANKS},model=1", "TP": f"data=1,model={_RANKS}"}
_SMALL: Final = ("--model=phi-2", "--batch=8", "--sequence=16", "--warmup=300")


class JobError(Exception):
    """A job did not come to its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """One run of the job."""

    losses: Sequence[float]
    seconds: Sequence[float]
    """Of each step but the first."""
    warnings: Sequence[str] = ()
    """Reasons why the program as it was ran instead."""
    plan: Plan | None = None
    """The plan in use, if it changes anything."""


def run(request: Request) -> Outcome:
    """Runs the jobs, and compares."""
    clock = Clock.of(request)
    outcome = Outcome()
    cases = list(_CASES)[: 1 if request.dry else None]
    for number, case in enumerate(cases):
        if number and clock.left() < 2 * _LEAST_SECONDS:
            note = f"{case}: {clock.left():.0f} s were left."
            outcome = dataclasses.replace(outcome, left_out=[*outcome.left_out, note])
            continue
        job = _Job(case, request, clock, 2 * (len(cases) - number))
        usual, tuned = job.run("off"), job.run("tune")
        # Only where they differ it matters whether the job repeats itself.
        repeated = usual
        if tuned.losses != usual.losses:
            repeated = job.run("off", "again")
        found = compared(case, usual, tuned, repeated)
        outcome = Outcome(
            [*outcome.checks, *found.checks],
            [*outcome.rows, *found.rows],
            [*outcome.findings, *found.findings],
        )
    alone = "A speedup: the processes take turns on one GPU, so that their times show "
    alone += "no gain of a plan on GPUs of their own."
    return dataclasses.replace(outcome, left_out=[*outcome.left_out, alone])


class _Job:
    """One case, with all that its processes need to share the GPU."""

    def __init__(self, case: str, request: Request, clock: Clock, runs: int) -> None:
        self._case, self._request, self._clock = case, request, clock
        self._seconds = (clock.left() - _KEPT_BACK) / runs
        self._steps = (
            _DRY_STEPS if request.dry else len(guard.schedule()) + _AFTER_THE_GUARD
        )
        self._hosts = 1
        if not request.dry:
            # An unknown NCCL counts as a new one; an old one takes ranks for hosts.
            with contextlib.suppress(TunerError):
                release = read_nccl(find_nccl()).release or "9.9"
                number = tuple(map(int, release.split(".")))
                self._hosts = _RANKS if number < FIRST_WITH_SHARED_GPUS else 1

    def run(self, mode: str, suffix: str = "") -> Trained:
        """Trains once.

        Raises:
            JobError: A process failed, or the time was over.
        """
        name = "-".join(filter(None, (self._case.lower(), mode, suffix)))
        say(f"{self._case}, --lagom={mode} ...")
        folder = self._request.folder / name
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        count = 1 if self._request.dry else _RANKS
        logs = [folder / f"{index}.log" for index in range(count)]
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(
                    child_process(
                        processes.python(*self._words(mode, folder, address, index)),
                        self._environment(index, folder),
                        log,
                    )
                )
                for index, log in enumerate(logs)
            ]
            try:
                failed = wait_for(children, self._seconds)
            except TimeoutError as error:
                raise JobError(f"{name}: {error}: {last_line(logs[0])}") from None
            ends = [how_ended(children[index].returncode) for index in failed]
        if failed:
            raise JobError(
                f"{name}: process {failed[0]} {ends[0]}: {last_line(logs[failed[0]])}"
            )
        return _read(folder, logs)

    def _words(self, mode: str, folder: Path, address: str, index: int) -> list[str]:
        cluster = cluster_of(
            self._request.gpu, _RANKS // self._hosts, hosts=self._hosts
        )
        words = [
            *(str(TRAIN), *_SMALL, f"--steps={self._steps}", "--log_every=1"),
            *(f"--out={folder / 'out'}", f"--checkpoint_every={self._steps}"),
            *(f"--mesh={_CASES[self._case]}", f"--lagom={mode}"),
            *(f"--lagom_cluster={cluster.name}", "--lagom_deterministic"),
            *(f"--lagom_cache={folder / 'decisions'}", "--lagom_progress"),
        ]
        if self._request.dry:
            return [
                *(*words, f"--devices={_RANKS}"),
                *("--lagom_levers=costs", "--lagom_compiles=2"),
                f"--text={__file__}",
            ]
        return [
            *(*words, "--lagom_verify=measure", "--lagom_patience=60"),
            *("--lagom_compiles=4", f"--lagom_seconds={self._seconds / 2:.0f}"),
            *(f"--coordinator={address}", f"--processes={_RANKS}"),
            f"--process={index}",
        ]

    def _environment(self, index: int, folder: Path) -> dict[str, str]:
        if self._request.dry:
            # The second run need not compile for the CPU again.
            kept = str(self._request.folder / "programs")
            return processes.environment(
                JAX_COMPILATION_CACHE_DIR=kept,
                JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
                JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES="none",
            )
        return processes.environment(
            XLA_FLAGS=_XLA_FLAGS,
            # Rather an error than a job on CPUs.
            JAX_PLATFORMS="cuda,cpu",
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
            XLA_PYTHON_CLIENT_MEM_FRACTION=_MEMORY,
            # Each channel holds an SM of the one GPU, and ranks wait for each other.
            NCCL_MAX_CTAS=str(MOST_CHANNELS // _RANKS),
            # Ranks on one GPU have no switch between them; the planner has to know.
            NCCL_NVLS_ENABLE="0",
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,TUNING",
            NCCL_DEBUG_FILE=str(folder / f"nccl-{index}.txt"),
            **(ON_ONE_HOST if self._hosts == 1 else as_host(index)),
        )


def compared(case: str, usual: Trained, tuned: Trained, repeated: Trained) -> Outcome:
    """The answer that two runs of a job give.

    Args:
        case: Name of the job.
        usual: Without lagom_jax.
        tuned: With it.
        repeated: Without it, once more.
    """
    own = difference(usual.losses, repeated.losses)
    off = difference(usual.losses, tuned.losses)
    plan = tuned.plan
    changes = len(plan.levers) + len(plan.settings) if plan else 0
    findings = [f"{case}: {warning}" for warning in dict.fromkeys(tuned.warnings)]
    if own:
        findings.append(
            f"{case}: the job as it is does not repeat its own losses, which differ by "
            f"up to {own:g}; no plan can do better."
        )
    if not changes:
        findings.append(
            f"{case}: no plan would change anything, so that nothing was compared."
        )
    measured = plan.evidence.measured if plan else None
    return Outcome(
        checks=[
            Check(
                f"{case}: largest difference of losses in {len(usual.losses)} steps",
                off,
                # Where nothing was changed nothing is shown.
                at_most=own if changes or off > own else None,
            ),
            Check(f"{case}: changes of the plan in use", changes),
            Check(
                f"{case}: warnings of lagom_jax",
                len(tuned.warnings),
                at_most=0 if changes or tuned.warnings else None,
            ),
        ],
        rows=[
            Row(
                "steps of a job",
                f"{case}, {name}",
                Spread.of([1e3 * seconds for seconds in one.seconds]),
                "ms",
                details={
                    "losses": f"{one.losses[0]:.6g} to {one.losses[-1]:.6g}",
                    "guard": in_words(measured) if one is tuned and measured else "",
                },
            )
            for name, one in (("as it is", usual), ("tuned", tuned))
        ],
        findings=findings,
    )


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two runs' losses; 0 if they are the same bit by bit.

    Example:
        >>> difference([1.0, 2.0], [1.0, 2.5]), difference([math.nan], [1.0])
        (0.5, inf)
        >>> difference([1.0], [1.0, 2.0])
        inf
    """
    if len(one) != len(other) or not all(map(math.isfinite, (*one, *other))):
        return math.inf
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _read(folder: Path, logs: Sequence[Path]) -> Trained:
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "loss" in row]
    at = [row["seconds"] for row in steps]
    return Trained(
        losses=[row["loss"] for row in steps],
        seconds=[after - before for before, after in itertools.pairwise(at)],
        warnings=[
            warning
            for log in logs
            for warning in _WARNED.findall(log.read_text(errors="replace"))
        ],
        plan=_used(folder / "decisions"),
    )


def _used(decisions: Path) -> Plan | None:
    """The plan that was used, if it changes anything."""
    plans: Iterator[Plan] = map(load, sorted(decisions.glob("*.json")))
    useful = [plan for plan in plans if plan.levers or plan.settings]
    # There may be one with an order and one without; the guard measures what is used.
    useful.sort(key=lambda plan: plan.evidence.measured is None)
    return useful[0] if useful else None
