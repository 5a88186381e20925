"""A plan: the options and settings chosen for a step, their gain, and the reasons."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, TypeAlias

from lagom_jax.errors import PlanError
from lagom_jax.plan.evidence import COSTS, ORDER, Evidence, check_allowed
from lagom_jax.plan.interval import times_as_fast
from lagom_jax.plan.notebook import ShownPlan
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.plan.outside import Beyond, xla_flags_text
from lagom_jax.plan.pinned import Pinned
from lagom_jax.plan.process_needs import NOTHING_NEEDED, Needs, ProcessVariable
from lagom_jax.plan.rewrite import CollectiveCut, Rewrite
from lagom_jax.plan.setting import REDUCING, Call, Cap, Setting
from lagom_jax.plan.transport import Refusal
from xla_flags import OptionValue, check_planned

COLLECTIVE_CAP: Final = "xla_gpu_nccl_collective_max_nchannels"
POINT_TO_POINT_CAP: Final = "xla_gpu_nccl_p2p_max_nchannels"
_SUMS = ("all-reduce", "reduce-scatter")

Apart: TypeAlias = Literal["nothing", "sizes", "places"]
"""Collectives that can have different settings: none, so that there is one choice for
all of a step; those whose calls differ in function, ranks, domains or bytes; or all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lever:
    """One thing that is asked of the compiler.

    Example:
        >>> Lever("order", True, "why", True, "", None, None, True)
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: lever order: its value stands in the plan's order,
        not here
    """

    name: str
    """A compiler option, or `order`: another order than XLA's scheduler chose."""
    value: OptionValue | None
    """None for `fdo_profile` and `order`, whose values are the plan's own."""
    why: str
    """The reason, in words."""
    accepted: bool
    """True if the compiler took it; a refused one is not part of the options."""
    changed: str
    """The change of the program, in words; empty where there is none."""
    step_change: float | None
    """Seconds that it adds to the step beside all the others, predicted; negative
    where it gains, None where nobody asked for it alone."""
    peak_change: int | None
    """Bytes that it adds to the peak of device memory, likewise."""
    keeps_order: bool
    """False where it may change the order of reductions, and so their rounding."""

    def __post_init__(self) -> None:
        """Checks that the value is where it belongs."""
        if self.name in (COSTS, ORDER):
            if self.value is not None:
                home = "costs" if self.name == COSTS else "order"
                raise PlanError(
                    f"lever {self.name}: its value stands in the plan's {home}, not "
                    "here"
                )
        elif self.value is None:
            raise PlanError(f"lever {self.name}: it has no value")
        else:
            check_allowed(check_planned, self.name, self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class SiteSetting:
    """The setting that collectives have in common.

    Example:
        >>> usual = Setting("p2p", "simple", 32, 512, 524288)
        >>> SiteSetting("all-to-all", 1 << 20, 8, 1, (), ("all-to-all.1",), usual,
        ...             Cap(8), "why").keeps_order
        True
    """

    kind: str
    bytes: int
    """Of its largest collective."""
    ranks: int
    domains: int
    calls: tuple[Call, ...]
    """NCCL's calls for them; empty where a cap binds them all."""
    sites: tuple[str, ...]
    """The collectives, as the program names them."""
    usual: Setting
    """NCCL's own choice for the largest."""
    setting: Setting | Cap
    why: str

    @property
    def keeps_order(self) -> bool:
        """False where sums may be added up in another order than with NCCL's own."""
        return self.kind not in _SUMS or self.setting == self.usual


@dataclasses.dataclass(frozen=True, slots=True)
class PlanControls:
    """The means by which NCCL can be given settings.

    Example:
        >>> print(PlanControls("tuner", "sizes", "a tuner plugin on a stock NCCL"))
        tuner: a tuner plugin on a stock NCCL
    """

    name: str
    tells_apart: Apart
    meaning: str
    """In words."""

    def __str__(self) -> str:
        """The name and its meaning."""
        return f"{self.name}: {self.meaning}"


@dataclasses.dataclass(frozen=True, slots=True)
class HoldsFor:
    """The step, cluster and versions that a plan was made for.

    `lagom_jax.plan.check` compares them with those in use.

    Example:
        >>> HoldsFor("step", "", "", "h100:1x8", 8, (("jax", "0.10.2"),), ()).version(
        ...     "jax")
        '0.10.2'
    """

    program: str
    """The step's name."""
    fingerprint: str
    """`LoweredStep.fingerprint`: of the StableHLO without debug information."""
    schedule: str
    """The fingerprint of XLA's schedule that the order was made for; empty without."""
    cluster: str
    devices: int
    versions: tuple[tuple[str, str], ...]
    """Of jax, jaxlib, the plugin and the other parts of the compiler."""
    pinned: tuple[Pinned, ...]
    """The user's own settings."""

    def version(self, package: str) -> str | None:
        """The version of a distribution; None where it is not known."""
        return dict(self.versions).get(package)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan(ShownPlan):
    """A decision that can be kept, read, compared and replayed."""

    holds_for: HoldsFor
    levers: tuple[Lever, ...]
    costs: str | None
    """The text of the compiler option `fdo_profile`."""
    order: ScheduleEdit | None
    """Another order of instructions."""
    settings: tuple[SiteSetting, ...]
    controls: PlanControls
    evidence: Evidence
    pricing: str
    """The origin of the prices."""
    notes: tuple[str, ...] = ()
    variables: tuple[ProcessVariable, ...] = ()
    """Of the process, to be set before its first communicator."""
    needs: Needs = NOTHING_NEEDED
    refusals: tuple[Refusal, ...] = ()
    """Transports that some collectives cannot have, and why."""
    rewrite: Rewrite | None = None
    """The change of the step's own program that the rest of the plan is for."""
    cuts: tuple[CollectiveCut, ...] = ()
    """Collectives that a cut would still make shorter, the best first."""

    def __post_init__(self) -> None:
        """Checks that the parts belong together."""
        names = [lever.name for lever in self.levers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise PlanError(f"levers: {min(twice)} is there twice")
        accepted = {lever.name for lever in self.levers if lever.accepted}
        for lever, part, value in (
            (COSTS, "costs", self.costs),
            (ORDER, "order", self.order),
        ):
            if (lever in accepted) != (value is not None):
                missing = f"no accepted lever {lever}" if lever not in accepted else ""
                raise PlanError(
                    f"{part}: "
                    + (f"there are some, but {missing}" if missing else "missing")
                )
        schedule = self.holds_for.schedule
        if self.order is not None and self.order.fingerprint != schedule:
            raise PlanError(
                "holds_for.schedule: not the schedule that the order is for"
            )
        self._caps()

    def compiler_options(self) -> dict[str, OptionValue]:
        """The `compiler_options` for jax: accepted levers, costs, and caps.

        The order is not among them: no option can say it.
        """
        options: dict[str, OptionValue] = {}
        for lever in self.levers:
            if not lever.accepted:
                continue
            if lever.name == COSTS and self.costs is not None:
                options[COSTS] = self.costs.encode()
            elif lever.value is not None:
                options[lever.name] = lever.value
        return options | self._caps()

    def environment(self) -> dict[str, str]:
        """The environment variables that carry the plan as far as variables can.

        `beyond_environment` says what else there is.
        """
        text, _ = self._xla_flags()
        flags = {"XLA_FLAGS": text} if text else {}
        return flags | {one.name: one.value for one in self.variables}

    def beyond_environment(self) -> tuple[Beyond, ...]:
        """Parts that no environment variable can carry, and the means that can."""
        _, beyond = self._xla_flags()
        found = list(beyond)
        if self.costs is not None:
            found.append(
                Beyond(
                    COSTS,
                    "a profile: only compiler_options take its text",
                    "compiler options",
                )
            )
        if self.order is not None:
            found.append(
                Beyond(
                    ORDER,
                    "an order: only the process that compiles can apply it",
                    "compiling process",
                )
            )
        found.extend(
            Beyond(
                f"{setting.kind} of {setting.bytes} bytes over {setting.ranks} ranks",
                f"{setting.setting}: a tuner plugin tells NCCL",
                "tuner plugin",
            )
            for setting in self.settings
            if isinstance(setting.setting, Setting)
        )
        return tuple(found)

    def _xla_flags(self) -> tuple[str, tuple[Beyond, ...]]:
        options = self.compiler_options()
        options.pop(COSTS, None)
        return xla_flags_text(options, self.holds_for.version("jaxlib"))

    def _caps(self) -> dict[str, OptionValue]:
        """XLA's options for the caps among the settings."""
        stated = {lever.name: lever.value for lever in self.levers if lever.accepted}
        caps: dict[str, OptionValue] = {}
        for place, setting in enumerate(self.settings):
            if not isinstance(cap := setting.setting, Cap):
                continue
            name = COLLECTIVE_CAP if setting.kind in REDUCING else POINT_TO_POINT_CAP
            other = caps.get(name, stated.get(name, cap.channels))
            if other != cap.channels:
                raise PlanError(
                    f"settings[{place}].setting: {cap}, but {name} is "
                    f"{other} elsewhere, and a process has one"
                )
            caps[name] = cap.channels
        return caps

    @property
    def deterministic(self) -> bool:
        """True if all options of the plan keep the order of reductions.

        NCCL's settings may change the order of its own: `SiteSetting.keeps_order`.
        """
        return all(lever.keeps_order for lever in self.levers if lever.accepted)

    @property
    def speedup(self) -> float:
        """Time with XLA's and NCCL's own choices, over the time with the plan."""
        evidence = self.evidence
        return times_as_fast(evidence.default.step_seconds, evidence.tuned.step_seconds)
