"""Planning beside a job: in a child process with few cores and little memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from lagom_jax import processes
from lagom_jax.cluster import Cluster
from lagom_jax.compile import wire
from lagom_jax.compile.child import environment
from lagom_jax.errors import PlanError
from lagom_jax.online.belief import StepCandidate
from lagom_jax.plan import Plan, from_json
from lagom_jax.planner import Planner
from lagom_jax.planner.request import Request
from lagom_jax.runtime.planning_process import packed_step
from lagom_jax.runtime.say import LOG
from lagom_jax.units import in_bytes

CORES: Final = 0.25
"""The share of a job's cores that planning may take; one at least."""
MEMORY: Final = 0.25
"""The share of the memory that is free as it begins."""
_LOOKS_SECONDS: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class TimedPlan:
    """A plan, and its step by all models; the first of several is the step as it is."""

    plan: Plan
    timed: StepCandidate


class PlannerBeside(Planner):
    """A planner whose planning happens in another process, at the lowest priority."""

    timed: tuple[TimedPlan, ...] = ()
    """The alternatives of the last plan, the step as it is first."""
    store: str | bool = True
    """The place of compiled steps, as `Compiler` takes it."""

    def plan(self, request: Request | None = None) -> Plan:
        """Makes a plan.

        Args:
            request: All that the plan may use.

        Raises:
            PlanError: The process could not, took too much memory, or was ended.
        """
        request = request or Request()
        found = self._asked(request)
        if "error" in found:
            raise PlanError(f"planning beside the job: {found['error']}")
        taken, *others = found["alternatives"]
        self.timed = tuple(
            TimedPlan(
                from_json(one["plan"], "a plan made beside the job"),
                StepCandidate(one["name"], one["seconds"], tuple(one["by_model"])),
            )
            for one in others
        )
        return from_json(taken["plan"], "the plan made beside the job")

    def _asked(self, request: Request) -> dict[str, Any]:
        step, cores = self.lowered, cores_for(request)
        if step.rules:
            raise PlanError(
                "this step is partitioned by rules of its own, which are functions of "
                "this process: use verify='model', which plans in it"
            )
        if self.cluster != Cluster.parse(self.cluster.name):
            raise PlanError(
                f"only this process knows the cluster {self.cluster.name}: use "
                "verify='model', which plans in it"
            )
        header, stablehlo = packed_step(step)
        budget = dataclasses.replace(request.budget, at_once=cores)
        asked = {
            "step": header,
            "cluster": self.cluster.name,
            "levers": request.levers,
            "controls": request.controls,
            "budget": dataclasses.asdict(budget),
            "kernels": [dataclasses.asdict(one) for one in self.kernels],
            "deterministic": request.deterministic,
            "cores": cores,
            "store": self.store,
        }
        command = processes.python(
            "-m", "lagom_jax.runtime.planning_process", str(os.getpid())
        )
        with (
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
            ) as child,
            _kept_small(child) as reason,
        ):
            found = _answer(child, wire.pack(asked, stablehlo), request.progress)
            child.kill()
        if found is not None:
            return found
        return {"error": "".join(reason) or f"the process ended ({child.returncode})"}


def cores_for(request: Request) -> int:
    """Cores that planning may take: those that were asked for, or a share.

    Example:
        >>> from lagom_jax.planner import Budget
        >>> cores_for(Request(budget=Budget(at_once=3)))
        3
    """
    own = len(os.sched_getaffinity(0))
    return request.budget.at_once or max(1, int(CORES * own))


def _answer(
    child: subprocess.Popen[bytes], request: bytes, progress: Callable[[str], None]
) -> dict[str, Any] | None:
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(request)
        child.stdin.flush()
    while (frame := wire.unpack(child.stdout)) is not None:
        header, _ = frame
        if "progress" not in header:
            return header
        progress(header["progress"])
    return None


@contextlib.contextmanager
def _kept_small(child: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """Ends a process that takes too much memory."""
    over, reason = threading.Event(), list[str]()
    most = int(MEMORY * free_memory())

    def watch() -> None:
        while not over.wait(_LOOKS_SECONDS):
            taken = memory_of(child.pid)
            if taken > most:
                reason.append(
                    f"it took {in_bytes(taken)} of memory and may take "
                    f"{in_bytes(most)}, a quarter of what was free"
                )
            if reason:
                LOG.debug("planning beside the job is ended: %s", reason[0])
                child.kill()
                return

    threading.Thread(target=watch, name="lagom_jax planning", daemon=True).start()
    try:
        yield reason
    finally:
        over.set()


def free_memory() -> int:
    """Bytes of memory that are free on this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_of(process: int) -> int:
    """Bytes of memory that a process and its children have; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0
    own = pages * os.sysconf("SC_PAGE_SIZE")
    return own + sum(memory_of(int(child)) for child in children)
