"""Measures what the tuner plugin adds to a call of NCCL.

    python scripts/bench_tuner.py           # prints
    python scripts/bench_tuner.py --docs  # and rewrites its page

Rules are for one communicator, so that all of them are in one place to be searched.
Calls come in random order, so that neither the processor's guesses nor its caches
know them; the calls of a sequence come in its order.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lagom_jax.nccl_plugin.build import NAME, SOURCES, compile_plugin, compiler
from lagom_jax.nccl_plugin.image import save
from lagom_jax.nccl_plugin.rules import FUNCTIONS, Answer, Place, Rule, Rules, Scope
from machine import processor

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks" / "tuner.md"
COUNTS = (10, 100, 1_000, 10_000)
CALLS = 40_000
ROUNDS = 12
TURNS = 15
RANKS, DOMAINS = 64, 8
Call = tuple[str, int]


def answer(draw: random.Random) -> Answer:
    """Something to set in every part."""
    protocol = draw.choice(("ll", "ll128", "simple"))
    return Answer("ring", protocol, draw.randint(1, 32), 1 << draw.randint(15, 21))


def sizes(draw: random.Random, count: int) -> list[int]:
    """Different ones, from 1 KiB to 16 GiB, as many small as large."""
    found: set[int] = set()
    while len(found) < count:
        found.add(int(2 ** draw.uniform(10, 34)))
    return sorted(found)


def exact(draw: random.Random, count: int) -> tuple[Rules, list[Call]]:
    """A rule for each size, as a plan makes them."""
    rules = tuple(
        Rule(draw.choice(FUNCTIONS), nbytes, nbytes, answer(draw))
        for nbytes in sizes(draw, count)
    )
    calls = [(rule.function, rule.least) for rule in rules]
    return Rules((Scope(RANKS, rules=rules),)), draw.choices(calls, k=CALLS)


def one_function(draw: random.Random, count: int) -> tuple[Rules, list[Call]]:
    """Ranges that cover all sizes of one function."""
    edges = sizes(draw, count + 1)
    rules = tuple(
        Rule("all-gather", least, after - 1, answer(draw))
        for least, after in itertools.pairwise(edges)
    )
    calls = [("all-gather", draw.randint(r.least, r.most)) for r in rules]
    return Rules((Scope(RANKS, rules=rules),)), draw.choices(calls, k=CALLS)


def crowded(draw: random.Random, count: int) -> tuple[Rules, list[Call]]:
    """Sizes of one function that differ by less than a part in a thousand."""
    near = [(1 << 30) + 64 * number for number in range(count)]
    rules = tuple(Rule("all-gather", n, n, answer(draw)) for n in near)
    calls = [("all-gather", nbytes) for nbytes in near]
    return Rules((Scope(RANKS, rules=rules),)), draw.choices(calls, k=CALLS)


def unruled(draw: random.Random, count: int) -> tuple[Rules, list[Call]]:
    """Calls of other sizes than the rules."""
    rules, calls = exact(draw, count)
    return rules, [(function, nbytes + 1) for function, nbytes in calls]


def sequence(draw: random.Random, count: int) -> tuple[Rules, list[Call]]:
    """Places of few sizes, and calls in their order."""
    few = [(draw.choice(FUNCTIONS), nbytes) for nbytes in sizes(draw, 8)]
    calls = [draw.choice(few) for _ in range(count - 1)] + [("all-reduce", 4)]
    places = tuple(Place(*call, answer(draw)) for call in calls)
    return Rules((Scope(RANKS, sequences=(places,)),)), calls * -(-CALLS // count)


CASES = {
    "a rule for each size": exact,
    "ranges of one function": one_function,
    "sizes of one function that crowd": crowded,
    "calls without a rule": unruled,
    "places in a sequence": sequence,
}


def measured(
    bench: Path, plugin: Path, rules: Rules, calls: Sequence[Call]
) -> list[float]:
    """Nanoseconds of a call, round by round."""
    data = struct.pack("<III", RANKS, DOMAINS, len(calls))
    for function, nbytes in calls:
        data += struct.pack("<QII", nbytes, FUNCTIONS.index(function), 0)
    with tempfile.TemporaryDirectory() as folder:
        save(rules, Path(folder, "rules"))
        environment = {"LAGOM_TUNER_RULES": str(Path(folder, "rules"))}
        done = subprocess.run(
            [bench, plugin, str(ROUNDS)],
            input=data,
            stdout=subprocess.PIPE,
            env=environment,
            check=True,
        )
    rows = [line.split() for line in done.stdout.splitlines()]
    usual = statistics.median(float(without) for _, without in rows)
    return [float(with_plugin) - usual for with_plugin, _ in rows]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    wanted = arguments.parse_args()
    cells = {(name, count): list[float]() for name in CASES for count in COUNTS}
    with tempfile.TemporaryDirectory() as folder:
        plugin = compile_plugin(Path(folder, NAME))
        bench = Path(folder, "bench")
        words = [*compiler(), "-O2", "-std=gnu11", "-I", str(SOURCES), "-o", str(bench)]
        subprocess.run([*words, str(HERE / "bench_tuner.c"), "-ldl"], check=True)
        load = os.getloadavg()[0]
        # In turns, since a machine may be half as fast for seconds on end.
        for _ in range(TURNS):
            for name, count in cells:
                rules, calls = CASES[name](random.Random(count), count)
                cells[name, count] += measured(bench, plugin, rules, calls)
    lines: list[str] = []
    for name in CASES:
        medians = [statistics.median(cells[name, count]) for count in COUNTS]
        slow = [statistics.quantiles(cells[name, count], n=10)[-1] for count in COUNTS]
        texts = [f"{m:.1f} ({s:.1f})" for m, s in zip(medians, slow, strict=True)]
        texts.append(f"{max(medians) / min(medians):.2f}")
        lines.append(f"| {name} | {' | '.join(texts)} |")
        print(lines[-1], flush=True)
    if wanted.docs:
        PAGE.write_text(page(lines, load))


def page(lines: Sequence[str], load: float) -> str:
    """The whole page."""
    heads = " | ".join(f"{count:,}" for count in COUNTS)
    return f"""\
# The tuner plugin

Measured by `python scripts/bench_tuner.py --docs` on {os.cpu_count()} cores of a \
{processor()}, with a load of {load:.1f} when it began: where that is more than there \
are cores, others were using them.

Nanoseconds that the plugin adds to one call of NCCL, against a plugin that does \
nothing: the median of {TURNS * ROUNDS} rounds of {CALLS:,} calls, and in brackets \
what a tenth of the rounds exceeds; {TURNS} processes for each cell, in turns. All \
rules are for one communicator; calls come in random order, those of a sequence in its \
own, and one directly after the other.

| rules, or places | {heads} | most / least |
|---|{"--:|" * (len(COUNTS) + 1)}
{chr(10).join(lines)}
"""


if __name__ == "__main__":
    main()
