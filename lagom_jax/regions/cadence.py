"""Cadence of exchanges: at which inner steps a fragment is sent, and when it arrives.

Pure arithmetic on whole numbers, for the optimiser and for planning alike.
"""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.errors import RegionError


@dataclasses.dataclass(frozen=True, slots=True)
class Cadence:
    """Sends and arrivals of fragments, counted in inner steps.

    A fragment is sent after every inner step that is a multiple of `interval`, and
    arrives `delay` steps later.

    Example:
        >>> cadence = Cadence.round_robin(period=100, fragments=4, delay=5)
        >>> cadence.interval, cadence.in_flight
        (25, 1)
        >>> Cadence.adaptive_within(100, 4, delay=5, link_use=0.4).interval
        13
    """

    period: int
    """Inner steps in which every fragment is sent at least once."""
    fragments: int
    delay: int
    """Inner steps from a send to its arrival; 0 for at once."""
    interval: int
    """Inner steps from send to send."""
    adaptive: bool
    """True if the next fragment is chosen by its rate of change, not in turn."""

    def __post_init__(self) -> None:
        """Refuses what cannot keep its promises."""
        if self.period < 1 or self.fragments < 1:
            raise RegionError("period and fragments must be at least 1")
        if self.delay < 0:
            raise RegionError("delay must not be negative")
        turn = self.fragments * self.interval
        if self.delay >= turn:
            raise RegionError(
                f"delay={self.delay}: a fragment would be sent again before it has "
                f"arrived, since each has its turn every {turn} steps; take a longer "
                f"period, {self.delay + 1} at least, or a shorter delay"
            )

    @classmethod
    def round_robin(cls, period: int, fragments: int, delay: int) -> Cadence:
        """Fragments in turn, at even distances: the cadence of Streaming DiLoCo.

        The distance is the period over the number of fragments, rounded, and so a
        turn may be a little longer or shorter than the period asked for.
        """
        if fragments > period >= 1:
            raise RegionError(
                f"{fragments} fragments cannot each be sent in a period of "
                f"{period} steps: take fewer fragments, or a longer period"
            )
        interval = max(1, round(period / max(1, fragments)))
        return cls(period, fragments, delay, interval, adaptive=False)

    @classmethod
    def adaptive_within(
        cls,
        period: int,
        fragments: int,
        delay: int,
        link_use: float,
        send_steps: float | None = None,
    ) -> Cadence:
        """As many sends as a share of the link allows, the most changed fragment first.

        Args:
            period: Inner steps in which every fragment is to be sent at least once.
            fragments: How many there are.
            delay: Inner steps from a send to its arrival.
            link_use: The share of the time that the link may be in use, up to 1.
            send_steps: Duration of a send in inner steps; by default the whole delay.

        Raises:
            RegionError: The share does not allow every fragment once in a period.
        """
        if not 0 < link_use <= 1:
            raise RegionError(f"link_use={link_use} must be above 0 and at most 1")
        takes = float(delay) if send_steps is None else send_steps
        if takes < 0 or not math.isfinite(takes):
            raise RegionError(f"send_steps={takes} must be a number, 0 or more")
        # A rounding error must not cost a whole step.
        interval = max(1, math.ceil(takes / link_use - 1e-9))
        # Someone must be there to be sent: never are all fragments in flight.
        interval = max(interval, math.ceil(delay / max(1, fragments)))
        if fragments * interval > period:
            raise RegionError(
                f"a fragment takes {takes:g} steps to send, and link_use={link_use:g} "
                f"allows a send every {interval} steps: {fragments} fragments need a "
                f"period of {fragments * interval} at least, not {period}; or fewer "
                "fragments, fewer bits, a larger link_use"
            )
        return cls(period, fragments, delay, interval, adaptive=True)

    @property
    def in_flight(self) -> int:
        """The most fragments that are on their way at once."""
        return math.ceil(self.delay / self.interval)

    @property
    def sends(self) -> int:
        """The most sends in any period."""
        return math.ceil(self.period / self.interval)

    def sends_after(self, step: int) -> bool:
        """True if a fragment is sent after an inner step, counted from 1."""
        return step % self.interval == 0

    def arrives_after(self, step: int) -> bool:
        """True if a fragment arrives after an inner step."""
        sent = step - self.delay
        return sent > 0 and sent % self.interval == 0
