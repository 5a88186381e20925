"""Training in regions: each is a process, with an outer optimiser between them.

One process decides: it measures a step, derives delay and capacity from the link, and
starts the regions with what it found. A region that dies is started again and goes on
from the global parameters of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lagom_jax import regions
from lagom_jax.cluster.wan import parse_wan
from lagom_jax.regions.links import Wan
from lagom_models import TrainState
from training.errors import TrainingError
from training.progress import Metrics

_STRATEGIES = ("diloco", "streaming", "cocodc")
REGIONS = flags.DEFINE_integer(
    "regions", None, "Train in so many regions, each a process of this machine.", 1
)
OUTER = flags.DEFINE_enum(
    "outer", "cocodc", _STRATEGIES, "What the regions do; see docs/how-to/regions.md."
)
WAN = flags.DEFINE_string(
    "wan", "1gbps,100ms", "The link of each region to the others; it is imitated."
)
_PERIOD = flags.DEFINE_integer("period", 20, "Steps for every part once.", 1)
_FRAGMENTS = flags.DEFINE_integer("fragments", 3, "Parts that are sent alone.", 1)
DELAY = flags.DEFINE_integer(
    "delay", None, "Steps from a send to its arrival; from the link if unset.", 0
)
SEND_STEPS = flags.DEFINE_float(
    "send_steps", None, "Steps that a send takes; from the link if unset.", 0
)
STEP_SECONDS = flags.DEFINE_float(
    "step_seconds", None, "Of one step; measured if unset.", 0
)
_LINK_USE = flags.DEFINE_float("link_use", 0.4, "The share of the link for cocodc.")
_BITS = flags.DEFINE_enum("bits", "4", ["32", "16", "8", "4"], "Of what is sent.")
_OUTER_RATE = flags.DEFINE_float("outer_learning_rate", 0.7, "Of the outer optimiser.")
_MOMENTUM = flags.DEFINE_float("outer_momentum", 0.9, "Of the outer optimiser.")
_MIXING = flags.DEFINE_float("mixing", 0.5, "A region's own share in what arrives.")
_COMPENSATION = flags.DEFINE_float("compensation", 0.5, "Of delays, for cocodc.")
REGION = flags.DEFINE_integer("region", None, "Which region this process is.", 0)
_MEETING = flags.DEFINE_string("meeting", None, "host:port where the regions meet.")
_REJOIN = flags.DEFINE_bool("rejoin", False, "Go on from the other regions' state.")
_RESTARTS = 3
_SEED_APART = 7919


class RegionState(NamedTuple):
    """A region's training state, and the outer optimiser's."""

    inner: TrainState
    outer: regions.OuterState


@dataclasses.dataclass(frozen=True)
class Region:
    """This process's part in the training of all."""

    number: int
    exchange: regions.Exchange
    optimizer: regions.OuterOptimizer

    @classmethod
    def here(cls, learning_rate: float) -> Region | None:
        """The region that this process is, if any."""
        if REGION.value is None:
            return None
        if _MEETING.value is None:
            raise TrainingError("--region goes with --meeting=host:port")
        link = parse_wan(WAN.value)
        exchange = regions.Exchange(_MEETING.value, REGION.value, emulated=link)
        return cls(REGION.value, exchange, make_outer(exchange, learning_rate))

    @property
    def seed(self) -> int:
        """Added to the seed of the text, so that each reads in an order of its own."""
        return _SEED_APART * self.number

    def step(
        self, inner: Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]]
    ) -> Callable[[RegionState, jax.Array], tuple[RegionState, Metrics]]:
        """An inner step, and what the outer optimiser does after it."""

        def step(state: RegionState, tokens: jax.Array) -> tuple[RegionState, Metrics]:
            trained, metrics = inner(state.inner, tokens)
            weights, outer = self.optimizer.update(trained.weights, state.outer)
            # Moments of weights that were not finite are not either.
            lost = outer.own.refused > state.outer.own.refused
            moments = jax.tree.map(
                lambda x: jnp.where(lost, jnp.zeros_like(x), x), trained.optimizer
            )
            return RegionState(TrainState(weights, moments), outer), metrics

        return step

    def shapes(self, inner: TrainState, mesh: Mesh) -> RegionState:
        """Shapes of the whole state; what belongs to weights is cut as they are."""
        outer = jax.eval_shape(self.optimizer.init, inner.weights)
        cut = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(inner.weights)}
        whole = NamedSharding(mesh, PartitionSpec())

        def placed(tree: Any, *, weights: bool) -> Any:
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(
                    x.shape, x.dtype, sharding=cut[x.shape] if weights else whole
                ),
                tree,
            )

        common = placed(outer.common, weights=False)._replace(
            anchor=placed(outer.common.anchor, weights=True),
            momentum=placed(outer.common.momentum, weights=True),
        )
        own = placed(outer.own, weights=False)._replace(
            residual=placed(outer.own.residual, weights=True)
        )
        return RegionState(inner, regions.OuterState(common, own))

    def begin(self, state: RegionState, shapes: RegionState) -> RegionState:
        """Takes part, from the state of others where this region comes back."""
        outer = state.outer
        if not _REJOIN.value:
            self.exchange.enter(self.optimizer, outer)
            return state
        found = self.exchange.join(self.optimizer, state.inner.weights, outer)
        if found is None:
            return state
        weights, outer = found
        new = RegionState(TrainState(weights, state.inner.optimizer), outer)
        return jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), new, shapes)

    def describe(self, state: RegionState) -> str:
        """What the outer optimiser has done, in a line."""
        sent = [int(n) for n in state.outer.common.sent]
        words = [
            f"region {self.number}: sends of each fragment {sent}",
            f"waited {self.exchange.waited_s:.2f} s for {self.exchange.waits} arrivals",
        ]
        if refused := int(state.outer.own.refused):
            words.append(f"{refused} refused, since they were not finite")
        if missed := int(state.outer.own.missed):
            words.append(f"{missed} exchanges in which nobody's message counted")
        return "; ".join(words)


def make_outer(axis: Any, learning_rate: float) -> regions.OuterOptimizer:
    """The optimiser that the flags ask for."""
    rates: dict[str, Any] = {
        "period": _PERIOD.value,
        "outer_learning_rate": _OUTER_RATE.value,
        "momentum": _MOMENTUM.value,
        "bits": int(_BITS.value),
    }
    if OUTER.value == "diloco":
        return regions.diloco(axis, **rates)
    rates |= {
        "fragments": _FRAGMENTS.value,
        "delay": DELAY.value or 0,
        "mixing": _MIXING.value,
    }
    if OUTER.value == "streaming":
        return regions.streaming(axis, **rates)
    return regions.cocodc(
        axis,
        **rates,
        compensation=_COMPENSATION.value,
        link_use=_LINK_USE.value,
        send_steps=SEND_STEPS.value,
        inner_learning_rate=learning_rate,
    )


def derive(weights: Any, step_seconds: float) -> tuple[int, float]:
    """Delay and duration of a send in steps, from the link and a step.

    Args:
        weights: Or their shapes.
        step_seconds: Of one inner step.
    """
    assert REGIONS.value is not None
    count = 1 if OUTER.value == "diloco" else _FRAGMENTS.value
    largest = max(regions.Fragments.of(weights, count).sizes)
    wan = Wan.shared(REGIONS.value, WAN.value)
    carried = wan.carried_bytes(largest, int(_BITS.value)) / wan.bytes_per_s
    sends = carried / step_seconds
    return math.ceil((carried + wan.latency_s) / step_seconds), sends


def launch(arguments: Sequence[str], said: Sequence[str], folder: str | None) -> int:
    """Starts all regions and waits for them; the answer is an exit code.

    Args:
        arguments: The command line of this process.
        said: Flags that were decided for all.
        folder: Where each region's own folder is made, if anywhere.
    """
    assert REGIONS.value is not None
    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(
            regions.Meeting(("127.0.0.1", 0), REGIONS.value, patience=60.0)
        )
        host, port = meeting.address
        children: dict[int, subprocess.Popen[bytes]] = {}

        def start(region: int, *more: str) -> None:
            own = [f"--out={Path(folder) / f'region{region}'}"] if folder else []
            children[region] = subprocess.Popen(
                [
                    *(sys.executable, *arguments, *said, *own, *more),
                    *(f"--region={region}", f"--meeting={host}:{port}"),
                ],
                env={**os.environ},
            )

        def forward(number: int, frame: FrameType | None) -> None:
            for child in children.values():
                with contextlib.suppress(OSError):
                    child.send_signal(number)

        signal.signal(signal.SIGTERM, forward)
        # From a terminal the regions get it themselves.
        signal.signal(signal.SIGINT, lambda *_: None)
        for region in range(REGIONS.value):
            start(region)
        return _watch(children, start)


def _watch(
    children: dict[int, subprocess.Popen[bytes]], start: Callable[..., None]
) -> int:
    restarts: dict[int, int] = {}
    worst = 0
    while children:
        region = next(iter(children))
        for number, child in children.items():
            if child.poll() is not None:
                region = number
                break
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                children[region].wait(0.2)
            continue
        code = children.pop(region).returncode
        if code == 0:
            continue
        # Exit code 1 is what flags, files and checkpoints bring about.
        if code == 1 or not children or restarts.get(region, 0) >= _RESTARTS:
            worst = 1
            print(f"region {region} ended with code {code}", file=sys.stderr)
            continue
        restarts[region] = restarts.get(region, 0) + 1
        print(
            f"region {region} ended with code {code}; the others go on, and it is "
            "started again",
            file=sys.stderr,
            flush=True,
        )
        start(region, "--rejoin")
    return worst
