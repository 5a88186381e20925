"""From a training step, or a dump of one, to the settings that make it shortest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.measure import Calibration, refine
from lagom_jax.schedule.build import build_program
from lagom_jax.scheduled import Scheduled, compile_scheduled, read_scheduled
from lagom_jax.search.controls import FINE, Controls, Grid, named
from lagom_jax.search.policy import Policy
from lagom_jax.search.tuning import (
    POLICIES,
    PolicyError,
    Tuning,
    policy_named,
    tune_program,
)

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler


def find_settings(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    policies: Sequence[str] = ("lagom",),
    controls: str | Controls = "tuner",
    compiler_options: Mapping[str, Any] | None = None,
    calibration: Calibration | str | Path | None = None,
    compiler: Compiler | None = None,
    **kwargs: Any,
) -> Tuning:
    """Compiles a training step and finds the settings that make it shortest.

    Nothing is executed, and nothing is set: the answer is a record.

    Args:
        step: The training step, as `analyze` takes it.
        *args: Its arguments, likewise.
        cluster: The cluster, such as `"h100:8x8"`.
        policies: How to choose: `nccl`, `autoccl`, `lagom`, `exhaustive`. The first
            decides, the others are compared with it.
        controls: What NCCL can be told where the step runs: `caps`, `tuner`,
            `sequence`, `fork`.
        compiler_options: XLA options, as `lowered.compile` takes them.
        calibration: Corrections to the model from your own measurements.
        compiler: Whose processes and store to use, as `analyze` takes it.
        **kwargs: The step's keyword arguments.

    Raises:
        PolicyError: No such policy, or none at all.
        ControlsError: No such controls.
        TooManyError: `exhaustive` was asked of a program with too many combinations.
        LagomError: As `analyze` raises it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> find_settings(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1").speedup
        1.0
    """
    # What was asked is checked before the compiler is set to work.
    asked = _asked(policies, controls, calibration)
    scheduled = compile_scheduled(
        step,
        *args,
        cluster=cluster,
        compiler_options=compiler_options,
        compiler=compiler,
        **kwargs,
    )
    return tune_scheduled(scheduled, **asked)


def find_settings_of_dump(
    path: str | Path,
    cluster: str | Cluster,
    *,
    policies: Sequence[str] = ("lagom",),
    controls: str | Controls = "tuner",
    calibration: Calibration | str | Path | None = None,
) -> Tuning:
    """Finds the settings that make a dumped program shortest.

    Args:
        path: As `analyze_dump` takes it.
        cluster: What the program runs on.
        policies: As `find_settings` takes them.
        controls: As `find_settings` takes them.
        calibration: As `find_settings` takes it.

    Raises:
        LagomError: As `find_settings` and `analyze_dump` raise it.

    Example:
        >>> find_settings_of_dump("no_such_dump.txt", "h100:1x8")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: ...no_such_dump.txt...
    """
    asked = _asked(policies, controls, calibration)
    return tune_scheduled(read_scheduled(path, cluster), **asked)


class _Asked(TypedDict):
    policies: Sequence[Policy]
    controls: Controls
    calibration: Calibration | None


def _asked(
    policies: Sequence[str],
    controls: str | Controls,
    calibration: Calibration | str | Path | None,
) -> _Asked:
    # A string is a sequence of strings, too.
    names = [policies] if isinstance(policies, str) else policies
    if not names:
        raise PolicyError(f"no policy is named; known are {', '.join(POLICIES)}")
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(calibration)
    return {
        "policies": [policy_named(name) for name in names],
        "controls": named(controls) if isinstance(controls, str) else controls,
        "calibration": calibration,
    }


def tune_scheduled(
    scheduled: Scheduled,
    *,
    policies: Sequence[Policy],
    controls: Controls,
    grid: Grid = FINE,
    calibration: Calibration | None = None,
) -> Tuning:
    """Finds the settings that make a scheduled step shortest.

    Args:
        scheduled: The step.
        policies: How to choose; the first decides.
        controls: What NCCL can be told.
        grid: Which values are tried.
        calibration: Corrections to the model.
    """
    cluster = scheduled.cluster
    model = CostModel.of(cluster)
    program = build_program(scheduled.module)
    refined = refine(
        program,
        cluster,
        model,
        model.source,
        model=model.digest,
        calibration=calibration,
    )

    correction = calibration and calibration.apply(model, cluster, model.digest)

    def correct(prices: Prices) -> Prices:
        # The curves are the same for all settings.
        return replace(correction, base=prices) if correction else prices

    return tune_program(
        program,
        cluster,
        model,
        controls=controls,
        policies=policies,
        grid=grid,
        correct=correct,
        pricing=refined.source,
        name=scheduled.name,
        description=scheduled.description,
        versions=tuple(sorted(scheduled.versions.items())),
        notes=(*scheduled.notes, *scheduled.lists, *refined.notes),
    )
