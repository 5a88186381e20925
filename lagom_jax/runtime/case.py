"""A step for which a plan is looked for, and what a plan for it must agree with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lagom_jax
from lagom_jax.cluster import Cluster
from lagom_jax.compile import Toolchain
from lagom_jax.errors import PlanError, TunerError
from lagom_jax.files import digest_of_code
from lagom_jax.nccl_plugin.installed import CONTROL, PLUGIN, is_ours
from lagom_jax.nccl_plugin.library import built as built_plugin
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import Plan
from lagom_jax.plan.check import require
from lagom_jax.plan.pinned import Pinned
from lagom_jax.planner import Budget, Planner
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.nccl import Nccl
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.units import in_bytes
from xla_flags import known

# They make programs for CPUs, or name processes of one host.
_OF_THE_HOST: Final = ("xla_cpu_", "xla_force_host_")


@dataclasses.dataclass(frozen=True)
class Case:
    """A step for which a plan is looked for."""

    planner: Planner
    options: Options
    budget: Budget
    """The user's, with the memory that this process's devices have."""
    cache: Cache
    """The place where decisions are kept; only the first process looks."""
    nccl: Nccl | None
    """The means to give NCCL rules here; None where the step does not run on GPUs, and
    the plan is for elsewhere."""
    measured_only: bool = False
    """Looks for a plan that was measured and found faster, and for no other."""

    @functools.cached_property
    def compared(self) -> dict[str, str]:
        """Properties that must be the same in all processes, by name."""
        planner, options = self.planner, self.options
        versions = sorted(Toolchain.probe().versions.items())
        # What it would decide, lagom_jax decides by its code.
        code = digest_of_code(Path(lagom_jax.__file__).parent)[:12]
        return {
            "program": planner.fingerprint,
            "cluster": f"{planner.cluster.name} {_content(planner.cluster)}",
            "versions": ", ".join(f"{n} {v}" for n, v in versions),
            "lagom_jax": f"{lagom_jax.__version__} {code}",
            "pinned": ", ".join(map(str, filter(_changes_program, planner.pinned))),
            "levers": ", ".join(options.levers),
            "deterministic": str(options.deterministic),
            "kernels": ", ".join(map(str, options.kernels)),
        }

    def word(self) -> Word:
        """This process's part in the first round."""
        # No part of what is decided, and yet of what runs: programs that take turns in
        # one process only would wait for each other.
        said = {**self.compared, "verify": self.options.verify}
        lines = "\n".join(f"{name} {value}" for name, value in said.items())
        return Word(lines, self.nccl.objection() if self.nccl is not None else "")

    def key(self, levers: tuple[str, ...], controls: str) -> dict[str, str]:
        """The parts of the key that a plan is kept under.

        Args:
            levers: Those that the plan may use.
            controls: The means to tell NCCL.
        """
        # Limits as they were asked for: a plan that was made elsewhere is found here.
        budget = dataclasses.replace(self.options.budget, at_once=0)
        limits = sorted(dataclasses.asdict(budget).items())
        return {
            **self.compared,
            "levers": ", ".join(levers),
            "controls": controls,
            "budget": ", ".join(f"{name} {value}" for name, value in limits),
            "set": ", ".join(map(str, filter(_matters, self.planner.pinned))),
        }

    def check(self, plan: Plan) -> None:
        """Raises PlanError where a plan is for something else."""
        doubts = require(
            plan,
            fingerprint=self.planner.fingerprint,
            cluster=self.planner.cluster,
            versions=Toolchain.probe().versions,
            # What is a host's own, or our own, is nothing that a plan holds for.
            pinned=[*filter(_matters, self.planner.pinned), *_own(plan)],
            with_options=True,
            process=ProcessHere.probe() if self.nccl is not None else None,
        )
        for doubt in doubts:
            LOG.info("the plan: %s", doubt)
        peak = plan.evidence.tuned_peak
        allowed = self.budget.memory(self.planner.cluster.gpu.memory_bytes)
        limit = memory_limit(allowed, plan)
        if peak is not None and peak > limit:
            raise PlanError(
                f"the plan takes {in_bytes(peak)} on a device, and may take "
                f"{in_bytes(limit)}"
            )


def memory_limit(allowed: int, plan: Plan) -> int:
    """Bytes that a plan's program may take: never less than the step as it is."""
    return max(allowed, plan.evidence.default_peak or 0)


def _own(plan: Plan) -> Iterator[Pinned]:
    return (one for one in plan.holds_for.pinned if not _matters(one))


def _matters(pinned: Pinned) -> bool:
    """True if a plan for GPUs depends on it."""
    if pinned.name == PLUGIN:
        with contextlib.suppress(TunerError):
            if is_ours(pinned.value, built_plugin()):
                return False
    return pinned.name != CONTROL and not pinned.name.startswith(_OF_THE_HOST)


def _changes_program(pinned: Pinned) -> bool:
    """True if the compiler makes another program of it, as far as is known."""
    flag = known().get(pinned.name)
    if flag is None:
        return not pinned.name.startswith("NCCL") and _matters(pinned)
    return flag.changes in ("program", "not tried") and _matters(pinned)


def _content(cluster: Cluster) -> str:
    return hashlib.sha256(repr(cluster).encode()).hexdigest()[:12]
