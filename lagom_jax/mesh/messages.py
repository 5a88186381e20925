"""Collectives of a step as the closed form sees them: one message at a time."""

from __future__ import annotations

from typing import NamedTuple

from lagom_jax.mesh.flows import Flow
from lagom_jax.mesh.model_shape import Place
from lagom_jax.mesh.sizes import Axes


class Message(NamedTuple):
    """Data that one collective sends at a time."""

    kind: str
    nbytes: int
    axes: Axes
    seconds: float = 0.0
    """Alone, where they are asked for."""
    place: Place = "inside"
    """Of weights, the first part of their layer that needs one of them."""

    @classmethod
    def of(cls, flow: Flow) -> Message:
        """One execution of a flow."""
        return cls(flow.kind, flow.nbytes, flow.axes)


def largest_of(messages: list[Message]) -> Message:
    """The message with the most bytes."""
    return max(messages, key=lambda message: message.nbytes)


def seconds_of(messages: list[Message]) -> float:
    """Seconds of all, one after the other."""
    return sum(message.seconds for message in messages)


def combined(flows: list[Flow], limit: float) -> list[list[Flow]]:
    """Flows of one layer as a compiler combines them: each with the last that has room.

    Args:
        flows: In the order of their use.
        limit: Most bytes of what goes at once.

    Example:
        >>> sizes = (8, 8, 1)
        >>> found = [Flow("all-gather", ("fsdp",), n, 1, "forward", "weights")
        ...          for n in sizes]
        >>> [[flow.nbytes for flow in one] for one in combined(found, 9)]
        [[8], [8, 1]]
    """
    bundles: list[list[Flow]] = []
    for flow in flows:
        for bundle in reversed(bundles):
            room = limit - sum(one.nbytes for one in bundle)
            if bundle[0].axes == flow.axes and flow.nbytes <= room:
                bundle.append(flow)
                break
        else:
            bundles.append([flow])
    return bundles
