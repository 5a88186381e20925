"""Results of a search for one program: settings, predicted times, and reasons."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.span import span_of
from lagom_jax.errors import LagomError
from lagom_jax.plan import Call, Cap, PlanControls, Setting, StepParts, Uncertainty
from lagom_jax.plan.interval import times_as_fast
from lagom_jax.program.program import Program
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.controls import FINE, Controls, Grid
from lagom_jax.settings.doubt import Doubt, EnsembleMember
from lagom_jax.settings.exhaustive import Exhaustive, TooManyError
from lagom_jax.settings.floor import floor_seconds, floors
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Default, Found, Policy, replaced, scenes_of
from lagom_jax.settings.reasons import Change, reason
from lagom_jax.settings.space import Choice, Group, space_of
from lagom_jax.settings.stage import Stage

FORMAT_VERSION: Final = 2
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "nccl": Default,
    "autoccl": AutoCcl,
    "lagom": Lagom,
    "exhaustive": Exhaustive,
}
"""The ways to choose, by name."""


class PolicyError(LagomError, ValueError):
    """No such policy."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTuning:
    """The setting of a group of collectives, with the times before and after."""

    name: str
    kind: str
    bytes: int
    """Of its largest collective."""
    ranks: int
    domains: int
    sites: tuple[str, ...]
    """The collectives, as the program names them."""
    calls: tuple[Call, ...]
    """Their calls, as NCCL sees them; empty where a cap binds them all."""
    usual: Setting
    """NCCL's own choice for the largest."""
    chosen: Setting | Cap | None
    """The chosen setting or cap; None where it is left alone."""
    communication_seconds: float
    """Its collectives' time in a step as it was."""
    communication_change: float
    computation_change: float
    """Of the kernels in its windows; all three of these as if the others' settings
    had been chosen already."""
    step_change: float
    """The change of the step's time: negative, or 0 where it is left alone."""
    most_to_win: float
    """No setting of it could take more than this from the step as chosen."""
    price: float | None
    """`H` when its last step was accepted: seconds of computation for each second of
    communication; None where nothing was bought."""
    region: str
    """`hidden`, `exposed` or `balanced`; empty for other policies than Lagom."""
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyResult:
    """The predicted step time under one policy."""

    policy: str
    step_seconds: float
    speedup_vs_nccl: float
    evaluations: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tuning:
    """A policy's settings for one program, and the times that the model predicts.

    All times are predicted.
    """

    program: str
    description: str
    cluster: str
    devices: int
    controls: PlanControls
    policy: str
    pricing: str
    before: StepParts
    """With everything left to NCCL."""
    after: StepParts
    floor_seconds: float
    """No candidates of these controls make this schedule shorter: every collective at
    its fastest, and nothing in anything's way."""
    groups: tuple[GroupTuning, ...]
    """Those that give the most first."""
    fixed: tuple[tuple[str, str], ...]
    """Collectives that cannot be set, and why."""
    policies: tuple[PolicyResult, ...]
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    uncertainty: Uncertainty | None = None
    """The intervals of both times; None where one model alone was asked."""

    @property
    def speedup(self) -> float:
        """Time with NCCL's own choices, over the time with these."""
        return times_as_fast(self.before.step_seconds, self.after.step_seconds)

    @property
    def share_of_bound(self) -> float:
        """The part of what settings could give that was taken.

        At most 1, and below 0 where the step became longer, as AutoCCL's may.
        """
        could = self.before.step_seconds - self.floor_seconds
        took = self.before.step_seconds - self.after.step_seconds
        return took / could if could > 0 else 0.0

    def __str__(self) -> str:
        """A line for the step, and one for each group that gets a setting."""
        before, after = self.before.step_seconds, self.after.step_seconds
        head = (
            f"{self.program} on {self.cluster}: {1e3 * before:.4g} ms -> "
            f"{1e3 * after:.4g} ms, {self.speedup:.3f} times as fast"
        )
        told = (
            f"  {group.name}: {group.usual} -> {group.chosen}: {group.why}"
            for group in self.groups
            if group.chosen is not None
        )
        return "\n".join((head, *told))

    def to_json(self) -> str:
        """Indented JSON text, the same text for the same tuning."""
        document = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(document, indent=2, allow_nan=False)


def policy_named(name: str) -> Policy:
    """A policy by its name.

    Raises:
        PolicyError: There is none.

    Example:
        >>> policy_named("lagom").name
        'lagom'
    """
    if name not in POLICIES:
        raise PolicyError(f"no policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name]()


def tune_program(
    program: Program,
    cluster: Cluster,
    model: CostModel,
    *,
    controls: Controls,
    policies: Sequence[Policy] = (Lagom(),),
    grid: Grid = FINE,
    correct: Callable[[Prices], Prices] = lambda prices: prices,
    members: Sequence[EnsembleMember] = (),
    pricing: str = "",
    name: str = "",
    description: str = "",
    versions: tuple[tuple[str, str], ...] = (),
    notes: tuple[str, ...] = (),
) -> Tuning:
    """Chooses settings for a program.

    Args:
        program: The step.
        cluster: What it runs on.
        model: Prices and contention.
        controls: The parts of a setting that can be set, and how finely.
        policies: How to choose; the first decides, the others are compared with it.
        grid: Which values are tried.
        correct: What the user's own measurements make of the model's prices.
        members: Other models that may hold as well: they say how sure the times are,
            and settings that they do not find worth it are left to NCCL.
        pricing: Where the prices come from; by default what the model says.
        name: What to call the program.
        description: What it is, in a line.
        versions: Of the compiler that made it.
        notes: What else the reader must know.

    Example:
        >>> from lagom_jax.settings.controls import named
        >>> h100, empty = Cluster.parse("h100:1x8"), Program("p", (), 8)
        >>> tune_program(
        ...     empty, h100, CostModel.of(h100), controls=named("tuner")).speedup
        1.0
    """
    space = space_of(
        program, cluster, controls, grid, model.constants.nccl, model.carried
    )
    stage = Stage(program, space, model, correct)
    found, doubt = policies[0].choose(stage), Doubt(stage, members)
    if isinstance(policies[0], Lagom):
        found = doubt.decided(found)
    return describe(
        stage,
        found,
        cluster,
        controls=controls,
        policies=policies,
        uncertainty=doubt.uncertainty(found.choice) if members else None,
        pricing=pricing or model.source,
        name=name or program.name,
        description=description,
        versions=versions,
        notes=notes,
    )


def describe(
    stage: Stage,
    found: Found,
    cluster: Cluster,
    *,
    controls: Controls,
    policies: Sequence[Policy],
    pricing: str,
    name: str,
    uncertainty: Uncertainty | None = None,
    description: str = "",
    versions: tuple[tuple[str, str], ...] = (),
    notes: tuple[str, ...] = (),
) -> Tuning:
    """The record of a choice that was made.

    Args:
        stage: The program that it was made for.
        found: The choice.
        cluster: What the program runs on.
        controls: As `tune_program` takes them; so too what follows.
        policies: The first has decided.
        pricing: Where the prices come from.
        name: What to call the program.
        uncertainty: Of the times.
        description: What it is.
        versions: Of the compiler.
        notes: What else the reader must know.
    """
    before = stage.score(stage.untouched).totals
    chosen = [(policies[0], found)]
    unanswered: list[str] = []
    for policy in policies[1:]:
        try:
            chosen.append((policy, policy.choose(stage)))
        except TooManyError as error:
            # What the first policy decided stands without the comparison.
            unanswered.append(f"{policy.name} has no answer: {error}")
    after = [stage.score(found.choice).totals for _, found in chosen]
    least, program = floors(stage), stage.program
    return Tuning(
        program=name,
        description=description,
        cluster=cluster.name,
        devices=program.devices,
        controls=controls.stated(),
        policy=policies[0].name,
        pricing=pricing,
        before=before.parts(),
        after=after[0].parts(),
        floor_seconds=floor_seconds(stage, least),
        groups=_groups(stage, cluster, found, least),
        fixed=tuple((site.name, why) for site, why in stage.space.fixed),
        policies=tuple(
            PolicyResult(
                policy.name,
                totals.step_seconds,
                times_as_fast(before.step_seconds, totals.step_seconds),
                found.evaluations,
            )
            for (policy, found), totals in zip(chosen, after, strict=True)
        ),
        versions=versions,
        notes=(*notes, *_notes(program), *unanswered),
        uncertainty=uncertainty,
    )


def _notes(program: Program) -> list[str]:
    return [
        f"how often the loop {name} runs is not known; it is counted once"
        for name in program.unknown_loops()
    ]


def _groups(
    stage: Stage, cluster: Cluster, found: Found, least: tuple[float, ...]
) -> tuple[GroupTuning, ...]:
    numbers = range(len(stage.space.groups))
    tuned = [_group(stage, cluster, number, found, least) for number in numbers]
    return tuple(
        sorted(tuned, key=lambda g: (g.step_change, -g.communication_seconds, g.name))
    )


def _group(
    stage: Stage,
    cluster: Cluster,
    number: int,
    found: Found,
    least: tuple[float, ...],
) -> GroupTuning:
    group: Group = stage.space.groups[number]
    candidate = group.candidates[found.choice[number]]
    scenes = scenes_of(stage, (number,))
    without: Choice = replaced(found.choice, number, 0)
    one, other = stage.score(without, scenes), stage.score(found.choice, scenes)
    own = one.own_seconds.get(number, 0.0)
    floor = sum(stage.scenes[scene].times * least[scene] for scene in scenes)
    largest = max(range(len(group.sites)), key=lambda i: group.sites[i].bytes)
    span = span_of(group.sites[largest].groups, cluster)
    change = Change(
        communication=other.own_seconds.get(number, 0.0) - own,
        computation=other.totals.compute_seconds - one.totals.compute_seconds,
        step=other.step_seconds - one.step_seconds,
        most_to_win=max(0.0, other.step_seconds - floor),
        exposed=one.totals.exposed_seconds,
        contention=one.totals.contention_seconds,
    )
    prices = [move.price for move in found.moves if move.group == number]
    region = found.regions.get(number, "")
    return GroupTuning(
        name=group.name,
        kind=group.sites[largest].kind,
        bytes=group.sites[largest].bytes,
        ranks=span.size,
        domains=span.domains,
        sites=tuple(site.name for site in group.sites),
        calls=group.calls,
        usual=group.usual[largest],
        chosen=candidate,
        communication_seconds=own,
        communication_change=change.communication,
        computation_change=change.computation,
        step_change=change.step,
        most_to_win=change.most_to_win,
        price=prices[-1] if prices and candidate is not None else None,
        region=region,
        why=reason(
            change,
            region,
            changed=candidate is not None,
            drowned=None if candidate is not None else found.drowned.get(number),
        ),
    )
