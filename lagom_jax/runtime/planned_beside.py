"""Planning beside a job: in a child process with few cores and little memory."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lagom_jax import processes
from lagom_jax.cluster import Cluster
from lagom_jax.compile.child import Child, environment
from lagom_jax.compile.store import Store
from lagom_jax.errors import PlanError
from lagom_jax.plan import Plan, from_json, to_json
from lagom_jax.planner import Planner
from lagom_jax.planner.request import Request
from lagom_jax.runtime.offer import OfferedPlan
from lagom_jax.runtime.planning_process import packed_step
from lagom_jax.runtime.say import LOG
from lagom_jax.runtime.waiting import every
from lagom_jax.typed_json import typed
from lagom_jax.units import in_bytes

CORES: Final = 0.25
"""The share of a job's cores that planning may take; one at least."""
MEMORY: Final = 0.25
"""The share of the memory that is free as it begins."""
_LOOKS_SECONDS: Final = 1.0


class PlannerBeside(Planner):
    """A planner whose planning happens in another process, at the lowest priority.

    The process stays, idle, for as long as it may be asked for settings around a plan.
    """

    timed: tuple[OfferedPlan, ...] = ()
    """The alternatives of the last plan, the step as it is first."""
    profile: Path | None = None
    """The folder of a profile of the step as it is, with its program; None without."""
    calibrated: str = ""
    """The factors by which the model was off, in words."""
    _child: PlanningChild | None = None

    def plan(self, request: Request | None = None) -> Plan:
        """Makes a plan.

        Args:
            request: All that the plan may use.

        Raises:
            PlanError: The process could not, took too much memory, or was ended.
        """
        request = request or Request()
        cores = cores_for(request)
        child = self._child = PlanningChild(cores)
        try:
            found = child.ask(*self._asked(request, cores), request.progress)
        except PlanError:
            self.close()
            raise
        self.calibrated = found["calibrated"]
        self.timed = typed(tuple[OfferedPlan, ...], found["alternatives"])
        return from_json(found["plan"], "the plan made beside the job")

    def around(self, plan: Plan | None) -> tuple[OfferedPlan, ...]:
        """Plans with the same program and other settings than one of those before.

        Args:
            plan: One of them; None for the step as it is.

        Raises:
            PlanError: The process could not, or is gone.
        """
        if self._child is None:
            return ()
        around = "" if plan is None else to_json(plan)
        found = self._child.ask({"around": around}, b"", lambda line: None)
        return typed(tuple[OfferedPlan, ...], found["around"])

    def close(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _asked(self, request: Request, cores: int) -> tuple[dict[str, Any], bytes]:
        step = self.lowered
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
        store = Store.usual() if self._compiler is None else self._compiler.store
        asked = {
            "step": header,
            "cluster": self.cluster.name,
            "levers": request.levers,
            "controls": request.controls,
            "budget": dataclasses.asdict(budget),
            "kernels": [dataclasses.asdict(one) for one in self.kernels],
            "deterministic": request.deterministic,
            "store": store is not None and str(store.folder),
            "profile": str(self.profile or ""),
        }
        return asked, stablehlo


class PlanningChild:
    """The process that plans, kept to a share of what is free."""

    def __init__(self, cores: int) -> None:
        """Starts it; it plans when it is asked.

        Args:
            cores: On which it runs.
        """
        words = processes.python(
            "-m", "lagom_jax.runtime.planning_process", str(os.getpid()), str(cores)
        )
        self._child = Child(environment(), *words)
        self._most, self._reason = int(MEMORY * processes.free_memory()), ""
        self._lock = threading.Lock()
        self._over = every(_LOOKS_SECONDS, self._keep_small)

    def ask(
        self,
        header: dict[str, Any],
        payload: bytes,
        progress: Callable[[str], None],
    ) -> dict[str, Any]:
        """The answer to a request, as `planning_process` takes it.

        Raises:
            PlanError: It is an error, or the process has ended.
        """
        with self._lock:
            answer = self._child.ask(
                header, payload, timeout_s=threading.TIMEOUT_MAX, progress=progress
            )
        found = answer.header
        if found is None:
            self.end()
            why = self._reason or f"it ended ({answer.exit_status})"
            found = {"error": f"the process: {why}"}
        if "error" in found:
            raise PlanError(f"planning beside the job: {found['error']}")
        return found

    def end(self) -> None:
        """Ends the process."""
        self._over.set()
        self._child.kill()
        # Whoever asks it hears of it, and is done with it then.
        with self._lock:
            self._child.close()

    def _keep_small(self) -> None:
        """Ends the process where it takes too much memory."""
        taken = processes.memory_of(self._child.pid)
        if taken > self._most and not self._reason:
            self._reason = (
                f"it took {in_bytes(taken)} of memory and may take "
                f"{in_bytes(self._most)}, a quarter of what was free"
            )
            LOG.debug("planning beside the job is ended: %s", self._reason)
            self._child.kill()


def cores_for(request: Request) -> int:
    """Cores that planning may take: those that were asked for, or a share.

    Example:
        >>> from lagom_jax.planner import Budget
        >>> cores_for(Request(budget=Budget(at_once=3)))
        3
    """
    own = len(os.sched_getaffinity(0))
    return request.budget.at_once or max(1, int(CORES * own))
