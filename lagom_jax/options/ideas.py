"""XLA options worth trying for one program, and the most that each could save.

Nothing here is folklore: an option is an idea only where the program has what it acts
on, and how much it could give at most is read off the replay. Whether it does give
that, the compiler and another replay have to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.options.combining import COMBINED, Grouping, families, groupings
from lagom_jax.options.memory import SLOP, MemoryRoom
from lagom_jax.program.program import (
    Block,
    Branch,
    Launch,
    Loop,
    Program,
    Run,
    Task,
    nodes_in,
)
from lagom_jax.units import in_bytes
from xla_flags import OptionValue, known

_ON: Final = "COLLECTIVE_PIPELINING_MODE_ON"
# Reduce-scatters inside loops moved with the option for all-reduces, on 0.10.2.
_PIPELINED: Final = {
    "pipelining all-gathers": (
        ("all-gather",),
        ("xla_gpu_enable_pipelined_all_gather",),
    ),
    "pipelining reductions": (
        ("all-reduce", "reduce-scatter"),
        (
            "xla_gpu_enable_pipelined_all_reduce",
            "xla_gpu_enable_pipelined_reduce_scatter",
        ),
    ),
}
_DOUBLE = "xla_gpu_enable_while_loop_double_buffering"
_MERGER = "xla_gpu_dot_merger_threshold_mb"
_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
_HIDING = "xla_gpu_enable_latency_hiding_scheduler"
_UNROLLING = "xla_gpu_enable_while_loop_unrolling"
_LIMITS = (2, 4)
_MOST_TASKS = 10_000
"""Longer programs take long to compile, to search and to order."""
_SHARES = (0.7, 0.97)
_MIB = 1 << 20
_MADE_AGAIN = ".remat"
"""A part of the names of what XLA has computed or sent twice."""
_NOTHING = 5e-4
"""Ideas that could give less than this share of the step are none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Idea:
    """Options that belong together, and why they might help."""

    name: str
    options: Mapping[str, OptionValue]
    why: str
    most_seconds: float
    """No more than this can come of it in a step, by the replay of the program as it
    is; what it changes for other ideas is not counted."""
    keeps_order: bool = True
    """False where reductions may be added up in another order."""
    first: bool = True
    """True if it is tried together with the others at once; if not, only by itself."""
    instead_of: tuple[str, ...] = ()
    """Other options that make no sense beside it."""
    carries_less: bool = False
    """True if collectives themselves take less with it; if not, they are only waited
    for less."""

    @property
    def loops_only(self) -> bool:
        """True if it acts on loops and on nothing else."""
        return all(known()[name].loops_only for name in self.options)

    @property
    def key(self) -> frozenset[tuple[str, OptionValue]]:
        """Its options, hashable; ideas for several programs may have the same."""
        return frozenset(self.options.items())

    def rules_out(self, other: Idea) -> bool:
        """True if the two exclude each other.

        Example:
            >>> one = Idea("a", {"x": 1}, "why", 0.1)
            >>> one.rules_out(Idea("b", {"x": 2}, "why", 0.1)), one.rules_out(one)
            (True, True)
        """
        return bool(
            self.options.keys() & {*other.options, *other.instead_of}
            or other.options.keys() & set(self.instead_of)
        )


def ideas(
    program: Program,
    timeline: Timeline,
    seconds: Callable[[Collective], float],
    *,
    jaxlib: str,
    pinned: Collection[str] = (),
    deterministic: bool = False,
    reorders: bool = False,
    memory: MemoryRoom | None = None,
) -> tuple[Idea, ...]:
    """Ideas for the compiler, those that could save the most first.

    Args:
        program: The program as it is.
        timeline: Its replay.
        seconds: What a collective takes alone, one that the program has or one that
            it could have.
        jaxlib: The version, which decides how options are called.
        pinned: Options that the user has set; they stay as they are.
        deterministic: Leaves out what may change the rounding of sums.
        reorders: Whether the program will be given another order anyway. Then what
            only changes XLA's scheduling is left out, and loops are kept: the order of
            a body can be searched well, that of thousands of instructions cannot.
        memory: Of the program, and what it may take; None where that is not known.

    Example:
        >>> from lagom_jax.cost.timeline import Totals
        >>> empty = Program("p", (), 8)
        >>> ideas(empty, Timeline(Totals(), {}, {}), lambda c: 0.0, jaxlib="0.10.2")
        ()
    """
    seen = _Seen(program, timeline)
    found = [
        *_pipelining(seen),
        *_double_buffering(seen),
        *_dot_merger(seen),
        *_combining(seen, seconds),
        *_splitting(seen),
        *(() if reorders else _unrolling(seen)),
        *(() if reorders and seen.kinds(in_loops=True) else _limits(seen)),
        *_hiding(seen),
        *(_more_memory(seen, memory) if memory is not None else ()),
    ]
    kept: list[Idea] = []
    for idea in found:
        options = dict(_spelled(n, v, jaxlib) for n, v in idea.options.items())
        free = {n: v for n, v in options.items() if n and n not in pinned}
        worth = idea.most_seconds >= _NOTHING * timeline.step_seconds
        if free and worth and (idea.keeps_order or not deterministic):
            kept.append(dataclasses.replace(idea, options=free))
    return tuple(sorted(kept, key=lambda idea: -idea.most_seconds))


def _spelled(name: str, value: OptionValue, jaxlib: str) -> tuple[str, OptionValue]:
    """An option as a version spells it; without a name where the version lacks it."""
    flag = known()[name]
    if flag.is_known_in(jaxlib):
        return name, value
    if not flag.replaced_by:
        return "", value
    newer = known()[flag.replaced_by]
    return newer.name, _ON if newer.type == "enum" and value is True else value


class _Seen:
    """Figures of the replay, in the form in which ideas ask for them."""

    def __init__(self, program: Program, timeline: Timeline) -> None:
        self.program = program
        self.timeline = timeline
        self.in_loops: set[Task] = set(_in_loops(program.body, inside=False))
        self.sites = timeline.collectives()

    def exposed(self, kinds: Collection[str], *, in_loops: bool = False) -> float:
        """Seconds in a step for which computation stands still for some kinds."""
        return sum(
            figures.exposed_seconds
            for site, figures in self.sites.items()
            if site.kind in kinds and (site in self.in_loops or not in_loops)
        )

    def kinds(self, *, in_loops: bool) -> set[str]:
        """The kinds of collective that go through NCCL."""
        return {
            site.kind
            for site in self.sites
            if not site.one_shot_kernel and (site in self.in_loops or not in_loops)
        }


def _in_loops(block: Block, *, inside: bool) -> Iterator[Task]:
    for node in block:
        if isinstance(node, Run | Launch):
            if inside:
                yield node.task
        elif isinstance(node, Loop):
            yield from _in_loops(node.body, inside=inside or node.trips > 1)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _in_loops(arm, inside=inside)


def _pipelining(seen: _Seen) -> Iterator[Idea]:
    for name, (kinds, options) in _PIPELINED.items():
        here = seen.kinds(in_loops=True).intersection(kinds)
        if here:
            yield Idea(
                name,
                dict.fromkeys(options, True),
                f"loops carry {_listed(here)}: one iteration can send what the next "
                "one needs",
                seen.exposed(here, in_loops=True),
            )


def _double_buffering(seen: _Seen) -> Iterator[Idea]:
    kinds = seen.kinds(in_loops=True)
    if kinds:
        copies = sum(
            figures.alone_seconds
            for kernel, figures in seen.timeline.kernels().items()
            if kernel.work.kind == "copy" and kernel in seen.in_loops
        )
        yield Idea(
            "double buffering",
            {_DOUBLE: True},
            "loops carry collectives: a body that is written twice has more to hide "
            "them behind, and needs no copies between iterations",
            seen.exposed(kinds, in_loops=True) + copies,
        )


def _unrolling(seen: _Seen) -> Iterator[Idea]:
    kinds = seen.kinds(in_loops=True)
    tasks = sum(times for _, times, _ in seen.program.tasks())
    if kinds and tasks <= _MOST_TASKS:
        yield Idea(
            "unrolling",
            {_UNROLLING: "WHILE_LOOP_UNROLLING_FULL_UNROLL"},
            "without loops every collective can start as early as its operands allow",
            seen.exposed(kinds, in_loops=True),
            first=False,
            instead_of=(_DOUBLE,),
        )


def _dot_merger(seen: _Seen) -> Iterator[Idea]:
    matmuls = sum(
        figures.executions
        for kernel, figures in seen.timeline.kernels().items()
        if kernel.work.kind == "matmul"
    )
    gathered = seen.exposed(("all-gather",))
    if matmuls > 1 and gathered:
        yield Idea(
            "no merging of matmuls",
            {_MERGER: 0},
            "a merged matmul waits for all of its weights, a single one for its own",
            gathered,
            # Another shape may get another kernel.
            keeps_order=False,
        )


def _combining(seen: _Seen, seconds: Callable[[Collective], float]) -> Iterator[Idea]:
    for kind, option in COMBINED.items():
        made = groupings(families(seen.program.body, kind), seconds)
        better = [g for g in made if g.saved_seconds > 0.0]
        if not better:
            continue
        best = max(grouping.saved_seconds for grouping in better)
        # All that a computation has in one leaves nothing to hide the first behind:
        # the smallest threshold that brings most of it comes first.
        most, all_but = (
            next(g for g in better if g.saved_seconds >= share * best)
            for share in _SHARES
        )
        more = all_but.saved_seconds - most.saved_seconds
        worth = more > _NOTHING * seen.timeline.step_seconds
        for number, grouping in enumerate((most, all_but) if worth else (most,)):
            above = (g.threshold for g in made if g.threshold > grouping.threshold)
            threshold = _rounded(grouping.threshold, min(above, default=None))
            # What is gathered is mostly there from the start. What is reduced is made
            # on the way: together, the first waits for the last.
            together = kind == "all-gather" and number == 0
            yield _combined(kind, option, grouping, threshold, first=together)


def _combined(
    kind: str, option: str, chosen: Grouping, threshold: int, *, first: bool
) -> Idea:
    return Idea(
        f"combining {kind}s to {_in_words(threshold)}",
        {option: threshold},
        f"fewer and larger {kind}s, an estimated {chosen.launches} a step: small ones "
        "spend their time on latency",
        chosen.saved_seconds,
        keeps_order=kind == "all-gather",
        first=first,
        carries_less=True,
    )


def _rounded(nbytes: int, above: int | None) -> int:
    """Whole MiB, for people, unless that would make another grouping."""
    mib = -(-nbytes // _MIB) * _MIB
    return mib if above is None or mib < above else nbytes


def _in_words(nbytes: int) -> str:
    mib, rest = divmod(nbytes, _MIB)
    return f"{nbytes} bytes" if rest else f"{mib} MiB"


def _splitting(seen: _Seen) -> Iterator[Idea]:
    for kind, option in COMBINED.items():
        joined = sum(
            figures.exposed_seconds
            for site, figures in seen.sites.items()
            if site.kind == kind and site.operand_count > 1
        )
        if joined:
            yield Idea(
                f"no combining of {kind}s",
                {option: 0},
                f"computation stands still for combined {kind}s: alone, the first "
                "of them could start earlier",
                joined,
                keeps_order=kind == "all-gather",
                first=False,
            )


def _limits(seen: _Seen) -> Iterator[Idea]:
    """A limit matters only where several collectives are launched and waited for."""
    asynchronous = {
        node.task
        for node in nodes_in(seen.program.body)
        if isinstance(node, Launch) and isinstance(node.task, Collective)
    }
    exposed = sum(
        figures.exposed_seconds
        for site, figures in seen.sites.items()
        if site in asynchronous
    )
    if len(asynchronous) > 1 and exposed:
        for limit in _LIMITS:
            yield Idea(
                f"{limit} collectives under way",
                {_LIMIT: limit},
                "collectives that could start wait for others to end",
                exposed,
                first=False,
            )


def _hiding(seen: _Seen) -> Iterator[Idea]:
    """On GPUs that XLA has no estimates for, its scheduler is off by itself."""
    hidden = sum(figures.hidden_seconds for figures in seen.sites.values())
    exposed = seen.exposed(seen.kinds(in_loops=False))
    if exposed > 0.0 and hidden < 0.1 * exposed:
        yield Idea(
            "latency-hiding scheduler",
            {_HIDING: True},
            "next to nothing is hidden: XLA's latency-hiding scheduler seems to be off",
            exposed,
        )


def _more_memory(seen: _Seen, memory: MemoryRoom) -> Iterator[Idea]:
    """More memory for the scheduler where XLA's limit binds: it hides more."""
    percent = memory.percent
    if percent is None:
        return
    again = sum(
        figures.alone_seconds
        for task, figures in seen.timeline.tasks.items()
        if _MADE_AGAIN in task.name
    )
    if not (again or memory.is_near_limit):
        return
    yield Idea(
        f"memory up to {in_bytes(memory.limit_bytes)} for the scheduler",
        {SLOP: percent},
        f"the step takes {in_bytes(memory.peak_bytes)}, and XLA's scheduler keeps "
        f"below {in_bytes(memory.scheduler_limit)}: it hides less for that, or has "
        "results made again",
        seen.exposed(seen.kinds(in_loops=False)) + again,
        carries_less=again > 0.0,
    )


def _listed(kinds: Collection[str]) -> str:
    return " and ".join(f"{kind}s" for kind in sorted(kinds))
