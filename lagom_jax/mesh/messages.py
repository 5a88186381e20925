"""Collectives of a step as the closed form sees them: one message at a time."""

from __future__ import annotations

from typing import NamedTuple

from lagom_jax.mesh.flows import Flow
from lagom_jax.mesh.sizes import Axes


class Message(NamedTuple):
    """Data that one collective sends at a time."""

    kind: str
    nbytes: int
    axes: Axes
    seconds: float = 0.0
    """Alone, where they are asked for."""

    @classmethod
    def of(cls, flow: Flow) -> Message:
        """One execution of a flow."""
        return cls(flow.kind, flow.nbytes, flow.axes)


def largest_of(messages: list[Message]) -> Message:
    """The message with the most bytes."""
    return max(messages, key=lambda message: message.nbytes)


class LayerGathers(NamedTuple):
    """Weights of one layer on their way, one message after the other."""

    messages: list[Message]
    early: int
    """Messages with weights of attention."""

    @property
    def seconds(self) -> float:
        """Of all, one after the other."""
        return sum(message.seconds for message in self.messages)

    def late(self, entering: float) -> float:
        """Seconds for which a layer waits, all asked for at its start.

        Args:
            entering: Seconds of attention, behind which the other weights travel.

        Example:
            >>> one = Message("all-gather", 1, ("fsdp",), 1.0)
            >>> LayerGathers([one, one, one], early=1).late(0.5)
            2.5
        """
        early = sum(message.seconds for message in self.messages[: self.early])
        return max(early, self.seconds - entering)
