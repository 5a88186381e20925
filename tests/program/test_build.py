"""Programs from small scheduled modules, written by hand in HLO text."""

import pytest

from lagom_jax.errors import HloError
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Branch, Kernel, Launch, Loop, Run, Stream, Wait

from ..texts import parse

SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""


def names(block):
    """A block as a compact list of strings."""
    found = []
    for node in block:
        if isinstance(node, Run):
            found.append(node.task.name)
        elif isinstance(node, Launch):
            found.append(f"{node.task.name} on {node.stream.value}")
        elif isinstance(node, Wait):
            found.append("wait")
        elif isinstance(node, Loop):
            found.append((node.trips, names(node.body)))
        elif isinstance(node, Branch):
            found.append(tuple(names(arm) for arm in node.arms))
    return found


def test_start_and_done_become_launch_and_wait():
    program = build_program(
        parse(
            SUM
            + """
ENTRY main {
  x = f32[1024] parameter(0)
  y = f32[1024] parameter(1)
  start = f32[1024] all-reduce-start(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  work = f32[1024] multiply(y, y)
  done = f32[1024] all-reduce-done(start)
  ROOT both = f32[1024] add(done, work)
}"""
        )
    )
    assert names(program.body) == ["start on collective", "work", "wait", "both"]
    launch, wait = program.body[0], program.body[2]
    assert isinstance(launch, Launch)
    assert isinstance(wait, Wait)
    assert wait.tokens == (launch.token,)


def test_sync_pair_runs_on_the_compute_stream():
    program = build_program(
        parse(
            """
ENTRY main {
  x = f32[1024] parameter(0)
  start = (f32[1024], f32[2048]) all-gather-start(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, backend_config={"collective_backend_config":{"is_sync":true}}
  ROOT done = f32[2048] all-gather-done(start)
}"""
        )
    )
    (node,) = program.body
    assert isinstance(node, Run)
    assert isinstance(node.task, Collective)
    assert node.task.is_sync
    assert [sync for _, _, sync in program.collectives()] == [True]


def test_plain_collective_is_synchronous():
    program = build_program(
        parse(
            """
ENTRY main {
  x = f32[1024] parameter(0)
  ROOT gathered = f32[2048] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
}"""
        )
    )
    assert names(program.body) == ["gathered"]
    assert next(program.collectives())[2]


def test_async_start_around_a_collective():
    program = build_program(
        parse(
            SUM
            + """
wrapped {
  p = f32[1024] parameter(0)
  ROOT scattered = f32[512] reduce-scatter(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, to_apply=sum
}
ENTRY main {
  x = f32[1024] parameter(0)
  start = ((f32[1024]), f32[512]) async-start(x), calls=wrapped
  work = f32[1024] multiply(x, x)
  ROOT done = f32[512] async-done(start)
}"""
        )
    )
    assert names(program.body) == ["start on collective", "work", "wait"]
    ((found, _, _),) = program.collectives()
    assert (found.kind, found.bytes, found.result_bytes) == (
        "reduce-scatter",
        4096,
        2048,
    )


def test_async_start_around_a_kernel_runs_beside():
    program = build_program(
        parse(
            """
wrapped {
  p = f32[1024] parameter(0)
  ROOT squared = f32[1024] multiply(p, p)
}
ENTRY main {
  x = f32[1024] parameter(0)
  start = ((f32[1024]), f32[1024]) async-start(x), calls=wrapped
  work = f32[1024] add(x, x)
  done = f32[1024] async-done(start)
  ROOT both = f32[1024] add(done, work)
}"""
        )
    )
    assert names(program.body) == ["squared on async compute", "work", "wait", "both"]


LOOP = """
body {{
  state = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[1024] get-tuple-element(state), index=1
  y = f32[1024] multiply(x, x)
  ROOT out = (s32[], f32[1024]) tuple(next, y)
}}
condition {{
  state.1 = (s32[], f32[1024]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  limit = s32[] constant(7)
  ROOT go = pred[] compare(i.1, limit), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  x.1 = f32[1024] parameter(0)
  init = (s32[], f32[1024]) tuple(zero, x.1)
  loop = (s32[], f32[1024]) while(init), condition=condition, body=body{config}
  ROOT result = f32[1024] get-tuple-element(loop), index=1
}}"""


def test_loop_with_known_trips():
    config = ', backend_config={"known_trip_count":{"n":"7"}}'
    program = build_program(parse(LOOP.format(config=config)))
    assert names(program.body) == [(7, ["next", "y"])]
    assert program.unknown_loops() == ()
    assert {t.name: n for t, n, _ in program.tasks()} == {"next": 7, "y": 7}


@pytest.mark.parametrize(
    ("said", "copies"),
    [
        ("", 1),
        (',"known_init_step":{"init":"0","step":"1"}', 1),
        (',"known_init_step":{"init":"1","step":"2"}', 2),
    ],
)
def test_a_doubled_loop_counts_by_two(said, copies):
    config = f', backend_config={{"known_trip_count":{{"n":"7"}}{said}}}'
    program = build_program(parse(LOOP.format(config=config)))
    (loop,) = (node for node in program.body if isinstance(node, Loop))
    assert (loop.trips, loop.copies) == (7, copies)


def test_loop_with_unknown_trips_is_said_to_be_unknown():
    program = build_program(parse(LOOP.format(config="")))
    assert names(program.body) == [(1, ["next", "y"])]
    assert program.unknown_loops() == ("loop",)


def test_nested_loops_multiply():
    program = build_program(
        parse(
            """
inner_body {
  p = f32[8] parameter(0)
  ROOT m = f32[8] multiply(p, p)
}
inner_condition {
  q = f32[8] parameter(0)
  ROOT t = pred[] constant(true)
}
outer_body {
  r = f32[8] parameter(0)
  ROOT inner = f32[8] while(r), condition=inner_condition, body=inner_body, backend_config={"known_trip_count":{"n":"5"}}
}
outer_condition {
  s = f32[8] parameter(0)
  ROOT u = pred[] constant(true)
}
ENTRY main {
  x = f32[8] parameter(0)
  ROOT outer = f32[8] while(x), condition=outer_condition, body=outer_body, backend_config={"known_trip_count":{"n":"3"}}
}"""
        )
    )
    assert names(program.body) == [(3, [(5, ["m"])])]
    assert [(t.name, n) for t, n, _ in program.tasks()] == [("m", 15)]


def test_calls_are_written_in_place_and_branches_keep_their_arms():
    program = build_program(
        parse(
            """
once {
  a = f32[8] parameter(0)
  ROOT twice = f32[8] add(a, a)
}
other {
  b = f32[8] parameter(0)
  ROOT same = f32[8] copy(b)
}
ENTRY main {
  x = f32[8] parameter(0)
  which = s32[] parameter(1)
  called = f32[8] call(x), to_apply=once
  ROOT chosen = f32[8] conditional(which, called, called), branch_computations={once, other}
}"""
        )
    )
    assert names(program.body) == ["twice", (["twice"], ["same"])]


def test_send_and_recv_that_end_in_the_next_iteration():
    """A pipelined transfer: the body waits for what the one before it received."""
    program = build_program(
        parse(
            """
body {
  state = (f32[8], (f32[8], u32[], token[])) parameter(0)
  x = f32[8] get-tuple-element(state), index=0
  before = (f32[8], u32[], token[]) get-tuple-element(state), index=1
  got = (f32[8], token[]) recv-done(before), channel_id=1
  data = f32[8] get-tuple-element(got), index=0
  y = f32[8] add(x, data)
  order = token[] after-all()
  receiving = (f32[8], u32[], token[]) recv(order), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
  sending = (f32[8], u32[], token[]) send(y, order), channel_id=2, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
  sent = token[] send-done(sending), channel_id=2
  ROOT out = (f32[8], (f32[8], u32[], token[])) tuple(y, receiving)
}
condition {
  state.1 = (f32[8], (f32[8], u32[], token[])) parameter(0)
  ROOT t = pred[] constant(true)
}
ENTRY main {
  x.1 = f32[8] parameter(0)
  order.1 = token[] after-all()
  first = (f32[8], u32[], token[]) recv(order.1), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
  init = (f32[8], (f32[8], u32[], token[])) tuple(x.1, first)
  loop = (f32[8], (f32[8], u32[], token[])) while(init), condition=condition, body=body, backend_config={"known_trip_count":{"n":"4"}}
  last = (f32[8], u32[], token[]) get-tuple-element(loop), index=1
  end = (f32[8], token[]) recv-done(last), channel_id=1
  ROOT result = f32[8] get-tuple-element(loop), index=0
}"""
        )
    )
    assert names(program.body) == [
        "first on receive",
        (4, ["wait", "y", "receiving on receive", "sending on send", "wait"]),
        "wait",
    ]
    first, loop, end = program.body
    assert isinstance(loop, Loop)
    receiving = next(
        n for n in loop.body if isinstance(n, Launch) and n.stream is Stream.RECEIVE
    )
    both = tuple(sorted((first.token, receiving.token)))
    assert loop.body[0].tokens == both
    assert end.tokens == both
    assert {c.kind: c.bytes for c, _, _ in program.collectives()} == {
        "recv": 32,
        "send": 32,
    }


def test_kernels_carry_their_work():
    program = build_program(
        parse(
            """
ENTRY main {
  x = bf16[64,128] parameter(0)
  w = bf16[128,32] parameter(1)
  ROOT y = bf16[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
        )
    )
    (node,) = program.body
    assert isinstance(node, Run)
    assert isinstance(node.task, Kernel)
    assert node.task.work.flops == 2 * 64 * 128 * 32


def test_module_without_schedule_is_refused():
    module = parse("ENTRY main { ROOT x = f32[8] parameter(0) }", scheduled=False)
    with pytest.raises(HloError, match="is not scheduled"):
        build_program(module)
