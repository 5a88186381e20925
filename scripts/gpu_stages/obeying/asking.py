"""Makes the calls, one after the other, under one generation of rules after another."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_stages import nccl_log
from gpu_stages.cuda.nccl import Ranks, per_rank_bytes
from gpu_stages.cuda.runtime import Gpu
from gpu_stages.obeying.asked import GENERATIONS, Asked, generation, rules_of
from gpu_stages.obeying.verdict import Verdict, judge
from gpu_stages.steering import Steering


def ask(
    gpu: Gpu, ranks: Ranks, steering: Steering, *, most_bytes: int, takes_chunks: bool
) -> Iterator[list[Verdict]]:
    """What becomes of all calls, a list for each generation.

    Args:
        gpu: What they run on.
        ranks: Those of this process.
        steering: Its rules, and its log.
        most_bytes: Of the largest call, as a tuner counts them.
        takes_chunks: Whether this NCCL asks for chunks.
    """
    communicator = steering.communicator()

    def made(call: Asked, number: int) -> Verdict:
        per_rank = per_rank_bytes(call.function, call.nbytes, ranks.world)
        ranks.launch_first(call.function, per_rank)
        gpu.finish(*ranks.streams)
        ranks.check()
        lines = steering.log.new_lines()
        return judge(
            call,
            number,
            communicator,
            nccl_log.ran(lines),
            nccl_log.clamped(lines),
            ranks=ranks.world,
            takes_chunks=takes_chunks,
        )

    for number in range(GENERATIONS):
        calls = generation(number, most_bytes)
        steering.hold(rules_of(calls, ranks.world))
        steering.log.new_lines()
        yield [made(call, number) for call in calls]
