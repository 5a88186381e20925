"""Constants of an ensemble: others that measurements and estimates leave open.

All of them differ at once, each by its own random numbers (`draws.py`):

- Fitted constants by what their fit missed of rows that were kept out of it
  (`spread.py`): a part that all sizes have in common, and a part that near sizes have.
- Estimates within the range that their record states.
- Single kernels that are no matmuls: each is some way off its kind.
- Forms that no measurement tells apart, each as often as the other.

Derivation: docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lagom_jax.cluster import Gpu
from lagom_jax.cost.constants import Constants, NetworkConstants
from lagom_jax.cost.draws import Draws, Floats
from lagom_jax.cost.kernel_constants import KernelConstants, MatmulConstants, OwnErrors
from lagom_jax.cost.measured import measured
from lagom_jax.cost.nccl_facts import NcclFacts, stated
from lagom_jax.cost.sharing_constants import SharingConstants
from lagom_jax.cost.spread import assumed, estimates
from lagom_jax.cost.surface import Surface, Surfaces
from lagom_jax.cost.transport_constants import TransportConstants, transports_record

# Of an error's variance, the part that all sizes have in common.
_COMMON: Final = 0.8
# Octaves of bytes over which errors of collectives are alike.
_REACH: Final = 4.0
_LARGE_LOG2: Final = 20
"""Of the bytes from which a collective is large."""


def drawn(constants: Constants, gpu: Gpu, draws: Draws) -> tuple[Constants, ...]:
    """Constants for each member of an ensemble.

    Args:
        constants: The likeliest.
        gpu: What they are of.
        draws: The random numbers.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.constants import load_constants
        >>> h100 = Cluster.parse("h100:1x8")
        >>> found = drawn(load_constants(h100), h100.gpu, Draws(20))
        >>> len({one.digest for one in found})
        20
    """
    kernels = _kernels(constants.kernels, draws)
    sharing = _sharing(constants.sharing, gpu, draws)
    surfaces = _surfaces(constants.surfaces, draws)
    networks = _networks(constants.network, draws)
    facts = _facts(constants.facts, draws)
    transports = _transports(constants.transports, draws)
    launches = _within(
        {"one_shot_seconds": constants.one_shot_seconds},
        estimates("launches.json"),
        draws,
    )
    return tuple(
        dataclasses.replace(
            constants,
            kernels=kernels[member],
            sharing=sharing[member],
            surfaces=surfaces[member],
            network=networks[member],
            facts=facts[member],
            transports=transports[member],
            **launches[member],
        )
        for member in range(draws.members)
    )


def _kernels(known: KernelConstants, draws: Draws) -> list[KernelConstants]:
    matmuls = {name: _matmuls(name, of, draws) for name, of in known.matmuls.items()}
    record = estimates("kernels.json")["kernels"]
    measured_here = measured(known.gpu, "kernels")
    values = {
        name: getattr(known, name) for name in record if name not in measured_here
    }
    others = _within(values, record, draws)
    return [
        dataclasses.replace(
            known,
            matmuls={name: found[member] for name, found in matmuls.items()},
            missed=OwnErrors(f"{draws.seed}/{member}", assumed("one_kernel")),
            **others[member],
        )
        for member in range(draws.members)
    ]


def _matmuls(name: str, known: MatmulConstants, draws: Draws) -> list[MatmulConstants]:
    in_a_step = assumed("matmuls_in_a_step")
    large, small = (math.hypot(one, in_a_step) for one in known.spread)
    common = np.array(draws.normal(f"matmuls {name}"))
    shape = known.correction.log_factors.shape
    own = np.array(
        [
            draws.normal(f"matmuls {name} {place}")
            for place in itertools.product(*map(range, shape))
        ]
    ).reshape(*shape, -1)
    missed = _mixed(common, own)
    return [
        dataclasses.replace(
            known,
            correction=dataclasses.replace(
                known.correction,
                log_factors=known.correction.log_factors + large * missed[..., member],
            ),
            short=dataclasses.replace(
                known.correction, log_factors=(small - large) * missed[..., member]
            ),
        )
        for member in range(draws.members)
    ]


def _mixed(common: Floats, own: Floats) -> Floats:
    """Normal numbers of which a part of the variance is common to all places."""
    return math.sqrt(_COMMON) * common + math.sqrt(1 - _COMMON) * own


def _surfaces(known: Surfaces, draws: Draws) -> list[Surfaces]:
    by_kind = {kind: _surface(of, draws) for kind, of in known.by_kind.items()}
    found = [
        dataclasses.replace(
            known, by_kind={kind: found[member] for kind, found in by_kind.items()}
        )
        for member in range(draws.members)
    ]
    if known.fall_range is None:
        return found
    # What many cards share is the host's: the same for all kinds of collectives.
    falls = _between(*known.fall_range, draws.uniform("fall"))
    return [one.with_fall(fall) for one, fall in zip(found, falls, strict=True)]


def _surface(known: Surface, draws: Draws) -> list[Surface]:
    places: list[float] = known.log2_bytes.tolist()
    common = np.array(draws.normal(f"collectives {known.kind}"))
    own = draws.field(f"collectives {known.kind} bytes", places, _REACH)
    large, small = known.spread
    spread = np.hypot(
        np.where(known.log2_bytes >= _LARGE_LOG2, large, small),
        assumed("collectives_in_a_step"),
    )
    missed = spread[:, None] * _mixed(common, own)
    by_protocol = {
        protocol: missed
        + assumed("protocol")
        * np.array(draws.normal(f"collectives {known.kind} {protocol}"))
        for protocol in known.factors
    }

    def moved(factors: Mapping[str, Floats], member: int) -> dict[str, Floats]:
        return {
            protocol: table + by_protocol[protocol][:, member]
            for protocol, table in factors.items()
        }

    return [
        dataclasses.replace(
            known,
            factors=moved(known.factors, member),
            by_older_version={
                version: moved(factors, member)
                for version, factors in known.by_older_version.items()
            },
        )
        for member in range(draws.members)
    ]


def _networks(known: NetworkConstants, draws: Draws) -> list[NetworkConstants]:
    # A network that is slow is slow in everything.
    common = np.array(draws.normal("network"))
    slower, later, longer = (
        np.exp(
            known.spread * _mixed(common, np.array(draws.normal(f"network {name}")))
        ).tolist()
        for name in ("efficiency", "crossing", "ramp")
    )
    return [
        dataclasses.replace(
            known,
            # Above 1 where an algorithm sends less than the model says.
            efficiency=known.efficiency / slower[member],
            crossing_seconds=known.crossing_seconds * later[member],
            ramp=known.ramp * longer[member],
            tree_ramp=known.tree_ramp * longer[member],
        )
        for member in range(draws.members)
    ]


def _facts(known: NcclFacts, draws: Draws) -> list[NcclFacts]:
    record = stated()
    found = _within(
        {
            "slice_overhead_microseconds": known.slice_overhead_microseconds,
            "half_rate_threads": known.half_rate_threads,
        },
        record,
        draws,
    )
    low, high = record["simple_channel_gb_per_s"]["factors"]
    rates = _between(low, high, draws.uniform("simple_channel_gb_per_s"))
    return [
        dataclasses.replace(
            known,
            channel_gb_per_s=known.channel_gb_per_s * rates[member],
            **found[member],
        )
        for member in range(draws.members)
    ]


def _transports(known: TransportConstants, draws: Draws) -> list[TransportConstants]:
    record = transports_record()
    values = {
        name: getattr(known, name)
        for name, item in record.items()
        if "range" in item or "factors" in item
    }
    found = _within(values, record, draws)
    return [
        dataclasses.replace(known, **found[member]) for member in range(draws.members)
    ]


def _sharing(known: SharingConstants, gpu: Gpu, draws: Draws) -> list[SharingConstants]:
    record = estimates("sharing.json")
    measured_here = measured(gpu.name, "sharing")
    values = {
        name: getattr(known, name)
        for name in record
        if name not in measured_here and "range" in record[name]
    }
    found = _within(values, record, draws)
    form = "persistent_kernels"
    generation = gpu.compute_capability.partition(".")[0]
    if form not in measured_here and generation in record[form]["open"]:
        for member, part in enumerate(draws.uniform(form)):
            found[member][form] = part >= 0.5
    return [
        dataclasses.replace(known, **found[member]) for member in range(draws.members)
    ]


def _within(
    values: Mapping[str, Any], record: Mapping[str, Any], draws: Draws
) -> list[dict[str, Any]]:
    """For each member the values, each somewhere in the range that its record states.

    A record with several values states factors for them, and each has its own.
    """
    found: list[dict[str, Any]] = [{} for _ in range(draws.members)]
    for name, value in values.items():
        stated = record[name]
        if "range" in stated:
            low, high = stated["range"]
            each: list[Any] = _between(low, high, draws.uniform(name))
        elif "factors" in stated:
            low, high = stated["factors"]
            parts = {
                part: _between(low, high, draws.uniform(f"{name} {part}"))
                for part in value
            }
            each = [
                {part: value[part] * parts[part][member] for part in value}
                for member in range(draws.members)
            ]
        else:
            each = [value] * draws.members
        for member, drawn_value in enumerate(each):
            found[member][name] = drawn_value
    return found


def _between(low: float, high: float, parts: tuple[float, ...]) -> list[float]:
    """Evenly between two ends; by factors, unless one of them is nothing."""
    if low > 0:
        return [low * (high / low) ** part for part in parts]
    return [low + (high - low) * part for part in parts]
