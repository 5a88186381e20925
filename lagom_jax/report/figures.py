"""Figures of a report, as plain records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from lagom_jax.plan import CollectiveCut, Interval, StepParts
from lagom_jax.report.memory import StepMemory
from lagom_jax.report.tracks import StepTracks

Origin: TypeAlias = Literal[
    "measured", "calibrated", "estimated", "predicted", "compiler", "data sheet"
]
"""`measured` on the user's own run, `calibrated` on measurements of others, `estimated`
by nobody's measurement, `predicted` from all of these, or stated by the compiler or a
data sheet."""


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """Computation that ran while a collective was under way."""

    what: str
    """The kind of kernel: `matmul`, `attention`, `fusion`, ..."""
    seconds: float
    where: str = ""
    """The named scope of the program that it stands in."""
    slowed_seconds: float = 0.0
    """The part of `seconds` by which the kernels took longer for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective of the step, its figures summed over its executions."""

    name: str
    kind: str
    bytes: int
    """Per execution, on the larger side of the op."""
    element_type: str
    operands: int
    """The number of arrays that the compiler combined into this one launch."""
    group_size: int
    """Devices in a group; source-target pairs of a point-to-point exchange."""
    groups: int
    domains: int
    """Scale-up domains (NVLink or PCIe) that one group spans."""
    executions: float
    seconds: float
    hidden_seconds: float
    exposed_seconds: float
    sync: bool
    """It runs on the compute stream, so nothing can hide it."""
    pipelined: bool
    bound: str
    """The limit of its time: a link's kind, or `latency`."""
    link_use: float
    """The part of that link's peak rate it reaches while it runs, from 0 to 1."""
    hidden_by: tuple[Beside, ...]
    """The computation that it overlapped with, the most first."""
    slowed_seconds: float
    """By which the kernels beside it took longer."""
    independent_seconds: float | None
    """Work per execution, in its own computation, that could run beside it; None where
    nobody looked."""
    verdict: str
    """Hidden or exposed, behind what or why, in a few words."""
    why: str
    """Reason why it is exposed; empty where little of it is."""
    op_name: str
    source: str
    """`file:line` of the user's own code."""
    library: str = ""
    """`file:line` of the library that it was made in; empty without one."""
    sites: int = 1
    """The number of collectives that this row stands for."""


@dataclasses.dataclass(frozen=True, slots=True)
class KindTotal:
    """All collectives of one kind, or all kernels of one kind."""

    kind: str
    count: int
    executions: float
    bytes: float
    seconds: float
    exposed_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class SizeBand:
    """Collectives of one kind whose bytes lie between two powers of four."""

    kind: str
    least_bytes: int
    below_bytes: int
    count: int
    executions: float
    bytes: float
    seconds: float
    exposed_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LinkUse:
    """A kind of link, and what the step does with it."""

    link: str
    """Such as `nvlink` or `network`; `latency` for messages too small for any."""
    count: int
    executions: float
    seconds: float
    """While a collective that it limits is under way."""
    bytes: float
    use: float
    """The part of its peak rate that these reach, averaged over their time, 0 to 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class FigureSource:
    """The origin of one kind of figure."""

    figure: str
    origin: Origin
    source: str
    """In words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report(StepParts):
    """The time of one training step by its parts, on one device of a cluster.

    All times are predicted.
    """

    program: str
    description: str
    """The compiled step in a line; empty where only a dump is known."""
    cluster: str
    devices: int
    wan_seconds: float
    """The part of `communication_seconds` on links between regions."""
    peak_memory_bytes: int | None
    """Device memory at the fullest moment; None where only a dump is known."""
    memory_bytes: int
    """The memory of the cluster's GPU."""
    pricing: str
    """The origin of the prices, in words."""
    collectives: tuple[CollectiveReport, ...]
    """The most exposed first."""
    collective_kinds: tuple[KindTotal, ...]
    kernel_kinds: tuple[KindTotal, ...]
    notes: tuple[str, ...]
    """Remarks that the reader must know to trust the figures."""
    cautions: tuple[str, ...] = ()
    """Reasons why this may be another program than the one that runs."""
    unknown_kernels: tuple[str, ...] = ()
    """Kernels that nothing is known of: their time is left out."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    measured: bool = False
    """True if the prices are the times of a profile as far as it has them."""
    cutting: tuple[CollectiveCut, ...] = ()
    """Places where collectives stand next to matmuls, and what a cut would save."""
    step_interval: Interval | None = None
    """Confidence of `step_seconds`; None where one model alone was asked."""
    exposed_interval: Interval | None = None
    """Confidence of `exposed_seconds`, likewise."""
    contention_interval: Interval | None = None
    """Confidence of `contention_seconds`, likewise."""
    sizes: tuple[SizeBand, ...] = ()
    """Collectives by kind and size."""
    links: tuple[LinkUse, ...] = ()
    """The links between GPUs, the busiest first."""
    memory: StepMemory | None = None
    """Device memory over the step; None where the program has no module."""
    sources: tuple[FigureSource, ...] = ()
    """The origin of each kind of figure."""
    tracks: StepTracks | None = None
    """The step over time; None where it was not asked for."""

    @property
    def hidden_share(self) -> float:
        """The part of communication that computation hides; 1 without any."""
        if not self.communication_seconds:
            return 1.0
        return 1.0 - self.exposed_seconds / self.communication_seconds

    @property
    def wan_excess(self) -> float:
        """Communication between regions over what computation could hide at best.

        Where it is above 1, no setting and no order hides it: so many times less must
        be sent in a step.
        """
        return self.wan_seconds / self.compute_seconds if self.compute_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries and lists, as `to_json` has it."""
        from lagom_jax.report.document import to_document

        return to_document(self)

    def to_pandas(self) -> Any:
        """The collectives as a pandas DataFrame, the most exposed first."""
        from lagom_jax.report.notebook import data_frame

        return data_frame(self.collectives)

    def to_html(self) -> str:
        """The report as a page that needs nothing else."""
        from lagom_jax.report.page import to_html
        from lagom_jax.report.story import Story

        return to_html(Story(self))

    def _repr_html_(self) -> str:
        """The report in a notebook's cell."""
        from lagom_jax.report.notebook import report_to_html

        return report_to_html(self)

    def to_json(self) -> str:
        """The report as JSON text; docs/reference/report.md describes the keys."""
        from lagom_jax.report.document import to_json

        return to_json(self)

    def __str__(self) -> str:
        """The report as a table without colours, 140 columns wide."""
        from lagom_jax.report.text import to_text

        return to_text(self)
