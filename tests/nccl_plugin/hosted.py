"""Calls for the C host that stands in for NCCL, and its answers."""

import dataclasses
import os
import random
import struct
import subprocess
from pathlib import Path

from lagom_jax.nccl_plugin.build import SOURCES, compiler
from lagom_jax.nccl_plugin.reference import ReferenceCommunicator
from lagom_jax.nccl_plugin.rules import (
    ALGORITHMS,
    FUNCTIONS,
    Answer,
    Place,
    Rule,
    Rules,
    Scope,
)
from lagom_jax.plan.setting import PROTOCOLS

HERE = Path(__file__).parent
ENTRIES = [(a, p) for a in ALGORITHMS for p in PROTOCOLS]
NCCLS_CHUNK = 12345
_SHAPE = struct.Struct("<IIII")
_CALL = struct.Struct("<IIQIIII")
_ANSWER = struct.Struct("<iIiIII")


@dataclasses.dataclass(frozen=True)
class Shape:
    ranks: int
    hosts: int
    domains: int


@dataclasses.dataclass(frozen=True)
class Call:
    communicator: int
    function: str
    nbytes: int
    pipe_ops: int = 1
    possible: frozenset = frozenset(ENTRIES)
    algorithms: int = len(ALGORITHMS)
    ends_group: bool = True


@dataclasses.dataclass(frozen=True)
class Answered:
    """What became of a call: entry taken, entries changed, channels, three chunks."""

    chosen: int
    changed: int
    channels: int
    chunks: tuple


def build(target, source, *options):
    words = [*compiler(), "-std=c11", "-I", str(SOURCES), *options, "-o", str(target)]
    done = subprocess.run(
        [*words, str(source), "-ldl", "-pthread"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


def ask(host, plugin, version, threads, shapes, calls, environment):
    """Runs the host; its answers, and what was logged."""
    data = struct.pack("<II", len(shapes), len(calls))
    data += b"".join(_SHAPE.pack(s.ranks, s.hosts, s.domains, 0) for s in shapes)
    data += b"".join(map(_packed, calls))
    mine = {
        k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "LAGOM_"))
    }
    done = subprocess.run(
        [host, plugin, str(version), str(threads)],
        input=data,
        capture_output=True,
        env=mine | environment,
    )
    assert done.returncode == 0, done.stderr.decode()
    answers = [
        Answered(r[0], r[1], r[2], r[3:]) for r in _ANSWER.iter_unpack(done.stdout)
    ]
    return answers, done.stderr.decode()


def _packed(call):
    mask = sum(1 << i for i, entry in enumerate(ENTRIES) if entry in call.possible)
    return _CALL.pack(
        call.communicator,
        FUNCTIONS.index(call.function),
        call.nbytes,
        call.pipe_ops,
        mask,
        call.algorithms,
        call.ends_group,
    )


def expected(rules, version, shapes, calls, **kwargs):
    """What the reference answers to the same calls."""
    found = [None] * len(calls)
    for number, shape in enumerate(shapes):
        domains = shape.domains if version >= 5 else None
        one = ReferenceCommunicator(
            rules, ranks=shape.ranks, hosts=shape.hosts, domains=domains, **kwargs
        )
        group = []
        for place, call in enumerate(calls):
            if call.communicator != number:
                continue
            group.append((place, call, _asked(one, call)))
            if call.ends_group:
                for at, member, (chosen, changed, channels) in group:
                    chunks = _chunks(one, version, member, chosen)
                    found[at] = Answered(chosen, changed, channels, chunks)
                group = []
        for at, _, (chosen, changed, channels) in group:
            found[at] = Answered(chosen, changed, channels, (0, 0, 0))
    return found


def _asked(one, call):
    here = [e for e in ENTRIES[: 3 * call.algorithms] if e in call.possible]
    answer = one.asked(call.function, call.nbytes, call.pipe_ops, set(here))
    forced = None
    if answer is not None and answer.algorithm is not None:
        forced = ENTRIES.index((answer.algorithm, answer.protocol))
    # By itself the host's NCCL takes the last entry, which costs least.
    usual = ENTRIES.index(here[-1]) if here else -1
    channels = (answer.channels or 0) if answer else 0
    return (
        (usual if forced is None else forced),
        (1 << forced if forced is not None else 0),
        channels,
    )


def _chunks(one, version, call, chosen):
    if version < 6 or chosen < 0:
        return (0, 0, 0)
    algorithm, protocol = ENTRIES[chosen]
    return tuple(
        one.chunk(call.function, algorithm, protocol, NCCLS_CHUNK) for _ in range(3)
    )


def random_answer(draw: random.Random) -> Answer:
    chosen = draw.choice(ENTRIES) if draw.random() < 0.8 else (None, None)
    channels = draw.randint(1, 64) if draw.random() < 0.7 else None
    chunk = draw.randint(1, 3_000_000) if draw.random() < 0.7 else None
    return Answer(*chosen, channels, chunk)


def random_rules(draw: random.Random, count: int, *, places: bool) -> tuple:
    """Rules with overlaps, and the sizes about which calls should be made."""
    edges = sorted({int(2 ** draw.uniform(0, 36)) for _ in range(max(4, count))})
    edges += [0, 1, (1 << 64) - 1]
    shapes = [
        Shape(8, 1, 1),
        Shape(8, 2, 2),
        Shape(16, 2, 2),
        Shape(16, 4, 2),
        Shape(4, 1, 1),
    ]
    scopes = (
        Scope(8, domains=1),
        Scope(16, hosts=4, domains=2),
        Scope(8),
        Scope(16),
        Scope(16, hosts=2),
    )
    made = []
    for scope in scopes:
        rules = []
        for _ in range(count // len(scopes)):
            least, most = sorted((draw.choice(edges), draw.choice(edges)))
            if draw.random() < 0.5:
                least = most
            pipe_ops = draw.choice((None, None, 1, 2))
            rules.append(
                Rule(draw.choice(FUNCTIONS), least, most, random_answer(draw), pipe_ops)
            )
        sequences = ()
        if places:
            sequences = tuple(
                random_sequence(draw, edges, number)
                for number in range(draw.randint(0, 2))
            )
        made.append(dataclasses.replace(scope, rules=tuple(rules), sequences=sequences))
    return Rules(tuple(made)), shapes, edges


def random_sequence(draw, edges, number):
    few = [(draw.choice(FUNCTIONS), draw.choice(edges)) for _ in range(4)]
    # One call that nothing else has, so that the sequence can be recognised.
    own = ("all-reduce", 1_000_003 + number)
    calls = [draw.choice(few) for _ in range(draw.randint(1, 40))] + [own]
    return tuple(
        Place(*call, random_answer(draw) if draw.random() < 0.8 else None)
        for call in calls
    )


def random_calls(draw, rules, shapes, edges, count):
    """Calls at the edges of rules and elsewhere, and sequences with faults in them."""
    calls = []
    while len(calls) < count:
        number = draw.randrange(len(shapes))
        shape = shapes[number]
        scope = rules.scope_of(shape.ranks, shape.hosts, shape.domains)
        if scope is not None and scope.sequences and draw.random() < 0.3:
            sequence = draw.choice(scope.sequences) * draw.randint(1, 2)
            start = draw.randrange(len(sequence))
            keys = [(p.function, p.nbytes) for p in sequence[start:]]
            keys = [key for key in keys if draw.random() < 0.98]
        else:
            near = draw.choice(edges) + draw.choice((-1, 0, 0, 1))
            nbytes = min(max(near, 0), (1 << 64) - 1)
            keys = [(draw.choice(FUNCTIONS), nbytes)]
        for function, nbytes in keys:
            share = draw.choice((0.0, 0.5, 0.9, 1.0))
            calls.append(
                Call(
                    number,
                    function,
                    nbytes,
                    draw.choice((1, 1, 2, 3)),
                    frozenset(e for e in ENTRIES if draw.random() < share),
                    draw.choice((len(ALGORITHMS), len(ALGORITHMS), 6)),
                    draw.random() < 0.8,
                )
            )
    return calls[:count]
