"""Calls under rules that change, and the verdict on each by NCCL's own log."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Final

from gpu_stages import nccl_log
from gpu_stages.gpu import FIRST_WITH_SHARED_GPUS, Gpu, Ranks, per_rank_bytes
from gpu_stages.nccl_log import Clamped, Offer, Ran
from gpu_stages.steering import Steering
from lagom_jax.plan.setting import PROTOCOLS
from lagom_jax.tuner import Answer, Rule, Rules, Scope
from lagom_jax.tuner.rules import FUNCTIONS, IN_SLOTS, possible_chunk

GENERATIONS: Final = 10
"""Sets of rules, one after the other, while the communicators live."""
BUFFER_BYTES: Final = 1 << 20
"""Of Simple's buffers, a quarter of NCCL's own. NCCL logs a chunk of the plugin's only
where its buffers do not hold it; with small buffers that is often so."""
DONE: Final = "as asked"
NOT_OFFERED: Final = "not offered"
OTHERWISE: Final = "otherwise"
_LEAST_BYTES, _STEP = 1 << 12, 4
_CHANNELS: Final = (1, 2, 4, 8, 16, 32)
_CHUNKS: Final = tuple(size << 10 for size in (32, 128, 512, 2048))
_RINGS: Final = tuple(("ring", protocol) for protocol in PROTOCOLS)
_PARTED: Final = (
    *_RINGS,
    *((name, "simple") for name in ("nvls", "pat", "collnet_direct")),
)
_WAYS: Final = {
    "broadcast": _RINGS,
    "reduce": _RINGS,
    "all-gather": _PARTED,
    "reduce-scatter": _PARTED,
    "all-reduce": (
        *_RINGS,
        *(("tree", protocol) for protocol in PROTOCOLS),
        *(
            (name, "simple")
            for name in ("nvls", "nvls_tree", "collnet_direct", "collnet_chain")
        ),
    ),
}
"""Everything that some NCCL on some machine has for a function."""
_STEPS: Final = 8
# Twice what NCCL at most holds to be worth a channel: with so much for each, none that
# was asked for may be missing.
_TRAFFIC_OF_A_CHANNEL: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A call, and the plugin's answer for it."""

    function: str
    nbytes: int
    """As a tuner counts them."""
    answer: Answer


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One call: asked, done, and the difference."""

    function: str
    nbytes: int
    generation: int
    asked: str
    done: str
    """NCCL's words."""
    outcome: str
    """`DONE`, `NOT_OFFERED` or `OTHERWISE`."""
    why: str = ""
    channels: int = 0
    """That were used."""


def generation(number: int, most_bytes: int) -> list[Asked]:
    """The calls under one set of rules: each function with each size.

    Over all generations a size meets all algorithms, with other channels and chunks
    each time.

    Args:
        number: From 0 on.
        most_bytes: Of the largest call.

    Example:
        >>> [str(asked.answer) for asked in generation(0, 1 << 14)[:2]]
        ['ring/ll, 1 channel', 'ring/ll128, 2 channels']
    """
    sizes = [_LEAST_BYTES]
    while sizes[-1] * _STEP <= most_bytes:
        sizes.append(sizes[-1] * _STEP)
    return [
        Asked(function, nbytes, _answer(function, number, place))
        for function in FUNCTIONS
        for place, nbytes in enumerate(sizes)
    ]


def rules_of(calls: list[Asked], ranks: int) -> Rules:
    """Rules that have the calls' answers.

    Args:
        calls: Each has a function and a size of its own.
        ranks: Of the communicator.
    """
    rules = [
        Rule(call.function, call.nbytes, call.nbytes, call.answer) for call in calls
    ]
    return Rules((Scope(ranks, rules=tuple(rules)),))


def verdicts(
    gpu: Gpu, ranks: Ranks, steering: Steering, most_bytes: int, generations: int
) -> Iterator[list[Verdict]]:
    """Makes the calls; a list of verdicts for each generation of rules.

    Args:
        gpu: The GPU that they run on.
        ranks: Those of this process.
        steering: Its rules, and its log.
        most_bytes: Of the largest call, as a tuner counts them.
        generations: How many.
    """
    offer = steering.offer()
    takes_chunks = gpu.libraries.nccl_release() >= FIRST_WITH_SHARED_GPUS

    def make(call: Asked, number: int) -> Verdict:
        per_rank = per_rank_bytes(call.function, call.nbytes, ranks.world)
        ranks.launch_first(call.function, per_rank)
        gpu.finish(*ranks.streams)
        ranks.check()
        lines = steering.log.new_lines()
        return judge(
            call,
            number,
            offer,
            nccl_log.ran(lines),
            nccl_log.clamped(lines),
            ranks=ranks.world,
            takes_chunks=takes_chunks,
        )

    for number in range(generations):
        calls = generation(number, most_bytes)
        steering.hold(rules_of(calls, ranks.world))
        steering.log.new_lines()
        yield [make(call, number) for call in calls]


def judge(
    call: Asked,
    generation: int,
    offer: Offer,
    ran: Collection[Ran],
    clamped: Collection[Clamped],
    *,
    ranks: int,
    takes_chunks: bool,
) -> Verdict:
    """Compares a call with the log of it.

    Args:
        call: With the plugin's answer.
        generation: Number of the rules that held.
        offer: Everything that NCCL can do here.
        ran: Calls in the log.
        clamped: Chunks in the log that NCCL cut.
        ranks: Of the communicator.
        takes_chunks: Whether this NCCL asks for chunks.
    """
    answer = call.answer
    assert answer.channels is not None
    done = "; ".join(map(str, ran)) or "nothing"
    verdict = Verdict(
        call.function, call.nbytes, generation, str(answer), done, NOT_OFFERED
    )
    if (call.function, answer.algorithm, answer.protocol) not in offer.offered:
        return verdict
    wanted = min(answer.channels, offer.channels)
    if len(ran) != 1:
        why = f"it is one call, and NCCL writes of {len(ran)}"
    else:
        (one,) = ran
        verdict = dataclasses.replace(verdict, channels=one.channels)
        why = _difference(call, one, wanted, ranks)
        if not why and takes_chunks:
            why = _chunk_difference(call, clamped)
    return dataclasses.replace(verdict, outcome=OTHERWISE if why else DONE, why=why)


def _answer(function: str, number: int, place: int) -> Answer:
    ways = _WAYS[function]
    algorithm, protocol = ways[(number + place) % len(ways)]
    channels = _CHANNELS[(2 * number + place) % len(_CHANNELS)]
    chunk = _CHUNKS[(number + 3 * place) % len(_CHUNKS)]
    return Answer(
        algorithm, protocol, channels, chunk if protocol == "simple" else None
    )


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
    """The difference of the chunk, where NCCL has to log it."""
    answer = call.answer
    if answer.chunk_bytes is None or answer.algorithm in IN_SLOTS:
        return ""
    assert answer.algorithm is not None
    assert answer.protocol is not None
    asked = possible_chunk(answer.chunk_bytes, answer.algorithm, answer.protocol)
    found = {one.chunk for one in clamped if one.function == call.function}
    expected = {asked} if asked > _held(call) else set[int]()
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
