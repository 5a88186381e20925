"""Windows of a layer: kernels behind which XLA's scheduler hides gathers of weights.

It has one collective under way at a time, and puts each as late as its result allows,
from the end of the layer to its beginning. So every gather has a window, the kernels
between what needs the one before and what needs it, and what comes first has none.
docs/explanation/mesh.md has the derivation.
"""

from __future__ import annotations

from typing import NamedTuple

from lagom_jax.mesh.messages import Message, seconds_of
from lagom_jax.mesh.model_shape import PLACES


class Windows(NamedTuple):
    """Seconds of kernels of a layer, in the order in which they run."""

    projecting: float
    """Queries, keys and values."""
    attending: float
    """Attention and its output."""
    feeding: float
    """The feed-forward, but for its last product."""

    @property
    def seconds(self) -> float:
        """Of all."""
        return sum(self)


def late_forward(
    messages: list[Message], windows: Windows, *, chained: bool = False
) -> float:
    """Seconds for which a forward pass waits for its weights.

    The softmax is one kernel there, so that a window has one gather; what is left of it
    is put into the window before.

    Args:
        messages: The gathers.
        windows: Kernels beside them.
        chained: Whether a collective stands between attention and feed-forward, which
            those of the last product cannot pass.

    Example:
        >>> places = "entering", "feeding", "leaving"
        >>> sent = [Message("all-gather", 1, ("fsdp",), 2.0, place) for place in places]
        >>> late_forward(sent, Windows(1.0, 3.0, 2.0))
        2.0
    """
    room = [windows.feeding, windows.attending, windows.projecting]
    place = 0
    late = 0.0
    for message in sorted(messages, key=_place, reverse=True):
        left = message.seconds
        if message.place != "entering":
            last = message.place == "leaving"
            place = place if last else max(place, 1)
            if place < len(room):
                left = max(0.0, left - room[place])
            for other in range(place + 1, 1 if last and chained else len(room)):
                taken = min(left, room[other])
                room[other] -= taken
                left -= taken
            place += 1
        late += left
    return late


def late_again(messages: list[Message], windows: Windows) -> float:
    """Seconds for which a layer that is computed again waits for its weights.

    The softmax is several kernels there, and gathers share their windows.

    Args:
        messages: The gathers.
        windows: Kernels beside them.
    """
    first = seconds_of([one for one in messages if one.place == "entering"])
    return first + max(0.0, seconds_of(messages) - first - windows.seconds)


def late_behind_chain(messages: list[Message], windows: Windows) -> float:
    """Seconds of waiting where the feed-forward begins with a collective of its own.

    Its weights are asked for behind that collective: none hides but the last product's,
    behind the products before. Those of attention's output hide behind attention.

    Args:
        messages: The gathers.
        windows: Kernels beside them.

    Example:
        >>> places = "entering", "feeding", "leaving"
        >>> sent = [Message("all-gather", 1, ("fsdp",), 2.0, place) for place in places]
        >>> late_behind_chain(sent, Windows(1.0, 3.0, 2.0))
        4.0
    """
    of = {
        place: seconds_of([one for one in messages if one.place == place])
        for place in PLACES
    }
    inside = max(0.0, of["inside"] - windows.attending)
    leaving = max(0.0, of["leaving"] - windows.feeding)
    return of["entering"] + inside + of["feeding"] + leaving


def _place(message: Message) -> int:
    return PLACES.index(message.place)
