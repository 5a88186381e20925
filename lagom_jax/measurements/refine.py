"""The model's prices, with what the user has measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lagom_jax.cluster import Cluster
from lagom_jax.cost.prices import Prices
from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.calibration import Calibration
from lagom_jax.measurements.overlay import Overlay, match
from lagom_jax.measurements.xplane import MeasuredStep, read_profile
from lagom_jax.program.program import Program

# Below the first a profile is hardly one of the same program, below the second not:
# names such as `fusion.1` occur in all of them.
_LITTLE = 0.5
_NOTHING = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Refined:
    """Prices, and what a report must say about them."""

    prices: Prices
    source: str
    """Their origin, in words."""
    notes: tuple[str, ...] = ()
    measured: bool = False
    """True if they are the times of a profile as far as it has them."""


def refine(
    program: Program,
    cluster: Cluster,
    prices: Prices,
    source: str,
    *,
    model: str = "",
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
) -> Refined:
    """Puts what was measured in the place of what the model says.

    Args:
        program: The program to be priced.
        cluster: What it runs on.
        prices: The model's.
        source: What the model says of their source.
        model: The digest of the model's constants, which a calibration is for.
        calibration: Corrects the model; a record or its file.
        profile: Of a run of the same program: its times go before all others.

    Raises:
        MeasurementError: One of them cannot be read or is about something else.

    Example:
        >>> from lagom_jax.cost.model import CostModel
        >>> h100 = Cluster.parse("h100:1x8")
        >>> prices = CostModel.of(h100)
        >>> refine(Program("p", (), 8), h100, prices, "estimated").source
        'estimated'
    """
    notes: tuple[str, ...] = ()
    if calibration is not None:
        if not isinstance(calibration, Calibration):
            calibration = Calibration.load(calibration)
        prices = calibration.apply(prices, cluster, model)
        source = calibration.pricing(source)
    if profile is not None:
        if not isinstance(profile, MeasuredStep):
            profile = read_profile(profile)
        found = match(program, profile, prices)
        if found.share < _NOTHING:
            raise MeasurementError(
                f"next to nothing of {program.name} ({found.words()}) is in the "
                f"profile {profile.origin} of {profile.module}; give the profile of a "
                "run of this very program, compiled the same way"
            )
        prices = Overlay(prices, found.seconds)
        source = f"measured: {found.words()}; for the rest {source}"
        notes = tuple(_notes(profile, program, found.share))
    return Refined(prices, source, notes, measured=profile is not None)


def _notes(profile: MeasuredStep, program: Program, share: float) -> list[str]:
    notes = ["measured times include the contention with what ran beside"]
    if profile.devices == 1 and program.devices > 1:
        notes.append(
            "the profile has one device only: times of collectives include its waits "
            "for the others"
        )
    if profile.module and profile.module != program.name:
        notes.append(
            f"the profile is of {profile.module}, the program is {program.name}"
        )
    if share < _LITTLE:
        notes.append(
            f"the profile has only {share:.0%} of the program's predicted time: is it "
            "of the same program, compiled the same way?"
        )
    if profile.nameless_share > 0.02:
        notes.append(
            f"{profile.nameless_share:.0%} of the profile's kernel time names no "
            "instruction"
        )
    return notes
