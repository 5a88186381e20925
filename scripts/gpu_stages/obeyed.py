"""Stage `obeyed`: does NCCL do what the tuner plugin says, call by call?

Calls are made one by one, under sets of rules that are exchanged while the communicator
lives, and NCCL's own log is read after each. docs/how-to/gpu-check.md has more.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Final

from gpu_stages import steering as nccl
from gpu_stages.gpu import RANKS, Gpu, Ranks
from gpu_stages.stage import Outcome, Request, say, write_table
from gpu_stages.steering import Call, Offer, Ran, Steering, outcome_of
from lagom_jax.nccl_plugin import Answer, Rule
from lagom_jax.nccl_plugin.rules import FUNCTIONS, possible_chunk
from lagom_jax.plan.setting import PROTOCOLS

GENERATIONS: Final = 10
"""Sets of rules, one after the other, while the communicators live."""
_BUFFER_BYTES: Final = 1 << 20
"""Of Simple's buffers, a quarter of NCCL's own. NCCL logs a chunk of the plugin's only
where its buffers do not hold it; with small buffers that is often so."""
_SIZES: Final = tuple(1 << bits for bits in range(12, 27, 2))
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
_SECONDS_AFTER: Final = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A call, and the plugin's answer for it."""

    function: str
    nbytes: int
    """As a tuner counts them."""
    answer: Answer

    @property
    def way(self) -> str:
        """Function, algorithm and protocol, for people."""
        return f"{self.function} as {self.answer.algorithm}/{self.answer.protocol}"

    @property
    def rule(self) -> Rule:
        """The rule that has this answer."""
        return Rule(self.function, self.nbytes, self.nbytes, self.answer)

    @property
    def per_rank(self) -> int:
        """Bytes as NCCL's log counts them: of a rank's own part where it has one."""
        parted = self.function in ("all-gather", "reduce-scatter")
        return self.nbytes // RANKS if parted else self.nbytes


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    steering = Steering(request, NCCL_BUFFSIZE=str(_BUFFER_BYTES))
    gpu = Gpu(request)
    found: list[Call] = []
    failed: list[str] = []
    left_out: list[str] = []
    missing: Counter[str] = Counter()
    try:
        with Ranks(gpu, max(_SIZES)) as ranks:
            offer = steering.offer()
            for number in range(GENERATIONS):
                if number and request.left() < _SECONDS_AFTER:
                    done = f"{number} of {GENERATIONS} generations of rules"
                    left_out.append(f"The time was over after {done}.")
                    break
                calls = generation(number)
                steering.hold(*(call.rule for call in calls))
                steering.new_lines()
                for call in calls:
                    ranks.run(call.function, call.nbytes)
                    judged = judge(call, number, offer, steering.new_lines())
                    found += [judged] if judged else []
                    missing[call.way] += judged is None
                say(f"{len(found)} calls")
    except Exception as error:
        if not found:
            raise
        what = f"{len(found)} calls ({type(error).__name__}): {error}."
        failed.append(f"NCCL failed after {what}")
    if missing.total():
        ways = ", ".join(sorted(+missing))
        left_out.append(
            f"{missing.total()} calls were left to NCCL, which does not offer here "
            f"what was asked: {ways}."
        )
    write_table(request.path / "calls.csv", [*map(dataclasses.asdict, found)])
    return outcome_of(found, gpu.nccl_release, failed=failed, left_out=left_out)


def generation(number: int) -> list[Asked]:
    """The calls under one set of rules: each function with each size.

    Over all generations a size meets all algorithms, with other channels and chunks
    each time.

    Example:
        >>> [str(asked.answer) for asked in generation(0)[:2]]
        ['ring/ll, 1 channel', 'ring/ll128, 2 channels']
    """
    calls: list[Asked] = []
    for function, ways in _WAYS.items():
        for place, nbytes in enumerate(_SIZES):
            algorithm, protocol = ways[(number + place) % len(ways)]
            channels = _CHANNELS[(2 * number + place) % len(_CHANNELS)]
            chunk = _CHUNKS[(number + 3 * place) % len(_CHUNKS)]
            cut = chunk if protocol == "simple" else None
            answer = Answer(algorithm, protocol, channels, cut)
            calls.append(Asked(function, nbytes, answer))
    return calls


def judge(call: Asked, number: int, offer: Offer, lines: list[str]) -> Call | None:
    """The call with NCCL's log since the one before; None if NCCL does not offer it."""
    answer, ran = call.answer, nccl.ran(lines)
    assert answer.channels is not None
    if (call.function, answer.algorithm, answer.protocol) not in offer.offered:
        return None
    if len(ran) != 1:
        why = f"it is one call, and NCCL writes of {len(ran)}"
    else:
        why = _difference(call, ran[0], min(answer.channels, offer.channels))
        why = why or _chunk_difference(call, nccl.clamped(lines))
    return Call(
        f"{call.function} of {call.nbytes} bytes",
        "after an exchange of rules" if number else "under the first rules",
        str(answer),
        "; ".join(map(str, ran)) or "nothing",
        why,
    )


def _difference(call: Asked, ran: Ran, channels: int) -> str:
    answer = call.answer
    if (ran.function, ran.per_rank) != (call.function, call.per_rank):
        return f"NCCL writes of another call: {ran.function} of {ran.per_rank} bytes"
    if (ran.algorithm, ran.protocol) != (answer.algorithm, answer.protocol):
        return f"it runs as {ran.algorithm}/{ran.protocol}"
    if ran.channels > channels:
        return f"it takes {ran.channels} channels, not {channels}"
    traffic = call.nbytes * (2 if call.function == "all-reduce" else 1)
    filled = traffic >= channels * _TRAFFIC_OF_A_CHANNEL
    if ran.channels < channels and filled:
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
    # The largest that the small buffers of Simple hold.
    rooted = call.function in ("broadcast", "reduce")
    steps = 4 if answer.algorithm == "ring" and not rooted else 1
    held = steps * _BUFFER_BYTES // _STEPS
    found = {chunk for function, chunk in clamped if function == call.function}
    expected = {asked} if asked > held else set[int]()
    if found == expected:
        return ""
    return f"NCCL writes of chunks {sorted(found)} that it cut, not {sorted(expected)}"
