"""Compute utilisation against bandwidth: a replay of steps, layer by layer.

A step is a forward pass, layer by layer, and a backward pass of twice its time. A layer
whose gradient, or outer gradient, is to be exchanged goes onto the link as soon as its
backward pass is done; the link carries one at a time. The layer's forward pass, `delay`
steps further on, waits for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Final

_BACKWARD: Final = 2.0
"""Time of a backward pass over that of a forward pass."""
_MOST: Final = 1e15
Choose = Callable[[int], Sequence[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """A step and what of it is exchanged, and when.

    Example:
        >>> model = RegionModel(parameters=1e9, layers=24, step_seconds=0.1)
        >>> plain = Training(model, bits=16, period=1)
        >>> 0.4 < plain.utilisation(bytes_per_s=86.8e9 / 8) < 0.5
        True
    """

    workload: RegionModel
    bits: float
    """Sent by each region for each parameter that is exchanged."""
    period: int
    """Inner steps in which every layer is exchanged once; 1 exchanges gradients."""
    fragments: int = 1
    delay: int = 0
    """Inner steps that a fragment may be late."""
    sends: int = 0
    """Fragments sent in a period; 0 for each once."""

    def utilisation(self, bytes_per_s: float, latency_s: float = 0.0) -> float:
        """The share of the time in which a region computes.

        Args:
            bytes_per_s: What a region's link carries.
            latency_s: Of one exchange; those that follow each other share it.

        Example:
            >>> model = RegionModel(1e9, 24, 0.1)
            >>> round(Training(model, 16, 100, 8, delay=1).utilisation(1e12), 6)
            1.0
        """
        return _replayed(self, bytes_per_s, latency_s)

    def needed(self, target: float, latency_s: float = 0.0) -> float:
        """The least bandwidth for a utilisation, in bytes per second.

        Infinite where latency alone is too much.

        Example:
            >>> model = RegionModel(1e9, 24, 0.1)
            >>> Training(model, 16, 100, 8, delay=1).needed(0.99) < 1.5e9
            True
        """
        if self.utilisation(_MOST, latency_s) < target:
            return float("inf")
        low, high = 1.0, _MOST
        while high / low > 1.01:
            middle = (low * high) ** 0.5
            if self.utilisation(middle, latency_s) >= target:
                high = middle
            else:
                low = middle
        return high

    @property
    def layer_bytes(self) -> float:
        """Bytes that a region sends for one layer."""
        work = self.workload
        return work.parameters / work.layers * self.bits / 8

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a region sends in an inner step, on average."""
        count = self.sends or self.fragments
        whole = self.workload.parameters * self.bits / 8
        return whole * count / self.fragments / self.period

    def sent_after(self, step: int) -> Sequence[int]:
        """The layers that are sent after an inner step, counted from 1."""
        count = self.sends or self.fragments
        # As even as whole steps allow.
        before, now = ((s * count) // self.period for s in (step - 1, step))
        layers = range(self.workload.layers)
        return [
            layer
            for turn in range(before, now)
            for layer in layers[turn % self.fragments :: self.fragments]
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class RegionModel:
    """A model on one region.

    Example:
        >>> RegionModel(1e9, 24, 0.1).layers
        24
    """

    parameters: float
    layers: int
    step_seconds: float
    """Of one inner step by itself."""


@functools.lru_cache(maxsize=4096)
def _replayed(training: Training, bytes_per_s: float, latency_s: float) -> float:
    work, delay = training.workload, training.delay
    layers = work.layers
    forward = work.step_seconds / (1 + _BACKWARD) / layers
    backward = _BACKWARD * forward
    takes = training.layer_bytes / bytes_per_s
    # A first stretch fills the link, a second one is measured.
    stretch = max(training.period, delay + 1, 2)
    now, free, began = 0.0, 0.0, 0.0
    due: dict[int, dict[int, float]] = {}
    for step in range(1, 2 * stretch + 1):
        if step == stretch + 1:
            began = now
        arriving = due.pop(step, {})
        if arriving:
            for layer in range(layers):
                now = max(now, arriving.get(layer, 0.0)) + forward
        else:
            now += forward * layers
        sent = set(training.sent_after(step))
        if sent:
            start = now
            for place, layer in enumerate(reversed(range(layers)), 1):
                if layer in sent:
                    free = max(free, start + place * backward) + takes
                    late = due.setdefault(step + 1 + delay, {})
                    late[layer] = free + latency_s
        now += backward * layers
    return min(1.0, stretch * work.step_seconds / (now - began))
