"""Scheduled modules in HLO text, some of them random."""

from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import COARSE, named
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from ..texts import parse

H100 = Cluster.parse("h100:1x8")
MODEL = CostModel.of(H100)

SUM = """
sum {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] add(a, b)
}
"""
WIDTH = 4096
PART = f"bf16[{WIDTH // 8},{WIDTH}]"
WHOLE = f"bf16[{WIDTH},{WIDTH}]"


def gather(name, operand):
    return (
        f"{name} = ({PART}, {WHOLE}) all-gather-start({operand}), channel_id=1, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true"
    )


def reduction(name, operand):
    return (
        f"{name} = {WHOLE} all-reduce-start({operand}), channel_id=1, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=sum"
    )


def gathered(name, start):
    return f"{name} = {WHOLE} all-gather-done({start})"


def reduced(name, start):
    return f"{name} = {WHOLE} all-reduce-done({start})"


def matmul(name, left, right):
    dimensions = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return f"{name} = {WHOLE} dot({left}, {right}), {dimensions}"


def add(name, *operands):
    return f"{name} = {WHOLE} add({', '.join(operands)})"


def update(name, target, source, index):
    return (
        f"{name} = {WHOLE} dynamic-update-slice({target}, {source}, {index}, {index})"
    )


def scatter(name, target, indices, source):
    return (
        f"{name} = {WHOLE} scatter({target}, {indices}, {source}), "
        "update_window_dims={0,1}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=sum"
    )


def module(*lines, parameters=2, parts=2):
    """An entry of 8 devices: `p0`, ... whole arrays and `q0`, ... parts of such."""
    first = [
        *(f"p{n} = {WHOLE} parameter({n})" for n in range(parameters)),
        *(f"q{n} = {PART} parameter({parameters + n})" for n in range(parts)),
        f"index = s32[] parameter({parameters + parts})",
    ]
    body = "\n".join(f"  {line}" for line in (*first, *lines))
    return parse(f"{SUM}\nENTRY main {{\n{body}\n}}", header=", num_partitions=8")


@st.composite
def steps(draw):
    """Lines of random work and collectives, each waited for somewhere."""
    values, parts, lines, open_ = ["p0", "p1"], ["q0", "q1"], [], []
    for number in range(draw(st.integers(4, 16))):
        name, value = f"v{number}", st.sampled_from(values)
        what = draw(
            st.sampled_from(["dot", "add", "update", "gather", "reduce", "done"])
        )
        if what == "dot":
            lines.append(matmul(name, draw(value), draw(value)))
        elif what == "add":
            lines.append(add(name, draw(value), draw(value)))
        elif what == "update":
            lines.append(
                update(name, draw(value), draw(st.sampled_from(parts)), "index")
            )
        elif what == "gather":
            lines.append(gather(name, draw(st.sampled_from(parts))))
            open_.append((gathered, name))
            continue
        elif what == "reduce":
            lines.append(reduction(name, draw(value)))
            open_.append((reduced, name))
            continue
        elif open_:
            done, start = open_.pop(draw(st.integers(0, len(open_) - 1)))
            lines.append(done(name, start))
        else:
            continue
        values.append(name)
    for done, start in open_:
        lines.append(done(f"{start}.done", start))
        values.append(f"{start}.done")
    # Not all of them, so that some memory is free again before the end.
    results = values[2 :: draw(st.integers(1, 3))]
    shape = ", ".join([WHOLE] * len(results))
    return (*lines, f"ROOT all = ({shape}) tuple({', '.join(results)})")


def program_in(module, ordering):
    """The step in an order that was found for it."""
    scheduled = module.scheduled
    orders = {
        scheduled[number].id: [scheduled[number].sequence[place] for place in places]
        for number, places in ordering.sequences.items()
    }
    aside = {
        scheduled[number].sequence[place].id
        for number, places in ordering.on_second_stream.items()
        for place in places
    }
    return Builder(module, aside).program(orders)


def descent_parts(builder, controls="sequence", grid=COARSE):
    """An entry, the costs of its tasks, and candidates of its groups.

    One builder is for both: tasks are the same objects, so that groups have launches.
    """
    program = builder.program()
    stage = Stage(program, space_of(program, H100, named(controls), grid), MODEL)
    terms = Terms(stage, stage.untouched)
    return stage, sequence_of(builder, builder.module.entry, Inner({}, {})), terms
