"""Stage `job`: does a job train as before behind `--lagom=tune`?

`scripts/train.py` runs twice, with `--lagom=off` and with `--lagom=tune`, as processes
of one job that share the GPU. Both must have the same losses, bit by bit.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_stages.gpu import MOST_CHANNELS, ON_ONE_GPU, RANKS
from gpu_stages.running import ChildError, run_all
from gpu_stages.stage import Check, Outcome, Request, say
from lagom_jax import processes
from lagom_jax.online.turns import schedule
from lagom_jax.plan import Plan, load

TRAIN: Final = Path(__file__).parents[1] / "train.py"
_AFTER_THE_GUARD, _DRY_STEPS = 4, 3
# The job as it is, tuned, and once more if they differ.
_RUNS: Final = 3
_WARNED: Final = re.compile(r"LagomWarning: (.*)")
# Processes of ours hide warnings otherwise, which are counted here.
_SHOWN: Final = ("-W", "always")
_SMALL: Final = (
    *("--model=phi-2", "--batch=8", "--sequence=16", "--warmup=300", "--log_every=1"),
    *(f"--mesh=data={RANKS},model=1", "--lagom_deterministic", "--lagom_progress"),
)
_ENVIRONMENT: Final = {
    # Both programs then have the same kernels, sums in the same order, and every
    # all-reduce is one of NCCL.
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true "
    # Triton's products have no deterministic form that compiles without a GPU on
    # jax 0.11.
    "--xla_gpu_enable_triton_gemm=false "
    "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false",
    # Rather an error than a job on CPUs.
    "JAX_PLATFORMS": "cuda,cpu",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    # Of the GPU for each process; the rest is NCCL's and CUDA's.
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.40",
    # Each channel holds an SM of the one GPU, and ranks wait for each other.
    "NCCL_MAX_CTAS": str(MOST_CHANNELS // RANKS),
    # Ranks on one GPU have no switch between them; the planner has to know.
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
    **ON_ONE_GPU,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """One run of the job."""

    losses: Sequence[float]
    warnings: Sequence[str] = ()
    """Reasons why the program as it was ran instead."""
    plan: Plan | None = None
    """The plan in use, if it changes anything."""
    planned: bool = True
    """A plan was made, if only one that changes nothing."""


def run(request: Request) -> Outcome:
    """Runs the jobs, and compares."""
    usual, tuned = _train(request, "off"), _train(request, "tune")
    # Only where they differ it matters whether the job repeats itself.
    again = usual if tuned.losses == usual.losses else _train(request, "off", "-again")
    return compared(usual, tuned, again)


def compared(usual: Trained, tuned: Trained, repeated: Trained) -> Outcome:
    """The answer that runs of a job give: without lagom_jax, with it, without again."""
    own = differing(usual.losses, repeated.losses)
    off = differing(usual.losses, tuned.losses)
    plan, warned = tuned.plan, len(tuned.warnings)
    changes = len(plan.levers) + len(plan.settings) if plan else 0
    losses = f"steps with another loss, of {len(usual.losses)}"
    findings = [*dict.fromkeys(tuned.warnings)]
    if own:
        findings.append(
            f"The job as it is does not repeat its own losses in {own} steps; no plan "
            "can do better."
        )
    if not tuned.planned:
        findings.append("No plan was made: the logs of --lagom=tune may say why.")
    elif not changes:
        findings.append("No plan would change anything: nothing was compared.")
    return Outcome(
        checks=(
            # Where nothing was changed nothing is shown.
            Check(losses, off, at_most=own if changes or off > own else None),
            Check("changes of the plan in use", changes),
            Check("warnings of lagom_jax", warned, 0 if changes or warned else None),
        ),
        findings=tuple(findings),
        left_out=(
            "A speedup: the processes take turns on one GPU, so that their times show "
            "no gain of a plan on GPUs of their own.",
        ),
    )


def differing(one: Sequence[float], other: Sequence[float]) -> int:
    """Number of steps whose losses are not the same numbers bit by bit.

    Example:
        >>> nan = float("nan")
        >>> differing([1.0, 2.0], [1.0, 2.5]), differing([nan], [nan])
        (1, 1)
        >>> differing([1.0], [1.0, 2.0])
        1
    """
    return sum(a != b for a, b in itertools.zip_longest(one, other))


def _train(request: Request, mode: str, suffix: str = "") -> Trained:
    """Trains once.

    Raises:
        ChildError: A process failed, or the time was over.
    """
    say(f"--lagom={mode} ...")
    folder = request.path / f"{mode}{suffix}"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    logs = [folder / f"{i}.log" for i in range(1 if request.dry else RANKS)]
    commands = {
        log: processes.python(*_SHOWN, *_words(request, mode, folder, address, index))
        for index, log in enumerate(logs)
    }
    try:
        run_all(commands, request.seconds / _RUNS, _environment(request, folder))
    except ChildError as error:
        raise ChildError(f"{folder.name}: {error}") from None
    return _read(folder, logs)


def _words(
    request: Request, mode: str, folder: Path, address: str, index: int
) -> list[str]:
    """The command of one process of the job."""
    steps = _DRY_STEPS if request.dry else len(schedule()) + _AFTER_THE_GUARD
    words = [
        *(str(TRAIN), *_SMALL, f"--steps={steps}", f"--checkpoint_every={steps}"),
        *(f"--lagom={mode}", f"--lagom_cluster={request.cluster(RANKS).name}"),
        *(f"--out={folder / 'out'}", f"--lagom_cache={folder / 'decisions'}"),
    ]
    if request.dry:
        words += ["--lagom_levers=costs", "--lagom_compiles=2", f"--devices={RANKS}"]
        return [*words, f"--text={__file__}"]
    return [
        *(*words, "--lagom_verify=measure", "--lagom_patience=60"),
        *("--lagom_compiles=4", f"--lagom_seconds={request.seconds / _RUNS / 2:.0f}"),
        *(f"--coordinator={address}", f"--processes={RANKS}", f"--process={index}"),
    ]


def _environment(request: Request, folder: Path) -> dict[str, str]:
    if request.dry:
        return processes.environment()
    # NCCL puts the number of each process there.
    log = str(folder / "nccl-%p.txt")
    return processes.environment(**_ENVIRONMENT, NCCL_DEBUG_FILE=log)


def _read(folder: Path, logs: Sequence[Path]) -> Trained:
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    plans = [*map(load, sorted((folder / "decisions").glob("*.json")))]
    useful = [plan for plan in plans if plan.levers or plan.settings]
    # There may be one with an order and one without; the guard measures what is used.
    useful.sort(key=lambda plan: plan.evidence.measured is None)
    return Trained(
        losses=[row["loss"] for row in map(json.loads, lines) if "loss" in row],
        warnings=[
            warning
            for log in logs
            for warning in _WARNED.findall(log.read_text(errors="replace"))
        ],
        plan=useful[0] if useful else None,
        planned=bool(plans),
    )
