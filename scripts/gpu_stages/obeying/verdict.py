"""What NCCL was told beside what it says it did, call by call."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from gpu_stages.cuda.nccl import per_rank_bytes
from gpu_stages.nccl_log import Clamped, Communicator, Ran
from gpu_stages.obeying.asked import BUFFER_BYTES, Asked
from lagom_jax.tuner.rules import IN_SLOTS, possible_chunk

DONE: Final = "as asked"
NOT_OFFERED: Final = "not offered"
OTHERWISE: Final = "otherwise"
_STEPS: Final = 8
# Twice what NCCL at most holds to be worth a channel: with so much for each, none that
# was asked for may be missing.
_TRAFFIC_OF_A_CHANNEL: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one call."""

    function: str
    nbytes: int
    generation: int
    asked: str
    said: str
    outcome: str
    """`DONE`, `NOT_OFFERED` or `OTHERWISE`."""
    why: str = ""
    channels_asked: int | None = None
    """None where NCCL may take fewer, since the call is too small for them."""
    channels_used: int = 0


def judge(
    call: Asked,
    generation: int,
    communicator: Communicator,
    ran: Collection[Ran],
    clamped: Collection[Clamped],
    *,
    ranks: int,
    takes_chunks: bool,
) -> Verdict:
    """Compares a call with what was written while it ran.

    Args:
        call: What was asked.
        generation: Which rules held.
        communicator: What NCCL offers at all.
        ran: What NCCL says it did.
        clamped: Chunks that NCCL says it was told and cut.
        ranks: Of the communicator.
        takes_chunks: Whether this NCCL asks for chunks.
    """
    answer = call.answer
    assert answer.channels is not None
    said = "; ".join(map(str, ran)) or "nothing"
    verdict = Verdict(
        call.function, call.nbytes, generation, str(answer), said, NOT_OFFERED
    )
    entry = (call.function, answer.algorithm, answer.protocol)
    if entry not in communicator.offered:
        return verdict
    wanted = min(answer.channels, communicator.channels)
    if _fills(call, wanted):
        verdict = dataclasses.replace(verdict, channels_asked=wanted)
    if len(ran) != 1:
        why = f"it is one call, and NCCL writes of {len(ran)}"
    else:
        (one,) = ran
        verdict = dataclasses.replace(verdict, channels_used=one.channels)
        why = _difference(call, one, wanted, ranks)
        if not why and takes_chunks:
            why = _chunk_difference(call, clamped)
    return dataclasses.replace(verdict, outcome=OTHERWISE if why else DONE, why=why)


def _difference(call: Asked, ran: Ran, channels: int, ranks: int) -> str:
    answer = call.answer
    per_rank = per_rank_bytes(call.function, call.nbytes, ranks)
    if (ran.function, ran.per_rank) != (call.function, per_rank):
        return f"NCCL writes of another call: {ran.function} of {ran.per_rank} bytes"
    if (ran.algorithm, ran.protocol) != (answer.algorithm, answer.protocol):
        return f"it runs as {ran.algorithm}/{ran.protocol}"
    if ran.channels > channels:
        return f"it takes {ran.channels} channels, not {channels}"
    if ran.channels < channels and _fills(call, channels):
        return f"it takes only {ran.channels} channels of {channels}"
    return ""


def _chunk_difference(call: Asked, clamped: Collection[Clamped]) -> str:
    """What NCCL says of the chunk, where it has to."""
    answer = call.answer
    if answer.chunk_bytes is None or answer.algorithm in IN_SLOTS:
        return ""
    assert answer.algorithm is not None
    assert answer.protocol is not None
    told = possible_chunk(answer.chunk_bytes, answer.algorithm, answer.protocol)
    found = {chunk.told for chunk in clamped if chunk.function == call.function}
    expected = {told} if told > _held(call) else set[int]()
    if found == expected:
        return ""
    return f"NCCL writes of chunks {sorted(found)} that it cut, not {sorted(expected)}"


def _held(call: Asked) -> int:
    """The largest chunk that the small buffers of Simple hold."""
    step = BUFFER_BYTES // _STEPS
    long = call.answer.algorithm == "ring" and call.function not in (
        "broadcast",
        "reduce",
    )
    return 4 * step if long else step


def _fills(call: Asked, channels: int) -> bool:
    """Whether there is enough to deal out for so many channels."""
    traffic = call.nbytes * (2 if call.function == "all-reduce" else 1)
    return traffic >= channels * _TRAFFIC_OF_A_CHANNEL
