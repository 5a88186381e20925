"""Seconds of a training step on a mesh, in closed form.

Work comes from dimensions, bytes from the flows, prices from the cost model; here they
are put together: layers follow each other, collectives hide behind the kernels that do
not wait for them, stages of a pipeline fill and drain. docs/explanation/mesh.md has the
derivation.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from lagom_jax.mesh.flows import Flow, Reason, expert_slices, flows, layers_here, turns
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.layer_seconds import (
    filling,
    generation_of,
    layer_seconds,
    stage_seconds,
)
from lagom_jax.mesh.layer_work import optimizer_work
from lagom_jax.mesh.mesh_memory import MeshMemory, held_weights, mesh_memory
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.messages import Message, combined, largest_of, seconds_of
from lagom_jax.mesh.model_shape import PLACES, ModelShape
from lagom_jax.mesh.sizes import Axes, MeshSizes, StepBatch
from lagom_jax.mesh.windows import (
    Windows,
    late_again,
    late_behind_chain,
    late_forward,
)

_OF_WEIGHTS = frozenset({"weights", "gradients"})
_GATHERED = frozenset({"entering matrices", "backward of leaving"})
_SCATTER = "reduce-scatter"


@dataclasses.dataclass(frozen=True, slots=True)
class MeshEstimate:
    """Predicted seconds of a step and where they go."""

    seconds: float
    compute_seconds: float
    """Of kernels, bubbles left out."""
    bubble_seconds: float
    """In which a stage of the pipeline has nothing to do."""
    contention_seconds: float
    """Lost by kernels beside communication that they hide."""
    exposed: Mapping[str, float]
    """Seconds of communication that nothing hides, by reason."""
    sent: Mapping[str, float]
    """Seconds of all communication, hidden or not, by reason."""
    memory: MeshMemory

    @property
    def exposed_seconds(self) -> float:
        """Communication that nothing hides."""
        return sum(self.exposed.values())

    @property
    def communication_share(self) -> float:
        """Of the step, in which it waits for communication."""
        return self.exposed_seconds / self.seconds


def estimate(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    prices: MeshPrices,
) -> MeshEstimate:
    """Predicts a step.

    Args:
        shape: The model.
        sizes: The mesh; the batch must divide over it.
        batch: What a step is trained on.
        framework: How the step is built.
        prices: By which model of which cluster.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.model import CostModel
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> prices = MeshPrices(CostModel.of(Cluster.parse("h100:2x8")))
        >>> found = estimate(published_shape("llama-3-8b"), MeshSizes(fsdp=16),
        ...                  StepBatch(16, 2048), framework_named("xla"), prices)
        >>> 0.3 < found.seconds < 0.6
        True
    """
    return _MeshStep(shape, sizes, batch, framework, prices).estimate()


def kernel_bound(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    prices: MeshPrices,
) -> float:
    """Seconds of a step's kernels and bubbles alone: no estimate is below it."""
    kernels = layer_seconds(shape, sizes, batch, framework, prices)
    busy, bubble = stage_seconds(kernels, shape, sizes, framework)
    return framework.level * (batch.micro_batches(sizes) * busy + bubble)


class _MeshStep:
    """One step, taken apart."""

    def __init__(
        self,
        shape: ModelShape,
        sizes: MeshSizes,
        batch: StepBatch,
        framework: Framework,
        prices: MeshPrices,
    ) -> None:
        self.shape, self.sizes, self.batch = shape, sizes, batch
        self.framework, self.prices = framework, prices
        self.flows = flows(shape, sizes, batch, framework)
        self.kernels = layer_seconds(shape, sizes, batch, framework, prices)
        self.layers = layers_here(shape, sizes)
        self.count = batch.micro_batches(sizes)
        self.rounds = turns(sizes, batch, framework)
        self.exposed: defaultdict[str, float] = defaultdict(float)
        self.sent: defaultdict[str, float] = defaultdict(float)
        self.lost = 0.0
        self.overlaps = generation_of(prices) >= framework.overlaps_from

    def estimate(self) -> MeshEstimate:
        busy, bubble = stage_seconds(
            self.kernels, self.shape, self.sizes, self.framework
        )
        busy *= self.count
        backward = self.kernels.backward
        self._activations()
        if not self.framework.looped_pipeline:
            # A turn of a stage lasts as long as what it waits for, too.
            bubble += filling(self.sizes) * sum(self.exposed.values()) / self.count
        self._weights(backward)
        self._once(self.kernels.forward + backward)
        _, states = held_weights(self.shape, self.sizes, self.framework)
        update = self.prices.kernel(optimizer_work(states, self.framework))
        compute = busy + update
        level = self.framework.level
        exposed = {name: level * value for name, value in self.exposed.items()}
        sent = {name: level * value for name, value in self.sent.items()}
        seconds = level * (compute + bubble + self.lost) + sum(exposed.values())
        memory = mesh_memory(self.shape, self.sizes, self.batch, self.framework)
        return MeshEstimate(
            *(seconds, level * compute, level * bubble, level * self.lost),
            *(exposed, sent, memory),
        )

    def _pays(
        self, reason: Reason, seconds: float, exposed: float, largest: Message
    ) -> None:
        """Takes what is sent, and what of it nothing hides.

        Args:
            reason: Why it is sent.
            seconds: Of all of it, alone.
            exposed: Of these, what kernels wait for.
            largest: The message that most of it is like.
        """
        exposed = min(seconds, max(0.0, exposed)) if self.overlaps else seconds
        self.sent[reason] += seconds
        self.exposed[reason] += exposed
        if exposed < seconds:
            self.lost += (seconds - exposed) * (1 - 1 / self._slowdown(largest))

    def _slowdown(self, message: Message) -> float:
        """Of a layer's kernels beside a message."""
        return self.prices.slowdown(
            *(self.kernels.works, self.kernels.key, message.kind),
            *(message.nbytes, message.axes, self.sizes),
        )

    def _activations(self) -> None:
        """Communication between kernels that wait for it."""
        gradients = self.kernels.products
        hidden = {"forward": 0.0, "backward": 0.0}
        executed = max(1, self.layers * self.rounds)
        # Where nothing else is sent, weights are cast and sliced while activations are
        # gathered, and backward products that are computed again hide more of them.
        again = self.kernels.again
        beside = {
            "forward": executed * self.kernels.cast,
            "backward": executed * (again.projecting + again.feeding),
            "ends": 0.0,
        }
        for flow in self.flows:
            if flow.reason in _OF_WEIGHTS or flow.phase == "once":
                continue
            seconds = flow.times * self.prices.flow(flow, self.sizes)
            free = 0.0
            if flow.reason == "backward of entering" and self.framework.hides_sums:
                # The products that give the weights' gradients do not wait for it.
                free = executed * gradients / 2 - hidden["backward"]
                hidden["backward"] += min(max(0.0, free), seconds)
            if flow.axes == ("expert",) and expert_slices(self.framework) > 1:
                # One half's tokens travel while the experts work on the other's, but
                # for the first to leave; and for the second, where weights are
                # brought together before the experts begin.
                forward = flow.phase == "forward"
                fed = self.kernels.fed if forward else self.kernels.fed_back
                each = min(seconds / (4 * executed), fed / 2)
                free = executed * each * (2 if self.sizes.sharded else 3)
            if flow.reason in _GATHERED and self._only_activations():
                free = beside[flow.phase]
                beside[flow.phase] -= min(free, seconds)
            left = seconds - max(0.0, free)
            self._pays(flow.reason, seconds, left, Message.of(flow))

    def _only_activations(self) -> bool:
        """True if a layer has no collectives but those of a cut sequence."""
        sizes = self.sizes
        alone = sizes.pipeline > 1 or not sizes.sharded
        return self.framework.name == "xla" and sizes.tensor_sequence and alone

    def _weights(self, backward: float) -> None:
        """Weights that are brought together, and gradients that are added up."""
        weights = [flow for flow in self.flows if flow.reason in _OF_WEIGHTS]
        if self.framework.once:
            self._gradients_once(weights, backward)
            return
        layer = [flow for flow in weights if flow.phase in ("forward", "backward")]
        loops = max((flow.times for flow in layer), default=0)
        forward, again = (
            self._combined(f for f in layer if _gathers(f) and f.phase == phase)
            for phase in ("forward", "backward")
        )
        sums = self._sums(f for f in layer if not _gathers(f))
        if self.framework.prefetches:
            late = max(0.0, seconds_of(forward) - self.kernels.forward)
            room = backward - seconds_of(again)
            late += max(0.0, -room)
            scattered = sum(one.seconds for one in sums if one.kind == _SCATTER)
            rooms = {_SCATTER: room, "all-reduce": room - scattered}
        else:
            late = self._late(forward, again)
            # XLA moves a reduce-scatter into the loop's next turn. An all-reduce stays
            # behind the gradient that it adds up, beside those that follow.
            rooms = {_SCATTER: self._scatter_room(), "all-reduce": self.kernels.aside}
        if gathers := [*forward, *again]:
            seconds = seconds_of(gathers)
            self._pays("weights", loops * seconds, loops * late, largest_of(gathers))
        for kind in rooms:
            if same := [message for message in sums if message.kind == kind]:
                seconds = sum(message.seconds for message in same)
                largest, room = largest_of(same), max(0.0, rooms[kind])
                if not self.framework.prefetches:
                    # Kernels beside a message are slower, and hide that much more.
                    room *= self._slowdown(largest)
                left = loops * max(0.0, seconds - room)
                self._pays("gradients", loops * seconds, left, largest)
        stacked = self.framework.looped_pipeline and self.sizes.pipeline > 1
        for flow in weights:
            if flow.phase == "ends":
                if stacked:
                    # All layers of a stage are one array.
                    flow = dataclasses.replace(flow, nbytes=flow.total, times=1)
                seconds = flow.times * self.prices.flow(flow, self.sizes)
                self._pays(flow.reason, seconds, seconds, Message.of(flow))

    def _late(self, forward: list[Message], again: list[Message]) -> float:
        """Seconds for which a layer waits for its weights, in both passes."""
        gathers = [*forward, *again]
        if not gathers or not self.overlaps:
            return seconds_of(gathers)
        sizes = self.sizes
        summed = sizes.tensor > 1 and not self.shape.parallel_block
        slower = self._slowdown(largest_of(gathers))
        windows, repeated = (
            Windows(*(slower * one for one in windows))
            for windows in (self.kernels.windows, self.kernels.again)
        )
        if sizes.expert > 1:
            windows, repeated = (
                one._replace(feeding=one.feeding / 2) for one in (windows, repeated)
            )
            late = late_behind_chain(forward, windows)
            return late + late_behind_chain(again, repeated)
        if summed and self.shape.experts is not None:
            late = late_behind_chain(forward, windows)
        else:
            late = late_forward(forward, windows, chained=summed)
        if summed:
            return late + late_behind_chain(again, repeated)
        return late + late_again(again, repeated)

    def _scatter_room(self) -> float:
        """Seconds of a backward pass beside which gradients are added up and cut."""
        kernels = self.kernels
        if self.sizes.tensor > 1 and not self.shape.parallel_block:
            # Sums of activations stand before everything else.
            return kernels.aside
        room = kernels.backward - kernels.computed_again
        return room - (kernels.fed_back / 2 if self.sizes.expert > 1 else 0.0)

    def _combined(self, found: Iterable[Flow]) -> list[Message]:
        """Flows of one layer, as the compiler combines them: up to a limit.

        Flat buffers hold all of a layer in one array.
        """
        limit = self.framework.combined_gather_bytes or math.inf
        return [self._message(bundle) for bundle in combined(list(found), limit)]

    def _sums(self, found: Iterable[Flow]) -> list[Message]:
        """Gradients of one layer: those that are cut go at once over the same axes."""
        cut: defaultdict[Axes, list[Flow]] = defaultdict(list)
        whole: list[Flow] = []
        for flow in found:
            (cut[flow.axes] if flow.kind == _SCATTER else whole).append(flow)
        return [*map(self._message, cut.values()), *self._combined(whole)]

    def _message(self, flows: list[Flow]) -> Message:
        """Flows that go at once; flat buffers are one array."""
        kind, axes = flows[0].kind, flows[0].axes
        sizes = [flow.nbytes for flow in flows]
        arrays: tuple[float, ...] = ()
        if self.framework.combined_gather_bytes and kind != "all-reduce":
            # What is added up whole is made one array first.
            arrays = tuple(map(float, sizes))
        nbytes = sum(sizes)
        seconds = self.prices.collective(kind, nbytes, axes, self.sizes, arrays)
        place = PLACES[min(PLACES.index(flow.place) for flow in flows)]
        return Message(kind, nbytes, axes, seconds, place)

    def _gradients_once(self, weights: list[Flow], backward: float) -> None:
        """All weights' gradients, sent once: behind the last micro batch's backward."""
        sums: defaultdict[tuple[str, Axes, Reason], int] = defaultdict(int)
        for flow in weights:
            sums[flow.kind, flow.axes, flow.reason] += flow.total
        room = self.layers * backward if self.framework.prefetches else 0.0
        for (kind, axes, reason), nbytes in sums.items():
            seconds = self.prices.collective(kind, nbytes, axes, self.sizes)
            message = Message(kind, nbytes, axes, seconds)
            self._pays(reason, seconds, seconds - room, message)
            room = max(0.0, room - seconds)

    def _once(self, layer: float) -> None:
        """Communication of the step or its pipeline as a whole."""
        for flow in self.flows:
            if flow.phase != "once" or flow.reason in _OF_WEIGHTS:
                continue
            each = self.prices.flow(flow, self.sizes)
            seconds = flow.times * each
            exposed = seconds
            if flow.reason == "handing on" and self.framework.prefetches:
                # Behind another micro batch's layers, but for filling and draining.
                late = max(0.0, each - self.layers * layer / 2)
                edges = self.sizes.pipeline - 1
                exposed = flow.times * late + edges * (each - late)
            self._pays(flow.reason, seconds, exposed, Message.of(flow))


def _gathers(flow: Flow) -> bool:
    return flow.kind == "all-gather"
