"""Stage `transports`: does a call run where its memory and the policy ask it to?

The same calls are made in ordinary memory, in symmetric windows, and in windows under
the policy zero. NCCL's own log is read after each, and compared with the transport that
plans count on. docs/how-to/gpu-check.md has more.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Final

from gpu_stages import steering as nccl
from gpu_stages.gpu import RANKS, Gpu, Ranks
from gpu_stages.stage import Outcome, Request, say, write_table
from gpu_stages.steering import Call, Steering, outcome_of
from lagom_jax.cluster import Cluster
from lagom_jax.cost.span import Span
from lagom_jax.cost.transport_constants import load_transport_constants
from lagom_jax.cost.transports import PlacedCall
from lagom_jax.hlo.symmetric_buffers import SymmetricBuffers
from lagom_jax.plan.transport import CtaPolicy, Transport

_FUNCTIONS: Final = ("all-gather", "reduce-scatter", "all-reduce")
_BYTES: Final = (1 << 16, 1 << 20, 1 << 24)
_PLACES: Final[tuple[tuple[bool, CtaPolicy], ...]] = (
    (False, "default"),
    (True, "default"),
    (True, "zero"),
)
"""Windows or ordinary memory, and the policy of the communicator."""
_IN_WINDOWS: Final = "in windows"


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    steering = Steering(request)
    gpu = Gpu(request)
    cluster = request.cluster(RANKS)
    found: list[Call] = []
    for windows, policy in _PLACES:
        with Ranks(gpu, max(_BYTES), windows=windows, policy=policy) as ranks:
            steering.offer()
            for function, nbytes in itertools.product(_FUNCTIONS, _BYTES):
                ranks.run(function, nbytes)
                call = (function, nbytes, windows, policy)
                asked = transport_of(cluster, gpu.nccl_release, *call)
                logged = nccl.transports(function, steering.new_lines())
                found.append(judge(*call, asked, logged))
        say(f"{len(found)} calls")
    write_table(request.path / "calls.csv", [*map(dataclasses.asdict, found)])
    return judged(found, gpu.nccl_release)


def judge(
    function: str,
    nbytes: int,
    windows: bool,
    policy: CtaPolicy,
    asked: Transport,
    logged: Collection[Transport],
) -> Call:
    """A call with the transport that it asked for, and those that NCCL logs."""
    return Call(
        f"{function} of {nbytes} bytes with the policy {policy}",
        _IN_WINDOWS if windows else "in ordinary memory",
        asked,
        ", ".join(sorted(logged)) or "nothing",
        "" if {*logged} == {asked} else "it runs elsewhere",
    )


def judged(calls: Sequence[Call], release: str) -> Outcome:
    """The answer of all calls.

    Ranks that share a GPU may have no symmetric memory at all: that refutes nothing.
    """
    elsewhere = [call for call in calls if call.when != _IN_WINDOWS]
    if any(call.logged != "rings" for call in calls if call.when == _IN_WINDOWS):
        return outcome_of(calls, release)
    why = (
        "Every call in windows ran on rings: ranks that share this GPU have no "
        "symmetric memory here. Two GPUs with NVLink would answer."
    )
    return outcome_of(elsewhere, release, left_out=[why])


def transport_of(
    cluster: Cluster,
    nccl: str,
    function: str,
    nbytes: int,
    windows: bool,
    policy: CtaPolicy,
) -> Transport:
    """The transport that plans count on for a call, under a release of NCCL.

    Example:
        >>> h100 = Cluster.parse("h100:1x2")
        >>> transport_of(h100, "2.30.7", "all-gather", 1 << 20, True, "zero")
        'copy engines'
        >>> transport_of(h100, "2.30.7", "all-reduce", 1 << 20, True, "zero")
        'symmetric kernels'
        >>> transport_of(h100, "2.26.0", "all-gather", 1 << 20, True, "zero")
        'rings'
    """
    call = PlacedCall(function, nbytes, Span(RANKS, 1, RANKS), cluster, ("f32",), 1)
    buffers = SymmetricBuffers(sent=windows, received=windows)
    carried = call.carried(buffers, policy, load_transport_constants(), nccl)
    return carried.transport if carried else "rings"
