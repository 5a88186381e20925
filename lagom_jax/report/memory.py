"""Device memory over a step, and what holds it at its fullest.

An estimate from the schedule: an array is there from the first instruction that touches
it to the last, and arguments and what is written over them are there all the time.
XLA's own figure, where it is known, is what a device must have: its arrays have fixed
places in one allocation, so that gaps between them count, too.
"""

from __future__ import annotations

import dataclasses

from lagom_jax.cost.recording import LoopTime, Stretch
from lagom_jax.hlo.config import op_name
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.order.buffers import buffers_of
from lagom_jax.program.build import loop_body
from lagom_jax.report.origin import place_of
from lagom_jax.report.tracks import MemoryCurve

_HOLDERS = 40


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryHolder:
    """An array that is there when memory is at its fullest."""

    name: str
    """The instruction that made it, or the argument."""
    kind: str
    """`argument` or `temporary`."""
    shape: str
    where: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class StepMemory:
    """Device memory over a step, estimated from the schedule."""

    estimated_peak_bytes: int
    argument_bytes: int
    """The part of it that arguments take."""
    peak_at_seconds: float
    """The moment at which memory is fullest, from the beginning of the step."""
    holders: tuple[MemoryHolder, ...]
    """Buffers at that moment, the largest first; the smallest are left out."""
    other_bytes: int
    """The sum of those that were left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Holding:
    """The memory that a computation needs of its own."""

    live: tuple[int, ...]
    """Bytes at each place of its sequence, computations that it calls included."""
    peak: int
    """The place where that is most."""
    holders: tuple[MemoryHolder, ...]
    """Its part there."""


def memory_over_step(
    module: Module, step: Stretch
) -> tuple[StepMemory, dict[int, MemoryCurve]]:
    """The memory of a step that was recorded.

    Args:
        module: The module of the step.
        step: The record.

    Returns:
        What there is at the fullest moment; and curves, by `id` of stretches.
    """
    reader = _MemoryReader(module)
    entry = reader.holding(module.entry)
    arguments = [_argument(i) for i in module.entry.instructions.values() if _is(i)]
    given = sum(holder.bytes for holder in arguments)
    curves: dict[int, MemoryCurve] = {}
    peak_at = reader.draw(module.entry, step, given, curves)
    holders = sorted((*arguments, *entry.holders), key=lambda one: -one.bytes)
    kept = holders[:_HOLDERS]
    found = StepMemory(
        given + max(entry.live, default=0),
        given,
        peak_at,
        tuple(kept),
        sum(holder.bytes for holder in holders[_HOLDERS:]),
    )
    return found, curves


def _is(instruction: Instruction) -> bool:
    return instruction.opcode == "parameter"


def _argument(instruction: Instruction) -> MemoryHolder:
    name = op_name(instruction) or instruction.name
    return MemoryHolder(
        name, "argument", _shape(instruction), "", instruction.shape.byte_size
    )


def _shape(instruction: Instruction) -> str:
    shape = instruction.shape
    if shape.type == "tuple":
        return f"{len(shape.leaves)} arrays"
    return f"{shape.type}[{','.join(map(str, shape.dimensions))}]"


class _MemoryReader:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[int, _Holding] = {}

    def holding(self, computation: Computation) -> _Holding:
        found = self._known.get(computation.id)
        if found is None:
            found = self._known[computation.id] = self._read(computation)
        return found

    def _called(self, instruction: Instruction) -> list[_Holding]:
        """Of the computations with a schedule that an instruction runs."""
        if instruction.opcode == "fusion":
            return []
        return [
            self.holding(called)
            for called in self._module.called(instruction)
            if called.sequence is not None
        ]

    def _read(self, computation: Computation) -> _Holding:
        sequence = computation.sequence or ()
        buffers = buffers_of(self._module, computation)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, access in enumerate(buffers.accesses):
            for buffer in access.reads | access.writes:
                if buffer in buffers.sizes:
                    first.setdefault(buffer, place)
                    last[buffer] = place
        for buffer in buffers.results & buffers.sizes.keys():
            first.setdefault(buffer, len(sequence) - 1)
            last[buffer] = len(sequence) - 1
        change = [0] * (len(sequence) + 1)
        for buffer, place in first.items():
            change[place] += buffers.sizes[buffer]
            change[last[buffer] + 1] -= buffers.sizes[buffer]
        live: list[int] = []
        own = 0
        for place, instruction in enumerate(sequence):
            own += change[place]
            within = (max(one.live, default=0) for one in self._called(instruction))
            live.append(own + max(within, default=0))
        if not live:
            return _Holding((), 0, ())
        peak = max(range(len(live)), key=live.__getitem__)
        holders = [
            _temporary(self._module, sequence[place], buffers.sizes[buffer])
            for buffer, place in first.items()
            if place <= peak <= last[buffer]
        ]
        inner = max(
            self._called(sequence[peak]),
            key=lambda one: max(one.live, default=0),
            default=None,
        )
        return _Holding(
            tuple(live), peak, (*holders, *(inner.holders if inner else ()))
        )

    def draw(
        self,
        computation: Computation,
        stretch: Stretch,
        base: int,
        curves: dict[int, MemoryCurve],
    ) -> float:
        """Draws the curve of a stretch, and returns when memory is fullest in it."""
        sequence = computation.sequence or ()
        holding = self.holding(computation)
        begins = _begins(stretch)
        loops = {loop.name: loop for loop in stretch.loops}
        curve: dict[float, int] = {0.0: base + (holding.live[0] if holding.live else 0)}
        now = peak_at = 0.0
        for place, instruction in enumerate(sequence):
            now = max(now, begins.get(instruction.id, now))
            loop = loops.get(instruction.name)
            if loop is not None:
                inside = self._draw_loop(
                    instruction, loop, base, holding, place, curves
                )
                if place == holding.peak:
                    peak_at = loop.begin + inside
                continue
            if place == holding.peak:
                peak_at = now
            # Of several at one moment the most counts.
            curve[now] = max(curve.get(now, 0), base + holding.live[place])
        curves[id(stretch)] = _thinned(curve)
        return peak_at

    def _draw_loop(
        self,
        instruction: Instruction,
        loop: LoopTime,
        base: int,
        holding: _Holding,
        place: int,
        curves: dict[int, MemoryCurve],
    ) -> float:
        body = loop_body(self._module, instruction)
        within = max(
            (max(one.live, default=0) for one in self._called(instruction)), default=0
        )
        outside = base + holding.live[place] - within
        inside = 0.0
        for rounds in loop.rounds:
            for iteration in rounds.iterations:
                if id(iteration) not in curves:
                    inside = self.draw(body, iteration, outside, curves)
        return inside


def _temporary(module: Module, instruction: Instruction, nbytes: int) -> MemoryHolder:
    return MemoryHolder(
        instruction.name,
        "temporary",
        _shape(instruction),
        place_of(instruction, module),
        nbytes,
    )


def _begins(stretch: Stretch) -> dict[int, float]:
    """The moments at which instructions begin, by their ids."""
    found: dict[int, float] = {}
    for piece in stretch.pieces:
        task = piece.task
        if task.instruction is not None and piece.starts and not piece.token:
            found[task.instruction.id] = piece.begin
    for launch in stretch.launches:
        if launch.task.instruction is not None:
            found.setdefault(launch.task.instruction.id, launch.at)
    return found


def _thinned(curve: dict[float, int]) -> MemoryCurve:
    """Only the moments at which something changes."""
    at: list[float] = []
    held: list[int] = []
    for moment in sorted(curve):
        if not held or curve[moment] != held[-1]:
            at.append(moment)
            held.append(curve[moment])
    return MemoryCurve(tuple(at), tuple(held))
