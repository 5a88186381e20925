"""The search space of a program: groups of collectives, and candidates of each."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import usual_setting
from lagom_jax.cost.nccl_default import offered_by
from lagom_jax.cost.nccl_facts import NcclFacts, nccl_facts
from lagom_jax.cost.peers import p2p_channels
from lagom_jax.cost.span import Span, span_of
from lagom_jax.cost.symmetric_kernels import Carried
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.setting import (
    CHUNK_GRAIN,
    MOST_CHANNELS,
    REDUCING,
    Call,
    Cap,
    Setting,
    largest_chunk,
    threads_range,
)
from lagom_jax.program.program import Program
from lagom_jax.settings.calls import calls_of
from lagom_jax.settings.controls import FINE, Controls, Grid

# Below this NCCL's own rounding could leave nothing of a chunk.
_LEAST_CHUNK = 16 << 10


SettingOrCap: TypeAlias = Setting | Cap | None
"""A candidate of a group; None leaves the group alone."""
Choice: TypeAlias = tuple[int, ...]
"""For each group the position of its candidate; 0 leaves it alone."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Collectives that cannot be distinguished, and so share one setting."""

    name: str
    sites: tuple[Collective, ...]
    calls: tuple[Call, ...]
    """Their calls, as NCCL sees them; empty where a cap binds them."""
    usual: tuple[Setting, ...]
    """NCCL's own choice for each site."""
    candidates: tuple[SettingOrCap, ...]
    """The candidates to try; the first is None."""

    def setting(self, site: int, candidate: SettingOrCap) -> Setting:
        """The setting of a site under a candidate."""
        usual = self.usual[site]
        if candidate is None:
            return usual
        if isinstance(candidate, Cap):
            return candidate.of(usual)
        return candidate


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All that can be set in a program."""

    groups: tuple[Group, ...]
    fixed: tuple[tuple[Collective, str], ...]
    """Collectives that cannot be set, and why."""
    coarser: Space | None = None
    """The space under coarser controls; None where it is the same."""

    def carried(self, choice: Choice) -> Choice:
        """A choice for the coarser space, expressed in this one."""
        said = (self.said(group, picked) for group, picked in enumerate(choice))
        return tuple(picked for _, picked in sorted(itertools.chain(*said)))

    def said(self, coarse: int, candidate: int) -> tuple[tuple[int, int], ...]:
        """A candidate of a group of the coarser space, expressed in this one.

        Args:
            coarse: The number of that group.
            candidate: The position of its candidate.

        Returns:
            For each group that it falls into here, its number and its candidate.
        """
        assert self.coarser is not None
        told = self.coarser.groups[coarse]
        return tuple(
            (number, group.candidates.index(told.candidates[candidate]))
            for number, group in enumerate(self.groups)
            if group.sites[0] in told.sites
        )


def space_of(
    program: Program,
    cluster: Cluster,
    controls: Controls,
    grid: Grid = FINE,
    nccl: str = "",
    carried: Callable[[Collective], Carried | None] = lambda site: None,
) -> Space:
    """The search space of a program.

    Args:
        program: The step.
        cluster: What it runs on.
        controls: The parts of a setting that can be set, and how finely.
        grid: Which values are tried.
        nccl: NCCL's version; by default that of its record.
        carried: Says of a collective whether it runs off the rings.

    Example:
        >>> from lagom_jax.settings.controls import named
        >>> h100 = Cluster.parse("h100:1x8")
        >>> space_of(Program("p", (), 8), h100, named("tuner")).groups
        ()
    """
    facts = nccl_facts(cluster, nccl)
    fixed: list[tuple[Collective, str]] = []
    exchanges: list[tuple[Collective, Span]] = []
    called: list[tuple[Collective, Span]] = []
    for site in dict.fromkeys(found for found, _, _ in program.collectives()):
        span = span_of(site.groups, cluster)
        if span.size == 1:
            fixed.append((site, "its groups have one member"))
        elif site.one_shot_kernel:
            fixed.append((site, "XLA runs it as a kernel of its own, without NCCL"))
        elif (off := carried(site)) is not None:
            fixed.append((site, f"runs by {off.transport}: no tuner is asked"))
        elif site.kind in controls.leaves:
            fixed.append((site, "left alone, as asked"))
        elif site.kind in REDUCING:
            called.append((site, span))
        elif site.kind == "collective-broadcast":
            fixed.append((site, "broadcasts are left to NCCL"))
        else:
            exchanges.append((site, span))
    groups = _called_groups(called, controls, grid, facts)
    if exchanges:
        most = max(p2p_channels(facts, span.domains) for _, span in exchanges)
        caps = (None, *(Cap(1 << n) for n in range(most.bit_length() - 1)))
        name = "sends and receives"
        groups.append(_group(name, exchanges, (), caps, facts))
    fewer = controls.coarser()
    coarser = fewer and space_of(program, cluster, fewer, grid, nccl, carried)
    if coarser is not None and len(coarser.groups) == len(groups):
        # No two collectives were alike, so that nothing more is told apart.
        coarser = None
    return Space(tuple(groups), tuple(fixed), coarser)


def _called_groups(
    sites: list[tuple[Collective, Span]],
    controls: Controls,
    grid: Grid,
    facts: NcclFacts,
) -> list[Group]:
    if not sites:
        return []
    if controls.tells_apart == "nothing":
        most = max(facts.channels_over(span.domains) for _, span in sites)
        caps = (None, *(Cap(n) for n in grid.channels if n < most))
        return [_group("collectives", sites, (), caps, facts)]
    found: list[Group] = []
    for members in _indistinguishable(sites, controls):
        made = (call for site, span in members for call in calls_of(site, span))
        calls = tuple(sorted({(call, call.operands): call for call in made}.values()))
        site, span = max(members, key=lambda member: member[0].bytes)
        candidates = _settings(site.kind, span, controls, grid, facts)
        name = site.name if controls.tells_apart == "places" else str(calls[-1])
        found.append(_group(name, members, calls, (None, *candidates), facts))
    return found


def _group(
    name: str,
    members: list[tuple[Collective, Span]],
    calls: tuple[Call, ...],
    candidates: tuple[SettingOrCap, ...],
    facts: NcclFacts,
) -> Group:
    usual = (usual_setting(site, span, facts) for site, span in members)
    sites = tuple(site for site, _ in members)
    return Group(name, sites, calls, tuple(usual), candidates)


def _indistinguishable(
    sites: list[tuple[Collective, Span]], controls: Controls
) -> Iterable[list[tuple[Collective, Span]]]:
    """Sites that share a call, directly or through others."""
    if controls.tells_apart == "places":
        return [[member] for member in sites]
    group_of: dict[Call, int] = {}
    members: defaultdict[int, list[int]] = defaultdict(list)
    for position, (site, span) in enumerate(sites):
        calls = calls_of(site, span)
        joined = sorted({group_of[call] for call in calls if call in group_of})
        group = joined[0] if joined else position
        for other in joined[1:]:
            members[group] += members.pop(other)
            for call, known in group_of.items():
                if known == other:
                    group_of[call] = group
        for call in calls:
            group_of[call] = group
        members[group].append(position)
    ordered = sorted(sorted(found) for found in members.values())
    return [[sites[position] for position in found] for found in ordered]


def _settings(
    kind: str,
    span: Span,
    controls: Controls,
    grid: Grid,
    facts: NcclFacts,
) -> tuple[Setting, ...]:
    found: dict[Setting, None] = {}
    for algorithm, protocol in offered_by(kind, span, facts):
        if protocol not in grid.protocols:
            continue
        if algorithm == "nvls":
            # A switch's channels are those of its hardware; no setting gives it more.
            most = facts.nvls_channels
        else:
            own = facts.channels_over(span.domains)
            most = min(MOST_CHANNELS, controls.most_channels or own)
        low, high = threads_range(algorithm, protocol)
        threads = [high]
        if "threads" in controls.sets:
            threads = [t for t in grid.threads if low <= t <= high]
        for channels in grid.channels:
            if channels <= most:
                for count in threads:
                    for chunk in _chunks(algorithm, protocol, grid):
                        found[Setting(algorithm, protocol, channels, count, chunk)] = (
                            None
                        )
    return tuple(found)


def _chunks(algorithm: str, protocol: str, grid: Grid) -> list[int]:
    grain, limit = CHUNK_GRAIN[protocol], largest_chunk(algorithm, protocol)
    chunks = {int(limit * share) // grain * grain for share in grid.chunk_shares}
    return sorted(chunk for chunk in chunks if chunk >= min(_LEAST_CHUNK, limit))
