"""What NCCL is told: every function, a ladder of sizes, and rules that change."""

from __future__ import annotations

import dataclasses
from typing import Final

from lagom_jax.plan.setting import PROTOCOLS
from lagom_jax.tuner import Answer, Rule, Rules, Scope
from lagom_jax.tuner.rules import FUNCTIONS

GENERATIONS: Final = 10
"""Of rules, one after the other, while the communicators live."""
BUFFER_BYTES: Final = 1 << 20
"""Of Simple's buffers, a quarter of NCCL's own. NCCL writes down a chunk that it is
told only where its buffers do not hold it; with small buffers that is often so."""
_LEAST_BYTES: Final = 1 << 12
_STEP: Final = 4
_CHANNELS: Final = (1, 2, 4, 8, 16, 32)
_CHUNKS: Final = tuple(size << 10 for size in (32, 128, 512, 2048))
_RINGS: Final = tuple(("ring", protocol) for protocol in PROTOCOLS)
_PARTED: Final = (
    *_RINGS,
    ("nvls", "simple"),
    ("pat", "simple"),
    ("collnet_direct", "simple"),
)
_WAYS: Final = {
    "broadcast": _RINGS,
    "reduce": _RINGS,
    "all-gather": _PARTED,
    "reduce-scatter": _PARTED,
    "all-reduce": (
        *_RINGS,
        *(("tree", protocol) for protocol in PROTOCOLS),
        *((name, "simple") for name in ("nvls", "nvls_tree")),
        *((name, "simple") for name in ("collnet_direct", "collnet_chain")),
    ),
}
"""All that some NCCL on some machine has for a function."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A call, and what NCCL is told about it."""

    function: str
    nbytes: int
    """As a tuner counts them."""
    answer: Answer


def generation(number: int, most_bytes: int) -> list[Asked]:
    """The calls under one generation of rules: each function with each size.

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
    """The rules that say so.

    Args:
        calls: Each has a function and a size of its own.
        ranks: Of the communicator.
    """
    rules = [
        Rule(call.function, call.nbytes, call.nbytes, call.answer) for call in calls
    ]
    return Rules((Scope(ranks, rules=tuple(rules)),))


def _answer(function: str, number: int, place: int) -> Answer:
    ways = _WAYS[function]
    algorithm, protocol = ways[(number + place) % len(ways)]
    channels = _CHANNELS[(2 * number + place) % len(_CHANNELS)]
    chunk = _CHUNKS[(number + 3 * place) % len(_CHUNKS)]
    return Answer(
        algorithm, protocol, channels, chunk if protocol == "simple" else None
    )
