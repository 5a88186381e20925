"""Stage `transports`: does a call run where its memory and the policy ask it to?

The same calls are made in ordinary memory, in symmetric windows, and in windows under
the policy zero. NCCL's own log is read after each, and compared with the transport that
plans count on. docs/how-to/gpu-check.md has more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_stages.gpu import Gpu, Libraries, per_rank_bytes
from gpu_stages.host import cluster_of
from gpu_stages.nccl_log import logged_transports
from gpu_stages.stage import Check, Listing, Outcome, Request, say
from gpu_stages.steering import RANKS, Steering, all_ranks
from lagom_jax.cluster import Cluster
from lagom_jax.cost.span import Span
from lagom_jax.cost.transport_constants import load_transport_constants
from lagom_jax.cost.transports import PlacedCall, SymmetricBuffers
from lagom_jax.plan.transport import CtaPolicy, Transport

_FUNCTIONS: Final = ("all-gather", "reduce-scatter", "all-reduce")
_BYTES: Final = (1 << 16, 1 << 20, 1 << 24)
_PLACES: Final[tuple[tuple[bool, CtaPolicy], ...]] = (
    (False, "default"),
    (True, "default"),
    (True, "zero"),
)
"""Windows or ordinary memory, and the policy of the communicator."""


@dataclasses.dataclass(frozen=True, slots=True)
class Called:
    """One call: what it asked for by its memory and policy, and what NCCL logs."""

    function: str
    nbytes: int
    windows: bool
    policy: CtaPolicy
    asked: Transport
    logged: tuple[Transport, ...]

    @property
    def as_asked(self) -> bool:
        """Whether NCCL logs that transport and no other."""
        return self.logged == (self.asked,)


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    steering = Steering(request.path / "nccl.log", {})
    libraries = Libraries.load(request)
    gpu = Gpu(libraries, request.patience)
    cluster = cluster_of(request.gpu, RANKS)
    found: list[Called] = []
    for windows, policy in _PLACES:
        place = {"windows": windows, "policy": policy}
        with all_ranks(gpu, max(_BYTES), **place) as ranks:
            steering.offer()
            for function in _FUNCTIONS:
                for nbytes in _BYTES:
                    per_rank = per_rank_bytes(function, nbytes, ranks.world)
                    ranks.launch_first(function, per_rank)
                    gpu.finish(*ranks.streams)
                    ranks.check()
                    asked = transport_of(
                        cluster, function, nbytes, libraries.release_name(), **place
                    )
                    logged = logged_transports(function, steering.log.new_lines())
                    found.append(
                        Called(function, nbytes, **place, asked=asked, logged=logged)
                    )
        say(f"{len(found)} calls")
    return outcome_of(found, libraries.release_name())


def transport_of(
    cluster: Cluster,
    function: str,
    nbytes: int,
    nccl: str,
    *,
    windows: bool,
    policy: CtaPolicy,
) -> Transport:
    """The transport that plans count on for a call.

    Args:
        cluster: What it runs on.
        function: As the rules of the tuner name it.
        nbytes: On the larger side.
        nccl: The release.
        windows: Whether both buffers lie in symmetric windows.
        policy: Of the communicator.

    Example:
        >>> h100 = Cluster.parse("h100:1x2")
        >>> place = {"windows": True, "policy": "zero"}
        >>> transport_of(h100, "all-gather", 1 << 20, "2.30.7", **place)
        'copy engines'
        >>> transport_of(h100, "all-reduce", 1 << 20, "2.30.7", **place)
        'symmetric kernels'
        >>> transport_of(h100, "all-gather", 1 << 20, "2.26.0", **place)
        'rings'
    """
    call = PlacedCall(function, nbytes, Span(RANKS, 1, RANKS), cluster, ("f32",), 1)
    buffers = SymmetricBuffers(sent=windows, received=windows)
    carried = call.carried(buffers, policy, load_transport_constants(), nccl)
    return carried.transport if carried else "rings"


def outcome_of(found: Sequence[Called], release: str) -> Outcome:
    """The answer that the calls give.

    Args:
        found: All calls.
        release: Of NCCL.
    """
    windowed = [one for one in found if one.windows]
    # Ranks that share a GPU may have no symmetric memory at all: that refutes nothing.
    none = all(one.logged == ("rings",) for one in windowed)
    judged = [one for one in found if not (none and one.windows)]
    wrong = [one for one in judged if not one.as_asked]
    return Outcome(
        checks=tuple(_checks(judged)),
        listings=(
            Listing(
                "Calls",
                ("call", "bytes", "memory", "policy", "asked", "NCCL's log"),
                tuple(
                    (
                        *(one.function, one.nbytes),
                        "windows" if one.windows else "ordinary",
                        *(one.policy, one.asked, ", ".join(one.logged) or "nothing"),
                    )
                    for one in (*wrong, *(one for one in found if one not in wrong))
                ),
            ),
        ),
        findings=tuple(
            f"{one.function} of {one.nbytes} bytes asks for {one.asked}, NCCL logs: "
            f"{', '.join(one.logged) or 'nothing'}."
            for one in wrong[:8]
        ),
        left_out=(
            (
                "Every call in windows ran on rings: ranks that share this GPU have no "
                "symmetric memory here. Two GPUs with NVLink would answer.",
            )
            if none
            else ()
        ),
        versions=(("NCCL that was asked", release),),
    )


def _checks(judged: Sequence[Called]) -> Iterator[Check]:
    for title, windows in (("in ordinary memory", False), ("in windows", True)):
        part = [one for one in judged if one.windows == windows]
        if part:
            wrong = sum(not one.as_asked for one in part)
            words = f"calls {title} that NCCL runs elsewhere, of {len(part)}"
            yield Check(words, wrong, at_most=0)
