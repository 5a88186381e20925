"""Ranks of a job, each a process of its own, with a plugin and a control page.

    python -m tests.nccl_plugin.ranks PLUGIN RANK SEED STEPS

Standard input and output are the line to the coordinator: `agree POINT SAID` is
answered by `yes`, `no` or `lost`; `told CALL ANSWER` says what NCCL was told.
"""

import random
import sys
import time
from pathlib import Path

from lagom_jax.nccl_plugin.control import Control, InDoubtError, exchange
from lagom_jax.nccl_plugin.image import pack
from lagom_jax.nccl_plugin.library import Communicator, opened
from lagom_jax.nccl_plugin.rules import Answer, Place, Rule, Rules, Scope

SIZES = (1 << 20, 1 << 21, 1 << 20, 1 << 22)


def rules_of(generation: int) -> Rules:
    """Rules that answer otherwise in every generation, by size and by place."""
    by_size = Rule("all-gather", 1, 1 << 30, Answer(channels=1 + generation))
    places = tuple(
        Place("all-gather", nbytes, Answer(channels=10 + 4 * generation + number))
        for number, nbytes in enumerate(SIZES)
    )
    return Rules((Scope(8, rules=(by_size,), sequences=(places,)),))


def say(*words):
    print(*words, flush=True)


def agree(point, said):
    say("agree", point.replace(" ", "_"), said.replace(" ", "_"))
    answer = sys.stdin.readline().strip()
    if answer == "lost":
        raise ConnectionError("the coordinator is gone")
    if not answer:
        sys.exit(0)
    return answer == "yes"


def main(plugin, rank, seed, steps):
    delays, shared = random.Random(seed * 100 + rank), random.Random(seed)
    with Control() as control, opened(Path(plugin), control.environment()) as tuner:
        communicator = Communicator(tuner, ranks=8, hosts=1, domains=1)
        number = 0
        for _ in range(steps):
            # All ranks do the same, and now and then something else than usual.
            sizes = [n for n in SIZES if shared.random() < 0.95]
            for nbytes in sizes:
                told = communicator.ask("all-gather", nbytes)
                say("told", number, str(told).replace(" ", "_"))
                number += 1
            time.sleep(delays.random() * 0.003)
            if shared.random() < 0.2:
                held = control.active
                image = pack(rules_of(held.number + 1 if held else 1))
                if shared.random() < 0.3 and rank == shared.randrange(3):
                    image = image[:-3]
                try:
                    exchange(control, image, agree)
                except InDoubtError:
                    say("stopped")
                    return
        say("done", control.active)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
