"""A plan's share of this process: what has to be set before jax starts a backend."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Literal

from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.errors import LagomError, TunerError
from lagom_jax.nccl_plugin.image import load as load_rules
from lagom_jax.nccl_plugin.installed import (
    CHAIN,
    CONTROL,
    PLUGIN,
    RULES,
    is_ours,
    named_tuner,
)
from lagom_jax.nccl_plugin.library import built
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import Plan, load
from lagom_jax.plan.check import require
from lagom_jax.plan.pinned import stated
from xla_flags import pinned_here


class BackendStartedError(LagomError):
    """Something has been started that reads the environment only as it starts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """The variables that were set for a plan, and notes on what could not be set."""

    variables: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def init(
    plan: Plan | str | Path,
    *,
    rules: str | Path | None = None,
    other_tuner: Literal["ask", "refuse"] = "ask",
    environ: MutableMapping[str, str] = os.environ,
) -> Environment:
    """Sets in this process what a plan needs before jax starts a backend.

    What XLA's options can say goes into `XLA_FLAGS`, in front of what is there, so that
    what the user has set counts. NCCL is told to load the tuner plugin if there are
    rules for it.

    Call it first of all: XLA reads `XLA_FLAGS` once, when anything asks for its
    options, which may be before there is a backend, and nothing tells that it has.

    Args:
        plan: The plan, or its file.
        rules: What `lagom tuner write` made of it.
        other_tuner: Where `NCCL_TUNER_PLUGIN` names another tuner already: `ask` it
            about calls for which there is no rule, or `refuse`.
        environ: Where to set it.

    Returns:
        What was set, and what no variable can say.

    Raises:
        BackendStartedError: jax has started a backend.
        PlanError: The plan cannot be read, or does not hold here.
        TunerError: The rules cannot be read, or the plugin was not built, or another
            tuner is set and was to be refused. In all these cases nothing was set.

    Example:
        >>> init("plan.json")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: cannot read the plan plan.json: ...
    """
    if isinstance(plan, str | Path):
        plan = load(plan)
    if _backends_run():
        raise BackendStartedError(
            "jax has started a backend, which reads XLA_FLAGS and loads NCCL only as "
            "it starts: call lagom_jax.init before jax.devices() and before the first "
            "computation"
        )
    pins = pinned_here()
    versions = Toolchain.probe().versions
    process = None
    if plan.needs or plan.variables:
        here = ProcessHere.probe(environ)
        # What the plan's own variables say is set below.
        own = {one.name: one.value for one in plan.variables}
        process = ProcessHere({**own, **here.variables}, here.nccl, here.cuda_driver)
    pinned = stated(pins)
    notes = [*require(plan, versions=versions, pinned=pinned, process=process)]
    variables: dict[str, str] = {}
    for name, value in plan.environment().items():
        before = environ.get(name, "")
        if name == "XLA_FLAGS":
            variables[name] = f"{value} {before}".strip()
        elif before and before != value:
            notes.append(f"{name}={before} is set and stays; the plan has {value}")
        else:
            variables[name] = value
    if rules is not None:
        variables |= _tuner(rules, other_tuner, named_tuner(pins), environ, notes)
    notes += [
        f"{part.what}: {part.why}"
        for part in plan.beyond_environment()
        if rules is None or part.carrier != "tuner plugin"
    ]
    environ.update(variables)
    return Environment(tuple(sorted(variables.items())), tuple(notes))


def _tuner(
    rules: str | Path,
    other_tuner: str,
    other: str,
    environ: MutableMapping[str, str],
    notes: list[str],
) -> dict[str, str]:
    load_rules(rules)
    plugin = built()
    if environ.get(CONTROL):
        raise TunerError(
            f"{CONTROL} is set, and a control page goes before a file of rules: unset "
            "it, or give the rules to `lagom_jax.nccl_plugin.exchange`"
        )
    variables = {PLUGIN: str(plugin), RULES: str(Path(rules).resolve())}
    if other.lower() == "none":
        raise TunerError(
            f"{PLUGIN}={other} is set, so that NCCL loads no tuner: unset it, or give "
            "no rules"
        )
    if other and not is_ours(other, plugin):
        if other_tuner == "refuse":
            raise TunerError(
                f"{PLUGIN}={other} is set: unset it, or let it be asked where there is "
                "no rule (other_tuner='ask')"
            )
        variables[CHAIN] = environ.get(CHAIN) or other
        asked = variables[CHAIN]
        notes.append(f"{asked} is asked about calls for which there is no rule")
    return variables


def _backends_run() -> bool:
    # Not imported for this: a jax that nobody has imported has started nothing.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()
