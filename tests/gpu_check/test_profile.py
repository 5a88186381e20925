"""Calibrating with one step's profile: of this processor, and as GPUs write them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from gpu_stages import profile
from gpu_stages.profiles.beside import Beside
from gpu_stages.profiles.recording import Recording, Subject, contents
from gpu_stages.registry import module_of
from gpu_stages.result import StageResult
from gpu_stages.running import run_stage
from gpu_stages.stage import CannotRunError, Request, Spread
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import price_of
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo import read_module
from lagom_jax.schedule.build import build_program
from tests.measure import gpu_profile

CLUSTER = Cluster.parse("h100:1x1")
STEPS = 3


@pytest.mark.slow
def test_a_dry_run_calibrates_with_one_step_and_predicts_another(tmp_path):
    request = Request("h100", True, 280.0, tmp_path / "profile")
    found = StageResult.read(run_stage(module_of("profile"), request, print))
    assert found.status == "ran", (found.why, found.last_lines)
    seen, unseen = (subject.name for subject in profile._subjects(dry=True))
    steps = {(row.series, row.what): row for row in found.rows}
    for name, kept_out in ((seen, False), (unseen, True)):
        step = steps["steps", name]
        # A model of GPUs is far too fast for a CPU, and a calibration goes that way.
        assert step.predicted < step.fitted < step.measured.median
        assert step.kept_out == kept_out
        kinds = [row for row in found.rows if row.what.endswith(f": {name}")]
        assert {"matmul", "fusion"} <= {row.what.split(":")[0] for row in kinds}
    assert {score.kept_out for score in found.scores} == {True, False}
    assert len(found.scores) == 8
    assert any("with CUDA graphs" in line for line in found.findings)
    assert (tmp_path / "profile" / "calibration.json").exists()


# As a GPU writes it


@pytest.fixture(scope="module")
def compiled():
    """A step of two matmuls that differ in size, compiled for an H100."""

    def step(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w[:, :256])

    shapes = [
        jax.ShapeDtypeStruct(size, "bfloat16") for size in ((4096, 2048), (2048, 2048))
    ]
    return compile_step(lower(step, *shapes), CLUSTER)


@pytest.fixture
def recorded(compiled, tmp_path):
    """A recording in which each kernel takes so many times what the model says."""
    numbers = itertools.count()

    def make(factor, *, idle=0.0, nameless=0.0, named=True, others=False):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        program = folder / "step.hlo.pb"
        program.write_bytes(compiled.module_bytes)
        tasks = [
            (task, runs)
            for task, runs, _ in build_program(
                read_module(compiled.module_bytes)
            ).tasks()
        ]
        prices, events, now = CostModel.of(CLUSTER), [], 0.0
        for _ in range(STEPS):
            for task, runs in tasks:
                for _ in range(runs):
                    took = 1e6 * factor * price_of(task, prices).seconds
                    stats = {"hlo_op": task.name, "hlo_module": compiled.name}
                    events.append((f"k_{task.name}", now, took, stats if named else {}))
                    now += took
            busy = now if not events else now / (len(events) // len(tasks))
            if nameless:
                events.append(("Memset", now, nameless * busy, {}))
                now += nameless * busy
        if others:
            stats = {"hlo_op": "add", "hlo_module": "jit_other"}
            events.append(("k", now, 0.001, stats))
        trace = folder / "run.xplane.pb"
        planes = {"/device:GPU:0": {"Stream #13(Compute)": events}}
        trace.write_bytes(gpu_profile.profile(planes))
        step = 1e-3 * now / STEPS / (1 - idle)
        return Recording(
            f"times {factor:g}", Spread(step, step, step, 5), program, trace
        )

    return make


def read(recording):
    return Beside.read(recording, CLUSTER)


def test_a_calibration_finds_by_how_much_the_model_is_off(recorded):
    seen = read(recorded(1.5))
    calibration = seen.calibration()
    before, after = (
        abs(seen.predicted(used) / seen.recording.milliseconds.median - 1)
        for used in (None, calibration)
    )
    assert before == pytest.approx(1 / 3, abs=0.02)
    # The prior holds each curve a little back.
    assert after < before / 2
    for used, error in ((None, 1 / 3), (calibration, 1 / 6)):
        kinds = seen.kinds(used)
        assert "matmul" in kinds
        assert all(kind.error <= error + 0.01 for kind in kinds.values())
    assert list(profile.findings(seen)) == []
    assert list(profile.of_calibration(calibration)) == []


def test_a_model_that_is_right_stays_right(recorded):
    seen = read(recorded(1.0))
    calibration = seen.calibration()
    # A profile has whole nanoseconds.
    assert seen.predicted(calibration) == pytest.approx(seen.predicted(None), rel=1e-3)
    for score in profile.scores(seen, True, calibration):
        assert score.kept_out
        assert score.value == pytest.approx(0.0, abs=0.02)


def test_measured_kinds_add_up_to_the_step(recorded):
    seen = read(recorded(2.0))
    kinds = seen.kinds(None).values()
    step = seen.recording.milliseconds.median
    assert sum(kind.measured.median for kind in kinds) == pytest.approx(step, rel=1e-3)
    assert {kind.measured.count for kind in kinds} == {STEPS}
    assert seen.busy() == pytest.approx(step, rel=1e-3)
    assert seen.matched_share() == pytest.approx(1.0)


def test_time_of_no_instruction_and_idle_time_are_told(recorded):
    seen = read(recorded(1.0, nameless=0.25, idle=0.2, others=True))
    nameless, idle, others = profile.findings(seen)
    assert "is of no instruction of the program: Memset" in nameless
    assert float(nameless.split("%")[0].split()[-1]) == pytest.approx(20, abs=8)
    assert "for the other 20.0% the device is idle" in idle
    assert "other programs, too: jit_other" in others


def test_a_model_that_is_far_off_is_told(recorded):
    found = [*profile.of_calibration(read(recorded(40.0)).calibration())]
    assert any("more than a calibration may correct for matmul" in one for one in found)


def test_a_profile_without_instructions_is_described(recorded):
    recording = recorded(1.0, named=False)
    with pytest.raises(MeasurementError, match="names an HLO instruction"):
        read(recording)
    (line,) = contents(recording.trace).splitlines()
    assert line.startswith("/device:GPU:0 / Stream #13(Compute): ")
    assert "such as k_" in line


def test_a_profile_of_another_program_is_refused(recorded):
    recording = recorded(1.0)
    other = gpu_profile.profile(
        {"/device:GPU:0": {"Stream #1": [("k", 0.0, 9.0, {"hlo_op": "none_such"})]}}
    )
    recording.trace.write_bytes(other)
    with pytest.raises(MeasurementError, match=r"nothing of .* is in the profile"):
        read(recording)


# The stage


@pytest.fixture
def stage(recorded, tmp_path, monkeypatch):
    """Runs the stage with recordings instead of a device."""
    numbers = itertools.count()

    def run(*, seconds=280.0, **named):
        def record(subject, folder, options):
            folder.mkdir()
            way = "graphs" if not options else subject.size["batch"]
            found = named.get(f"of_{way}", {"factor": 1.5})
            if isinstance(found, Exception):
                raise found
            return dataclasses.replace(recorded(**found), name=subject.name)

        monkeypatch.setattr(profile, "record", record)
        folder = tmp_path / f"stage {next(numbers)}"
        folder.mkdir()
        return profile.run(Request("h100", True, seconds, folder))

    return run


def test_steps_that_were_not_seen_are_kept_out(stage):
    found = stage(of_4={"factor": 1.4})
    steps = [row for row in found.rows if row.series == "steps"]
    assert [row.kept_out for row in steps] == [False, True]
    kept_out = {score.what: score for score in found.scores if score.kept_out}
    (after,) = [s for what, s in kept_out.items() if "step, calibrated" in what]
    assert after.met
    assert found.left_out == []


def test_graphs_whose_kernels_have_no_names_are_told(stage):
    found = stage(of_graphs={"factor": 1.5, "named": False})
    assert "With CUDA graphs" in found.findings[-1]
    assert "xla_gpu_enable_command_buffer=" in found.findings[-1]
    found = stage(of_graphs={"factor": 1.2})
    assert "takes" in found.findings[-1]


def test_one_step_that_cannot_be_read_leaves_the_others(stage):
    found = stage(of_4={"factor": 1.0, "named": False})
    assert len([row for row in found.rows if row.series == "steps"]) == 1
    (line,) = [line for line in found.findings if "batch 4:" in line]
    assert "contents.txt" in line


def test_without_the_first_step_there_is_nothing(stage):
    with pytest.raises(CannotRunError, match=r"contents\.txt.*CUPTI is missing"):
        stage(of_2={"factor": 1.0, "named": False})
    with pytest.raises(CannotRunError, match="5 s were left"):
        stage(seconds=5.0)


def test_what_does_not_fit_into_memory_is_left_out(stage):
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    found = stage(of_4=full)
    assert "memory does not suffice" in found.left_out[0]
    with pytest.raises(jax.errors.JaxRuntimeError):
        stage(of_4=jax.errors.JaxRuntimeError("INTERNAL: something else"))


def test_a_subject_tells_its_sizes():
    assert (
        Subject("phi-2", {"tiny": True, "layers": 1, "batch": 2}).name
        == "phi-2, batch 2"
    )
