"""Profiles: of this machine's CPU backend, of GPUs as they write them, and others."""

import gzip

import pytest

from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.executions import Event, count_steps, executions
from lagom_jax.measurements.xplane import profile_files, read_profile, summarise

from .gpu_profile import profile, step_of_two_gpus


@pytest.fixture
def gpu_run(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(step_of_two_gpus())
    return path


def test_a_profile_of_the_cpu_backend(cpu_run):
    trace, dump = cpu_run
    step = read_profile(trace)
    assert (step.module, step.devices, step.steps) == ("jit_step", 8, 3)
    assert step.instructions.keys() >= {"all-gather", "all-reduce"}
    text = dump.read_text()
    for name, measured in step.instructions.items():
        assert f"%{name} = " in text
        assert measured.per_step == 1
        assert 0 < measured.median < 10
    # Of a collective the devices' times are one; of a kernel each device has its own.
    assert step.instructions["all-gather"].count == 3
    kernels = [m for name, m in step.instructions.items() if not name.startswith("all")]
    assert {measured.count for measured in kernels} == {24}


def test_a_profile_of_gpus(gpu_run):
    step = read_profile(gpu_run)
    assert (step.module, step.devices, step.steps) == ("jit_step", 2, 3)
    assert set(step.instructions) == {"start", "work"}
    work = step.instructions["work"]
    # Two kernels of one instruction are one execution; the tools' second view of the
    # same events is not counted.
    assert work.count == 6
    assert work.median == pytest.approx(24e-6)
    assert work.spread == 0


def test_of_a_collective_the_last_device_counts(gpu_run):
    gather = read_profile(gpu_run).instructions["start"]
    assert gather.seconds == pytest.approx((50e-6, 51e-6, 52e-6))


def test_kernels_without_an_instruction_are_told(gpu_run):
    step = read_profile(gpu_run)
    assert set(step.nameless) == {"loop_add_fusion_1", "Memset"}
    named = 6 * 24 + 2 * (50 + 51 + 52) + 3 * 5
    assert step.nameless_share == pytest.approx(6 * 9 / (6 * 9 + named))


def test_gzipped_is_the_same(gpu_run, tmp_path):
    packed = tmp_path / "packed.xplane.pb.gz"
    packed.write_bytes(gzip.compress(gpu_run.read_bytes()))
    assert read_profile(packed).instructions == read_profile(gpu_run).instructions


def test_the_newest_recording_counts_with_all_its_hosts(tmp_path):
    content = step_of_two_gpus()
    for recording, hosts in (("2026_01_01", 1), ("2026_02_01", 2)):
        folder = tmp_path / "plugins" / "profile" / recording
        folder.mkdir(parents=True)
        for host in range(hosts):
            (folder / f"host{host}.xplane.pb").write_bytes(content)
    assert [p.parent.name for p in profile_files(tmp_path)] == ["2026_02_01"] * 2
    assert read_profile(tmp_path).devices == 4


def test_the_module_that_takes_most_time_counts(tmp_path):
    def event(module, duration):
        return ("k", 0.0, duration, {"hlo_op": f"of_{module}", "hlo_module": module})

    path = tmp_path / "two.xplane.pb"
    line = {"Stream #1": [event("jit_small", 1.0), event("jit_big", 9.0)]}
    path.write_bytes(profile({"/device:GPU:0": line}))
    step = read_profile(path)
    assert (step.module, step.other_modules) == ("jit_big", ("jit_small",))
    assert set(step.instructions) == {"of_jit_big"}
    assert set(read_profile(path, module="jit_small").instructions) == {"of_jit_small"}
    with pytest.raises(MeasurementError, match="jit_big, jit_small"):
        read_profile(path, module="jit_other")


def test_a_loop_runs_its_instructions_often():
    events = [
        Event("g", "s", 10 * step + trip, 1.0, "k", op, "m")
        for step in range(2)
        for trip, op in enumerate(["a", "b", "a", "b", "a", "b", "c"])
    ]
    step = summarise(events)
    assert step.steps == 2
    assert [step.instructions[op].per_step for op in "abc"] == [3, 3, 1]


def test_another_run_is_another_execution():
    events = [Event("g", "s", n, 1.0, f"k{n}", "a", "m", run=f"r{n}") for n in range(4)]
    assert len(executions(events)["a"]["g"]) == 4
    assert count_steps(events) == 4


GARBAGE = {
    "noise.xplane.pb": b"\xff\x00 not a profile",
    "text.xplane.pb": b"HloModule step",
    "cut.xplane.pb": step_of_two_gpus()[:1000],
    "cut.xplane.pb.gz": gzip.compress(step_of_two_gpus())[:100],
    "plain.xplane.pb.gz": b"never packed",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(GARBAGE[name])
    with pytest.raises(MeasurementError, match=r"cannot be read as a profile.*trace"):
        read_profile(path)


def test_a_profile_without_instructions_is_refused(tmp_path):
    empty = tmp_path / "empty.xplane.pb"
    empty.write_bytes(b"")
    with pytest.raises(MeasurementError, match="names an HLO instruction"):
        read_profile(empty)


def test_a_folder_without_a_profile_is_refused(tmp_path):
    with pytest.raises(MeasurementError, match="holds no"):
        read_profile(tmp_path)
