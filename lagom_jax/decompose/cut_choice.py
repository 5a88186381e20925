"""The choice of the dimension that a program is cut along, and of what gains by it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax

from lagom_jax.decompose.flat_program import (
    Classes,
    FlatProgram,
    Node,
    Step,
    refuse_mixing,
)
from lagom_jax.decompose.form import DecomposeError, Form, cut_evenly
from lagom_jax.decompose.named_sites import NamedForms, NamedLines
from lagom_jax.decompose.shard_slices import joined_shards, slice_of_shards
from lagom_jax.decompose.sites import (
    COMMUNICATING,
    CommunicatedMatmul,
    LeftSite,
    kind_of,
)
from lagom_jax.plan.rewrite import SiteRefusal

_SERVES = 0.25
"""The share of the bytes that can be cut at all, which a dimension has to serve."""


@dataclasses.dataclass(slots=True)
class Slicing:
    """A cut that was asked for, and what became of it.

    Attributes:
        slices: Parts.
        asked: Chooses sites.
        whole_sums: Whether sums over the cut dimension are made whole; otherwise over
            each slice, and then added.
        local: Whether arrays are shards of one device. Elsewhere slices are taken from
            every shard, so that none has to move.
        loops: Whether only bodies of loops are cut, each whole, along the batch of what
            they carry.
        forms: The form that each collective of the function's own and the matmuls next
            to it are to have, None for as they are; in place of slices of everything.
        strict: Whether a named place that cannot have its form is an error.
        tells: Whether a place that cannot is worth a line of the log.
        cut: The sites that were cut.
        seen: All sites, for messages.
        left: The sites that were to have a form, and cannot.
        waiting: The gathers that no matmul has asked for yet.
    """

    slices: int
    asked: Callable[[CommunicatedMatmul], bool]
    whole_sums: bool = True
    local: bool = False
    loops: bool = False
    forms: Callable[[CommunicatedMatmul], Form | None] | None = None
    cut: list[CommunicatedMatmul] = dataclasses.field(default_factory=list)
    seen: list[CommunicatedMatmul] = dataclasses.field(default_factory=list)
    left: list[LeftSite] = dataclasses.field(default_factory=list)
    strict: bool = False
    tells: bool = False
    waiting: dict[Step, Form] = dataclasses.field(default_factory=dict)

    def refusals(self) -> tuple[SiteRefusal, ...]:
        """Forms that were asked for and cannot be had, each once."""
        if isinstance(self.forms, NamedForms):
            return tuple(dict.fromkeys(self.forms.refusals(self.cut, self.left)))
        if isinstance(self.asked, NamedLines) and self.slices > 1:
            form = Form("chunks", slices=self.slices)
            return tuple(self.asked.refusals(form, self.cut, self.seen))
        had = {(site.line, kind_of(site)) for site in self.cut}
        found = (
            SiteRefusal(*place, one.form, one.why, one.at, place in had)
            for one in self.left
            for place in ((one.site.line, kind_of(one.site)),)
        )
        return tuple(dict.fromkeys(found))

    def nothing(self) -> str:
        """A message for those who asked for what is not there."""
        if self.forms is not None:
            return (
                "no ring can be made, and no chunks: the function has no all-gather "
                "before a matmul, and no matmul before a reduce-scatter, of its own, "
                "over one mesh axis (in jax.shard_map, tiled), and none of its matmuls "
                "outside of that, whose collectives are the partitioner's, or none was "
                f"chosen{self.there()}"
            )
        if self.loops:
            return (
                "there is no loop to run on half batches: the function has no "
                "jax.lax.scan with matmuls in its body, that carries a batch; cut the "
                "layers themselves with decompose.half_batches"
            )
        if not self.seen:
            return (
                "there is nothing to cut: the function has no matmul whose operands or "
                "results are communicated"
            )
        return (
            f"nothing could be cut in {self.slices} slices: none of the sites was "
            "chosen, or none has a dimension of that many indices that nothing sums. "
            f"Choose others (sites), or other slices{self.there()}"
        )

    def there(self) -> str:
        """A few of the sites, as the end of a message."""
        listed = dict.fromkeys(f"{site.kind} at {site.line}" for site in self.seen)
        return f"; there are: {', '.join([*listed][:8])}" if listed else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A dimension in slices.

    Attributes:
        classes: The program's dimensions.
        chosen: The class that is cut.
        unit: The size that all its dimensions are multiples of.
        parts: Starts and sizes, in that unit.
        local: As `Slicing` has it.
        places: The steps that run in slices; the others could, but gain nothing.
        whole: The sites that were not chosen, which run as they are.
    """

    classes: Classes
    chosen: Node
    unit: int
    parts: tuple[tuple[int, int], ...]
    local: bool
    places: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()

    def take(self, x: Any, d: int, part: int) -> Any:
        """One slice."""
        start, size = self.parts[part]
        times = x.shape[d] // self.unit
        if self.local:
            return lax.slice_in_dim(x, start * times, (start + size) * times, axis=d)
        return slice_of_shards(x, d, (part, len(self.parts)), times)

    def join(self, pieces: Sequence[Any], d: int) -> Any:
        """All slices, as they were."""
        if self.local:
            return lax.concatenate(pieces, d)
        times = len(pieces) * pieces[0].shape[d] // self.unit
        return joined_shards(pieces, d, times)

    def dimension(self, number: int) -> int | None:
        """The dimension of a value that is cut."""
        return self.classes.dimension(number, self.chosen)


def could_be(step: Step, cut: Cut, place: int) -> dict[int, int] | None:
    """The dimension of each value that a step could be cut along; None if it cannot."""
    if place in cut.whole:
        return None
    at: dict[int, int] = {}
    for group in cut.classes.groups[place]:
        if group and cut.classes.of(group[0]) == cut.chosen:
            at.update(group)
    if not step.outputs or any(cut.dimension(n) is None for n in step.outputs):
        return None
    return at if all(number in at for number in step.outputs) else None


def is_sum(step: Step, cut: Cut) -> bool:
    """True for a matmul or a sum over the cut dimension of what it takes."""
    params = step.equation.params
    if step.equation.primitive.name == "reduce_sum":
        return cut.dimension(step.inputs[0]) in params["axes"]
    if step.equation.primitive.name != "dot_general":
        return False
    (left, right), _ = params["dimension_numbers"]
    one, other = (cut.dimension(number) for number in step.inputs)
    return (one, other) in zip(left, right, strict=True)


def is_carried(cut: Cut, one: int, other: int) -> bool:
    """True if a loop can keep a value in slices from round to round."""
    return cut.dimension(one) is not None and cut.dimension(one) == cut.dimension(other)


def choose(
    program: FlatProgram, slicing: Slicing, carry: Mapping[int, int] | None = None
) -> Cut | None:
    """The dimension along which most of what is communicated can be cut.

    Args:
        program: What is run.
        slicing: What was asked for.
        carry: Of a loop's body: the inputs that are the outputs of the round before.
    """
    kinds = {step.equation.primitive.name for step in program.steps}
    if slicing.loops:
        return _whole_body(program, slicing, carry) if "dot_general" in kinds else None
    if slicing.forms or slicing.slices == 1 or "dot_general" not in kinds:
        return None
    wanted = kinds & COMMUNICATING if slicing.local else {"dot_general"}
    places = [
        place
        for place, step in enumerate(program.steps)
        if step.equation.primitive.name in wanted
    ]
    sites = {place: program.steps[place].site for place in places}
    slicing.seen += sites.values()
    sites = {place: site for place, site in sites.items() if slicing.asked(site)}
    whole = frozenset(places).difference(sites)
    if not sites:
        return None
    classes = Classes(program)
    worth: dict[Node, int] = {}
    for place, site in sites.items():
        mine = {classes.of(group[0]) for group in classes.groups[place] if group}
        for one in mine:
            worth[one] = worth.get(one, 0) + site.bytes
    cuts = [_cut_of(program, classes, chosen, slicing, whole) for chosen in worth]
    # Of those that serve much of what is communicated, the one along which most can
    # run: a batch goes through a whole layer, columns end at the next norm.
    most = max(worth.values(), default=0)
    serving = [cut for cut in cuts if cut and worth[cut.chosen] >= _SERVES * most]
    for cut in sorted(serving, key=lambda cut: -_bytes_along(program, cut)):
        done = {p for p in sites if could_be(program.steps[p], cut, p)}
        ready = [n for n, m in (carry or {}).items() if is_carried(cut, n, m)]
        able = {p for p, s in enumerate(program.steps) if could_be(s, cut, p)}
        # What is summed slice by slice need not be put together, and the more there is
        # in slices, the more there is to hide one's collectives behind.
        places = frozenset(able)
        if slicing.whole_sums:
            places = _worth_it(program, cut, done, ready)
        kinds = {program.steps[p].equation.primitive.name for p in places}
        if done and "dot_general" in kinds:
            slicing.cut += [sites[place] for place in done]
            return dataclasses.replace(cut, places=places)
    return None


def _whole_body(
    program: FlatProgram, slicing: Slicing, carry: Mapping[int, int] | None
) -> Cut | None:
    """The batch of what a loop carries, once nothing in its body mixes examples."""
    avals = program.avals
    batches = [number for number in carry or () if len(avals[number].shape) > 1]
    if not batches:
        return None
    # Of what is carried, that is the first dimension of the largest.
    largest = max(batches, key=lambda n: math.prod(avals[n].shape))
    classes = Classes(program, summed=True)
    cut = _cut_of(program, classes, classes.of((largest, 0)), slicing)
    if cut is None:
        batch = avals[largest].shape[0]
        raise DecomposeError(
            f"a batch of {batch} cannot be cut in {slicing.slices} equal slices: take "
            "a number that divides it"
        )
    places = {p for p, s in enumerate(program.steps) if could_be(s, cut, p)}
    examples = {n for n in range(len(avals)) if cut.dimension(n) is not None}
    summed = set[int]()
    for place, step in enumerate(program.steps):
        late = any(number in summed for number in step.inputs)
        if place in places and late:
            refuse_mixing(step)
        if place not in places and any(number in examples for number in step.inputs):
            if not is_sum(step, cut):
                refuse_mixing(step)
            late = True
        if late:
            summed.update(step.outputs)
    slicing.cut += [
        step.site
        for place, step in enumerate(program.steps)
        if place in places and step.equation.primitive.name == "dot_general"
    ]
    return dataclasses.replace(cut, places=frozenset(places))


def _bytes_along(program: FlatProgram, cut: Cut) -> int:
    """Bytes of all results that could be made in slices."""
    return sum(
        math.prod(program.avals[number].shape) * program.avals[number].dtype.itemsize
        for place, step in enumerate(program.steps)
        if could_be(step, cut, place)
        for number in step.outputs
    )


def _worth_it(
    program: FlatProgram, cut: Cut, sites: set[int], ready: Sequence[int]
) -> frozenset[int]:
    """The steps that gain from running in slices.

    Those that need what arrives in slices, since they can begin with the first of
    them; and those that a collective waits for, unless it waits for what arrives
    anyway. The rest, as a forward pass that is computed again, would only have to be
    put together for the gradients of weights.
    """
    arrived, chosen = set(ready), set[int]()
    needed: set[int] = set()
    for place, step in enumerate(program.steps):
        if could_be(step, cut, place) is None:
            continue
        waits = any(number in arrived for number in step.inputs)
        if place in sites and not waits:
            needed.update(step.inputs)
        if place in sites or waits:
            chosen.add(place)
            arrived.update(step.outputs)
    for place in range(len(program.steps) - 1, -1, -1):
        step = program.steps[place]
        if place in chosen or not any(number in needed for number in step.outputs):
            continue
        if could_be(step, cut, place) is not None:
            chosen.add(place)
            needed.update(step.inputs)
    return frozenset(chosen)


def _cut_of(
    program: FlatProgram,
    classes: Classes,
    chosen: Node,
    slicing: Slicing,
    whole: frozenset[int] = frozenset(),
) -> Cut | None:
    sizes = [
        aval.shape[d]
        for number, aval in enumerate(program.avals)
        if (d := classes.dimension(number, chosen)) is not None
    ]
    unit = math.gcd(*sizes) if sizes else 0
    if unit < slicing.slices or (unit % slicing.slices and not slicing.local):
        return None
    parts = cut_evenly(unit, slicing.slices)
    return Cut(classes, chosen, unit, parts, slicing.local, whole=whole)
