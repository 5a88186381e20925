"""Calls under rules that change, and the verdict on each by NCCL's own log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from gpu_stages import nccl_log
from gpu_stages.gpu import Gpu, Ranks, per_rank_bytes
from gpu_stages.nccl_log import Offer, Ran
from gpu_stages.steering import RANKS, Steering
from lagom_jax.nccl_plugin import Answer, Rule, Rules, Scope
from lagom_jax.nccl_plugin.rules import FUNCTIONS, possible_chunk
from lagom_jax.plan.setting import PROTOCOLS

GENERATIONS: Final = 10
"""Sets of rules, one after the other, while the communicators live."""
BUFFER_BYTES: Final = 1 << 20
"""Of Simple's buffers, a quarter of NCCL's own. NCCL logs a chunk of the plugin's only
where its buffers do not hold it; with small buffers that is often so."""
_LEAST_BYTES, _STEP = 1 << 12, 4
_CHANNELS: Final = (1, 2, 4, 8, 16, 32)
_CHUNKS: Final = tuple(size << 10 for size in (32, 128, 512, 2048))
_RINGS: Final = tuple(("ring", protocol) for protocol in PROTOCOLS)
_TREES: Final = tuple(("tree", protocol) for protocol in PROTOCOLS)
_WAYS: Final = dict.fromkeys(FUNCTIONS, _RINGS) | {"all-reduce": _RINGS + _TREES}
"""All that NCCL has for ranks on one GPU, which have no switch and no network."""
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


Done: TypeAlias = Literal["as asked", "not offered", "otherwise"]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One call: asked, done, and the difference."""

    function: str
    nbytes: int
    generation: int
    way: str
    """Algorithm and protocol that were asked for."""
    asked: str
    done: str
    """NCCL's words."""
    outcome: Done
    why: str = ""


def generation(number: int, most_bytes: int) -> list[Asked]:
    """The calls under one set of rules: each function with each size.

    Over all generations a size meets all algorithms, with other channels and chunks
    each time.

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


def rules_of(calls: list[Asked]) -> Rules:
    """Rules that have the answers of calls of different functions and sizes."""
    rules = [Rule(one.function, one.nbytes, one.nbytes, one.answer) for one in calls]
    return Rules((Scope(RANKS, rules=tuple(rules)),))


def verdicts(
    gpu: Gpu, ranks: Ranks, steering: Steering, most_bytes: int
) -> Iterator[list[Verdict]]:
    """Makes the calls; a list of verdicts for each generation of rules."""
    offer = steering.offer()
    for number in range(GENERATIONS):
        calls = generation(number, most_bytes)
        steering.hold(rules_of(calls))
        steering.log.new_lines()
        found: list[Verdict] = []
        for call in calls:
            per_rank = per_rank_bytes(call.function, call.nbytes, ranks.world)
            ranks.launch_first(call.function, per_rank)
            gpu.finish(*ranks.streams)
            ranks.check()
            found.append(judge(call, number, offer, steering.log.new_lines()))
        yield found


def judge(call: Asked, generation: int, offer: Offer, lines: list[str]) -> Verdict:
    """Compares a call with NCCL's log since the call before."""
    answer, ran = call.answer, nccl_log.ran(lines)
    assert answer.channels is not None
    why, outcome = "", "as asked"
    if (call.function, answer.algorithm, answer.protocol) not in offer.offered:
        outcome = "not offered"
    elif len(ran) != 1:
        why = f"it is one call, and NCCL writes of {len(ran)}"
    else:
        why = _difference(call, ran[0], min(answer.channels, offer.channels))
        why = why or _chunk_difference(call, nccl_log.clamped(lines))
    return Verdict(
        call.function,
        call.nbytes,
        generation,
        f"{answer.algorithm}/{answer.protocol}",
        str(answer),
        "; ".join(map(str, ran)) or "nothing",
        "otherwise" if why else outcome,
        why,
    )


def _answer(function: str, number: int, place: int) -> Answer:
    ways = _WAYS[function]
    algorithm, protocol = ways[(number + place) % len(ways)]
    channels = _CHANNELS[(2 * number + place) % len(_CHANNELS)]
    chunk = _CHUNKS[(number + 3 * place) % len(_CHUNKS)]
    return Answer(
        algorithm, protocol, channels, chunk if protocol == "simple" else None
    )


def _difference(call: Asked, ran: Ran, channels: int) -> str:
    answer = call.answer
    per_rank = per_rank_bytes(call.function, call.nbytes, RANKS)
    if (ran.function, ran.per_rank) != (call.function, per_rank):
        return f"NCCL writes of another call: {ran.function} of {ran.per_rank} bytes"
    if (ran.algorithm, ran.protocol) != (answer.algorithm, answer.protocol):
        return f"it runs as {ran.algorithm}/{ran.protocol}"
    if ran.channels > channels:
        return f"it takes {ran.channels} channels, not {channels}"
    if ran.channels < channels and _fills(call, channels):
        return f"it takes only {ran.channels} channels of {channels}"
    return ""


def _chunk_difference(call: Asked, clamped: set[tuple[str, int]]) -> str:
    """The difference of the chunk, where NCCL has to log it."""
    answer = call.answer
    if answer.chunk_bytes is None:
        return ""
    assert answer.algorithm is not None
    assert answer.protocol is not None
    asked = possible_chunk(answer.chunk_bytes, answer.algorithm, answer.protocol)
    found = {chunk for function, chunk in clamped if function == call.function}
    expected = {asked} if asked > _held(call) else set[int]()
    if found == expected:
        return ""
    return f"NCCL writes of chunks {sorted(found)} that it cut, not {sorted(expected)}"


def _held(call: Asked) -> int:
    """The largest chunk that the small buffers of Simple hold."""
    rooted = call.function in ("broadcast", "reduce")
    steps = 4 if call.answer.algorithm == "ring" and not rooted else 1
    return steps * BUFFER_BYTES // _STEPS


def _fills(call: Asked, channels: int) -> bool:
    """Whether there is enough to deal out for so many channels."""
    traffic = call.nbytes * (2 if call.function == "all-reduce" else 1)
    return traffic >= channels * _TRAFFIC_OF_A_CHANNEL
