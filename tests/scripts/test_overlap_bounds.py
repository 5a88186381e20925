"""Bounds of a step: nothing lies below them, and they use what each loop says."""

import math

from hypothesis import given
from hypothesis import strategies as st
from overlap_bounds import BoundKind, seconds_at_least

from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.splices import shifted
from lagom_jax.order.streams import inside_domains
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import FINE

from ..depth import slow_examples
from ..order.modules import (
    H100,
    MODEL,
    PART,
    SUM,
    WHOLE,
    descent_parts,
    gather,
    gathered,
    matmul,
    module,
    steps,
)
from ..texts import parse

FEW = slow_examples(8, 100)


@FEW
@given(steps(), st.booleans(), st.data())
def test_no_order_and_no_settings_take_less(lines, second_stream, data):
    made = module(*lines)
    builder = Builder(made)
    if second_stream:
        builder = Builder(made, inside_domains(builder.program(), H100))
    least = seconds_at_least(builder, H100, MODEL, BoundKind)

    stage, found, terms = descent_parts(builder, "tuner", FINE)
    order, places = found.given, st.integers(0, len(found.units) - 1)
    for _ in range(8):
        splice = shifted(found.units, order, data.draw(places), data.draw(places))
        order = splice.applied(order)
        for number, group in enumerate(stage.space.groups):
            candidates = st.integers(0, len(group.candidates) - 1)
            terms.choose(number, data.draw(candidates))
        seconds = IncrementalReplay(found, terms, order).seconds
        assert seconds >= least * (1 - 1e-9)


def loop(name, use):
    """A body with a matmul of what was gathered, or of what was there, 8 times."""
    carried = f"(s32[], {WHOLE}, {PART})"
    lines = (
        f"{name}.all = {carried} parameter(0)",
        f"{name}.i = s32[] get-tuple-element({name}.all), index=0",
        f"{name}.there = {WHOLE} get-tuple-element({name}.all), index=1",
        f"{name}.part = {PART} get-tuple-element({name}.all), index=2",
        gather(f"{name}.start", f"{name}.part"),
        gathered(f"{name}.came", f"{name}.start"),
        matmul(f"{name}.use", f"{name}.{use}", f"{name}.{use}"),
        matmul(f"{name}.more", f"{name}.use", f"{name}.there"),
        f"ROOT {name}.next = {carried} tuple({name}.i, {name}.more, {name}.part)",
    )
    body = "\n".join(f"  {line}" for line in lines)
    return f"""
{name} {{
{body}
}}

{name}.less {{
  {name}.again = {carried} parameter(0)
  ROOT {name}.yes = pred[] constant(true)
}}
"""


def looped(*uses):
    """A step of loops, one after another."""
    carried = f"(s32[], {WHOLE}, {PART})"
    names = [f"body{number}" for number in range(len(uses))]
    trips = 'backend_config={"known_trip_count":{"n":"8"}}'
    lines = [f"  at0 = {carried} parameter(0)"]
    for number, name in enumerate(names, 1):
        lines.append(
            f"  {'ROOT ' if number == len(names) else ''}at{number} = {carried} "
            f"while(at{number - 1}), condition={name}.less, body={name}, {trips}"
        )
    loops = "".join(loop(name, use) for name, use in zip(names, uses, strict=True))
    entry = "ENTRY main {\n" + "\n".join(lines) + "\n}"
    return Builder(parse(f"{SUM}{loops}{entry}", header=", num_partitions=8"))


def test_each_loop_takes_what_its_own_bound_says():
    def least(kinds, *uses):
        return seconds_at_least(looped(*uses), H100, MODEL, kinds)

    waits, hidden = least(BoundKind, "came"), least(BoundKind, "there")
    assert math.isclose(least(BoundKind, "came", "there"), waits + hidden)
    # The matmuls that need what was gathered have nothing beside them.
    assert math.isclose(
        least([BoundKind.OVERLAP], "came"), least([BoundKind.CHAIN], "came")
    )
    assert least([BoundKind.CHAIN], "there") < hidden < waits


def test_what_one_communicator_runs_is_done_in_turn():
    def least(*collectives):
        lines = [f"ROOT end = {WHOLE} add(p0, p1)"]
        for number, begin in enumerate(collectives):
            lines.insert(0, gathered(f"came{number}", f"start{number}"))
            lines.insert(0, begin(f"start{number}", f"q{number}"))
        return seconds_at_least(Builder(module(*lines)), H100, MODEL, [BoundKind.TURN])

    def of_four(name, operand):
        groups = "replica_groups={{0,1,2,3},{4,5,6,7}}"
        return gather(name, operand).replace(
            "replica_groups={{0,1,2,3,4,5,6,7}}", groups
        )

    assert math.isclose(least(gather, gather), 2 * least(gather))
    # Others have a communicator of their own: the slower of the two needs more.
    assert least(gather, of_four) == max(least(gather), least(of_four))
