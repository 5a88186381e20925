"""Independent work, against reachability computed the plain way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.program.build import build_program
from lagom_jax.program.slack import independent_seconds

from ..texts import parse

MODULE = """
ENTRY main {
  x = f32[8] parameter(0)
  before = f32[8] add(x, x)
  beside = f32[8] multiply(x, x)
  start = (f32[8], f32[16]) all-gather-start(before), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  also = f32[8] add(beside, x)
  done = f32[16] all-gather-done(start)
  after = f32[16] add(done, done)
  held = f32[8] negate(x), control-predecessors={done}
  ROOT out = (f32[16], f32[8], f32[8]) tuple(after, also, held)
}"""


def test_what_is_needed_and_what_needs_is_not_independent():
    program = build_program(parse(MODULE))
    alone = {"before": 1.0, "beside": 2.0, "also": 4.0, "after": 8.0, "held": 16.0}
    (seconds,) = independent_seconds(
        [c for c, _, _ in program.collectives()], alone
    ).values()
    assert seconds == 2.0 + 4.0


def test_collectives_of_one_start_have_the_same_independent_work():
    program = build_program(
        parse(
            """
wrapped {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  a = f32[16] all-gather(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  b = f32[16] all-gather(q), channel_id=2, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  ROOT both = (f32[16], f32[16]) tuple(a, b)
}
ENTRY main {
  x = f32[8] parameter(0)
  before = f32[8] add(x, x)
  start = ((f32[8], f32[8]), (f32[16], f32[16])) async-start(before, x), calls=wrapped
  beside = f32[8] multiply(x, x)
  done = (f32[16], f32[16]) async-done(start)
  first = f32[16] get-tuple-element(done), index=0
  after = f32[16] add(first, first)
  ROOT out = (f32[16], f32[8]) tuple(after, beside)
}"""
        )
    )
    alone = {"before": 1.0, "beside": 2.0, "after": 4.0}
    found = independent_seconds([c for c, _, _ in program.collectives()], alone)
    assert list(found.values()) == [2.0, 2.0]


@given(st.integers(0, 2**32 - 1))
def test_equals_plain_reachability(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 30))
    operands = [
        sorted({int(random.integers(0, i + 1)) for _ in range(2)}) for i in range(count)
    ]
    gathers = {int(i) for i in random.integers(0, count, size=3)}
    lines = ["n0 = f32[8] parameter(0)"]
    for i, needed in enumerate(operands, start=1):
        args = ", ".join(f"n{j}" for j in needed[:1] * 2 + needed[1:])
        if i - 1 in gathers:
            lines.append(
                f"n{i} = f32[8] collective-permute(n{needed[0]}), channel_id={i}, "
                "source_target_pairs={{0,1}}"
            )
            operands[i - 1] = needed[:1]
        else:
            lines.append(
                f"n{i} = f32[8] fusion({args}), kind=kLoop, calls=f{args.count('n')}"
            )
    lines.append(
        f"ROOT out = ({', '.join(['f32[8]'] * (count + 1))}) tuple("
        + ", ".join(f"n{i}" for i in range(count + 1))
        + ")"
    )
    text = "".join(
        f"f{n} {{\n"
        + "".join(f"p{n}{k} = f32[8] parameter({k})\n" for k in range(n))
        + f"ROOT r{n} = f32[8] add(p{n}0, p{n}1)\n}}\n"
        for n in (2, 3)
    )
    program = build_program(parse(text + "ENTRY main {\n" + "\n".join(lines) + "\n}"))
    alone = {f"n{i}": float(2**i) for i in range(1, count + 1) if i - 1 not in gathers}

    needs = {i: set(operands[i - 1]) for i in range(1, count + 1)} | {0: set()}
    closure = {}
    for i in range(count + 1):
        closure[i] = {i}.union(*(closure[j] for j in needs[i]))
    found = independent_seconds([c for c, _, _ in program.collectives()], alone)
    for collective, seconds in found.items():
        me = int(collective.name[1:])
        free = [
            value
            for name, value in alone.items()
            if me not in closure[int(name[1:])] and int(name[1:]) not in closure[me]
        ]
        assert seconds == pytest.approx(sum(free), rel=1e-6)
