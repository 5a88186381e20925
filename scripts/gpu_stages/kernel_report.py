"""Rows, scores, findings and updates from kernels that were timed."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpu_stages.kernel_fit import Choice, Measurement, error_of
from gpu_stages.stage import Outcome, Row, Score, Spread, Update
from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.measured import measured
from lagom_jax.schedule.program import Kernel

_MATMULS_MEDIAN: Final = 0.08
_MATMULS_WORST_TENTH: Final = 0.25
_LEAST_FOR_A_SCORE: Final = 3
# From here on a kind of kernel is a finding.
_FAR_OFF: Final = 0.25
_MUCH_NAMELESS: Final = 0.02
# What a fit is for; where none was found, it is said.
_CONVOLUTIONS: Final = (
    "convolutions: no model of the suite has any, so convolution_efficiency stays "
    "estimated"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Timed:
    """One kernel of one program."""

    what: str
    kernel: Kernel
    spread: Spread
    """Microseconds with the gap to the next kernel, a value for each round."""

    @property
    def kind(self) -> str:
        """Of kernel, matmuls by the type of what they multiply."""
        work = self.kernel.work
        if work.kind == "matmul" and work.matmuls:
            return f"matmul {work.matmuls[0].lhs}"
        return work.kind

    @property
    def measurement(self) -> Measurement:
        """As constants are fitted to it."""
        return Measurement.of(self.kernel, self.spread.median * 1e-6)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """All that was measured."""

    kernels: Sequence[Timed]
    tiny: Kernel
    """One of the chain."""
    in_graphs: Spread
    """Microseconds from one to the next in a chain of tiny kernels, as XLA launches
    them by default: a CUDA graph for all."""
    one_by_one: Spread
    """The same without CUDA graphs."""
    alone_us: float
    """A tiny kernel from its start to its end."""
    gap_us: float
    """From the end of a kernel to the start of the next one in a CUDA graph."""
    nameless_share: float
    """Of the profiled time."""
    clock: Spread | None
    """Of the SMs, in MHz, while all of it ran; None where the driver did not say."""
    left_out: Sequence[str]

    @property
    def launch(self) -> Measurement:
        """Of the chain."""
        return Measurement(self.tiny.work, self.in_graphs.median * 1e-6, kept_out=False)


def outcome(
    found: Found,
    cluster: Cluster,
    constants: Constants,
    choices: Sequence[Choice],
    fitted: Constants,
) -> Outcome:
    """What the stage answers.

    Args:
        found: What was measured.
        cluster: Whose GPU it was.
        constants: The model's so far.
        choices: Better ones.
        fitted: The model's constants with those.
    """
    groups: defaultdict[str, list[Timed]] = defaultdict(list)
    for one in found.kernels:
        groups[one.kind].append(one)
        if one.kind.startswith("matmul "):
            groups["matmul"].append(one)
    kinds = {
        kind: group
        for kind, group in sorted(groups.items())
        if len(group) >= _LEAST_FOR_A_SCORE
    }
    return Outcome(
        rows=[
            *_launch_rows(found, cluster, constants),
            *_clock_row(found, cluster),
            *(_row(one, cluster, constants) for one in found.kernels),
        ],
        scores=[
            *_scores(kinds, cluster, constants),
            *_scores_with(kinds, choices, cluster, constants, fitted),
        ],
        findings=[*_findings(found, kinds, cluster, constants)],
        left_out=[*found.left_out, *_unmeasured(choices, constants)],
        updates=[*_updates(choices, cluster.gpu.name)],
    )


def _row(one: Timed, cluster: Cluster, constants: Constants) -> Row:
    work = one.kernel.work
    price = kernel_price(work, cluster, constants)
    return Row(
        series=one.kind,
        what=one.what,
        measured=one.spread,
        predicted=1e6 * price.seconds,
        kept_out=True,
        details={
            "instruction": one.kernel.name,
            "bound": price.bound,
            "GB/s": work.hbm_bytes / one.spread.median * 1e-3,
            "TFLOP/s": work.flops / one.spread.median * 1e-6,
        },
    )


def _launch_rows(found: Found, cluster: Cluster, constants: Constants) -> Iterator[Row]:
    predicted = 1e6 * kernel_price(found.tiny.work, cluster, constants).seconds
    details = {"alone, us": found.alone_us, "gap, us": found.gap_us}
    for what, spread in (
        ("tiny kernels in a CUDA graph", found.in_graphs),
        ("tiny kernels launched one by one", found.one_by_one),
    ):
        yield Row("launch", what, spread, predicted, kept_out=True, details=details)


def _clock_row(found: Found, cluster: Cluster) -> Iterator[Row]:
    if found.clock is not None:
        boost = cluster.gpu.boost_clock_hz / 1e6
        assumed = {"the model assumes, MHz": boost}
        yield Row("clock", "SMs", found.clock, unit="MHz", details=assumed)


def _scores(
    kinds: Mapping[str, Sequence[Timed]], cluster: Cluster, constants: Constants
) -> Iterator[Score]:
    for kind, group in kinds.items():
        error = error_of([one.measurement for one in group], cluster, constants)
        goals = (None, None)
        if kind == "matmul":
            goals = (_MATMULS_MEDIAN, _MATMULS_WORST_TENTH)
        yield Score(
            f"{kind}, median error of {len(group)}",
            error.median,
            most=goals[0],
            unit="%",
            kept_out=True,
        )
        yield Score(
            f"{kind}, 90th percentile",
            error.worst_tenth,
            most=goals[1],
            unit="%",
            kept_out=True,
        )


def _scores_with(
    kinds: Mapping[str, Sequence[Timed]],
    choices: Sequence[Choice],
    cluster: Cluster,
    constants: Constants,
    fitted: Constants,
) -> Iterator[Score]:
    """What the new constants make of sizes that they were not fitted to."""
    if not choices:
        return
    for kind, group in kinds.items():
        kept_out = [one.measurement for one in group if one.measurement.kept_out]
        if len(kept_out) < _LEAST_FOR_A_SCORE:
            continue
        before = error_of(kept_out, cluster, constants)
        after = error_of(kept_out, cluster, fitted)
        if after != before:
            yield Score(
                f"{kind}, median error of {len(kept_out)} with what was measured here "
                f"({before.median:.1%} before)",
                after.median,
                unit="%",
                kept_out=True,
            )


def _findings(
    found: Found,
    kinds: Mapping[str, Sequence[Timed]],
    cluster: Cluster,
    constants: Constants,
) -> Iterator[str]:
    for kind, group in kinds.items():
        ratios = sorted(
            kernel_price(one.kernel.work, cluster, constants).seconds
            / (one.spread.median * 1e-6)
            for one in group
        )
        middle = statistics.median(ratios)
        if abs(middle - 1) > _FAR_OFF:
            yield (
                f"Of {len(ratios)} kernels of the kind {kind} the model's times are "
                f"{middle:.2f} of the measured ones in the median, from "
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}."
            )
    launch = constants.kernels.launch_seconds * 1e6
    if abs(launch / found.in_graphs.median - 1) > _FAR_OFF:
        yield (
            f"A tiny kernel takes {found.in_graphs.median:.2f} us of a CUDA graph and "
            f"{found.one_by_one.median:.2f} us where each is launched by itself; the "
            f"model takes {launch:.2f} us for either."
        )
    if found.nameless_share > _MUCH_NAMELESS:
        yield (
            f"{found.nameless_share:.1%} of the profiled time went to kernels that the "
            "profile names no instruction for; they are in no row."
        )


def _unmeasured(choices: Sequence[Choice], constants: Constants) -> Iterator[str]:
    changed = {name for choice in choices for name in choice.changes}
    if "attention_efficiency" not in changed:
        yield (
            "attention_efficiency stays "
            f"{constants.kernels.attention_efficiency:g}: no other value was better "
            "for sizes kept out, or no fused attention kernel was measured"
        )
    yield _CONVOLUTIONS


def _updates(choices: Sequence[Choice], gpu: str) -> Iterator[Update]:
    """One for each constant; shares by kind are one constant in the record."""
    values: dict[str, Any] = {}
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for choice in choices:
        for name, value in choice.changes.items():
            if isinstance(value, dict):
                old = values.get(name) or measured(gpu, "kernels").get(name, {})
                value = {**old, **value}
            values[name] = value
            sources[name].append(f"{choice.what} {choice.source()}")
    for name, value in values.items():
        yield Update("kernels", name, value, "; ".join(sources[name]))
