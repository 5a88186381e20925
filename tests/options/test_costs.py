"""Our prices as XLA's profile: what is written, and that XLA goes by it."""

import re

import pytest

from lagom_jax.cost.replay import replay
from lagom_jax.options import changes, cost_profile, structure_of
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel, Loop, Program, Run

from ..cost.programs import ByName, kernel, launch, program, run, wait
from ..texts import parse
from .compiled import compile_again, compiled, replayed

LINE = re.compile(r'costs \{ name: "([^"]+)" cost_us: (\d+\.\d{3}) \}')


def read(text):
    """Names and microseconds of a profile, line by line."""
    return [
        (name, float(us))
        for name, us in (LINE.fullmatch(line).groups() for line in text.splitlines())
    ]


def write(costs):
    return "\n".join(f'costs {{ name: "{n}" cost_us: {us} }}' for n, us in costs)


def test_each_task_is_named_once_with_its_time_alone():
    step = program(launch("gather", 0), run("matmul"), wait(0), run("matmul 2"))
    times = {"gather": 30e-6, "matmul": 20e-6, "matmul 2": 1e-6}
    assert dict(read(cost_profile(replay(step, ByName(times))))) == {
        "gather": 30.0,
        "matmul": 20.0,
        "matmul 2": 1.0,
    }


def test_a_task_that_runs_often_costs_what_it_costs_once():
    step = Program("p", (Loop("l", (run("copy"),), 7, True),), 1)
    assert read(cost_profile(replay(step, ByName({"copy": 3e-6})))) == [("copy", 3.0)]


def test_what_takes_no_time_or_never_runs_is_left_out():
    step = Program("p", (run("free"), Loop("l", (run("copy"),), 0, True)), 1)
    assert cost_profile(replay(step, ByName({"free": 0.0, "copy": 1e-6}))) == ""


def test_tasks_behind_one_instruction_add_up():
    entry = parse("ENTRY main {\n x = f32[8] parameter(0)\n ROOT y = f32[8] tanh(x)\n}")
    (instruction,) = (
        i for i in entry.entry.instructions.values() if i.opcode == "tanh"
    )
    parts = [Kernel(f"part {n}", kernel("").work, instruction) for n in range(3)]
    step = Program("p", tuple(map(Run, parts)), 1)
    times = {f"part {n}": 1e-6 * (n + 1) for n in range(3)}
    assert read(cost_profile(replay(step, ByName(times)))) == [("y", 6.0)]


@pytest.mark.parametrize("step", ["chain", "fsdp"])
def test_names_are_those_of_the_schedule_and_unique(step):
    costs = read(cost_profile(replayed(step)))
    names = [name for name, _ in costs]
    assert len(set(names)) == len(names) > 5
    module = compiled(step).module
    scheduled = {
        i.name for c in module.computations.values() if c.sequence for i in c.sequence
    }
    assert set(names) <= scheduled
    assert all(us > 0 for _, us in costs)


@pytest.mark.slow
def test_xla_goes_by_the_costs():
    """Slow collectives get all that is there to hide them; fast ones a matmul each."""
    collectives = {site.name for site in replayed("chain").collectives()}
    names = [name for name, _ in read(cost_profile(replayed("chain")))]

    def told(collective, kernel):
        text = write((n, collective if n in collectives else kernel) for n in names)
        return compile_again("chain", fdo_profile=text.encode())

    slow, fast = structure_of(told(1000.0, 1.0)), structure_of(told(1.0, 1000.0))
    assert changes(slow, fast)
    alone = [structure.collectives["all-gather"][1] for structure in (slow, fast)]
    assert alone[0] > alone[1]


@pytest.mark.slow
def test_our_own_costs_are_taken():
    """XLA reads the text, and only the schedule may be another."""
    again = compile_again("chain", fdo_profile=cost_profile(replayed("chain")).encode())
    before, after = structure_of(compiled("chain")), structure_of(again)
    assert before.collectives["all-gather"][0] == after.collectives["all-gather"][0]
    assert before.kernels == after.kernels


def test_a_text_is_written_for_a_module_that_was_read():
    text = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[1024] parameter(0)
  start = f32[1024] all-reduce-start(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  work = f32[1024] multiply(x, x)
  done = f32[1024] all-reduce-done(start)
  ROOT both = f32[1024] add(done, work)
}"""
    step = build_program(parse(text))
    times = {"start": 5e-6, "work": 2e-6, "both": 1e-6}
    found = read(cost_profile(replay(step, ByName(times))))
    assert found == [("start", 5.0), ("work", 2.0), ("both", 1.0)]
