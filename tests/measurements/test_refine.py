"""Prices with what was measured, and the reports made with them."""

import json

import jax
import jax.numpy as jnp
import pytest

import lagom_jax
from lagom_jax.cluster import Cluster
from lagom_jax.cost.kernel_constants import load_kernel_constants
from lagom_jax.cost.prices import Price
from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.executions import Event
from lagom_jax.measurements.overlay import match
from lagom_jax.measurements.refine import refine
from lagom_jax.measurements.samples import samples_of_seconds
from lagom_jax.measurements.xplane import read_profile, summarise
from lagom_jax.program.program import Loop

from ..command_line import lagom, write_dump
from ..cost.programs import ByName, kernel, launch, program, run, wait
from .gpu_profile import step_of_two_gpus
from .test_nccl_tests import output

H100 = Cluster.parse("h100:1x2")


@pytest.fixture
def dump(tmp_path):
    return write_dump(tmp_path, devices=2)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(step_of_two_gpus())
    return path


def profile(*ops, steps=2, seconds=3.0):
    """A profile in which the ops run one after another, in each step."""
    events = [
        Event("gpu", "stream", 100.0 * step + place, seconds, f"k_{op}", op, "jit_step")
        for step in range(steps)
        for place, op in enumerate(ops)
    ]
    return summarise(events)


SIMPLE = program(run("a"), launch("c", 1), run("b"), wait(1))
ALONE = ByName({"a": 1.0, "b": 1.0, "c": 2.0})


def test_measured_prices_go_before_the_models():
    found = refine(SIMPLE, H100, ALONE, "estimated: by hand", profile=profile("a", "c"))
    assert found.prices.kernel(kernel("a")) == Price(3.0, "memory")
    assert found.prices.kernel(kernel("b")) == Price(1.0, "memory")
    assert found.source == (
        "measured: 2 of 3 instructions, 75% of their predicted time; "
        "for the rest estimated: by hand"
    )


def test_a_profile_of_another_program_is_refused():
    with pytest.raises(MeasurementError, match="next to nothing of test"):
        refine(SIMPLE, H100, ALONE, "estimated", profile=profile("x", "y"))


def test_a_common_name_does_not_make_it_the_same_program():
    mostly = ByName({"a": 0.04, "b": 1.0, "c": 2.0})
    with pytest.raises(MeasurementError, match="1 of 3 instructions, 1%"):
        refine(SIMPLE, H100, mostly, "estimated", profile=profile("a"))


def test_another_module_is_noted():
    found = refine(SIMPLE, H100, ALONE, "estimated", profile=profile("a", "b", "c"))
    assert "the profile is of jit_step, the program is test" in found.notes


def test_a_profile_that_knows_little_is_noted():
    found = refine(SIMPLE, H100, ALONE, "estimated", profile=profile("a"))
    assert any("only 25%" in note for note in found.notes)


@pytest.mark.parametrize(
    ("task", "op", "matched"),
    [
        ("all-gather-start.1", "all-gather.1", True),
        ("loop_fusion.3", "loop_fusion_3", True),
        ("loop_fusion.3", "loop_fusion.30", False),
        ("loop_fusion.3", "loop_fusion", False),
    ],
)
def test_other_spellings(task, op, matched):
    found = match(program(run(task)), profile(op), ByName({task: 1.0}))
    assert bool(found.measured) is matched


def test_a_spelling_that_fits_two_fits_none():
    both = program(run("f.1"), run("f_1"))
    found = match(both, profile("f_1"), ByName({"f.1": 1.0, "f_1": 1.0}))
    assert [task.name for task in found.measured] == ["f_1"]


def test_a_kernel_launched_several_times_in_one_run():
    sort = [
        Event("gpu", "s", 10.0 * step + n, 2.0, "pass", op, "m")
        for step in range(2)
        for n, op in enumerate(["sort", "sort", "sort", "a"])
    ]
    both = program(run("sort"), run("a"))
    found = match(both, summarise(sort), ByName({"sort": 1.0, "a": 1.0}))
    assert found.seconds == {"sort": 6.0, "a": 2.0}


def test_executions_in_a_loop_are_single_ones():
    loop = Loop("while", (run("a"), run("b")), trips=3, trips_known=True)
    step = profile(*["a", "b"] * 3, "c")
    found = match(program(loop, run("c")), step, ByName(dict.fromkeys("abc", 1.0)))
    assert found.seconds == dict.fromkeys("abc", 3.0)
    assert found.share == 1


def test_samples_say_what_was_predicted_and_measured():
    found = match(SIMPLE, profile("a", "c"), ALONE)
    alone = {task: found.seconds[task.name] for task in found.measured}
    samples = samples_of_seconds(alone, H100, ALONE)
    assert [(s.key.kind, s.predicted, s.measured) for s in samples] == [
        ("fusion", 1.0, 3.0),
        ("all-gather", 2.0, 3.0),
    ]


def test_a_run_of_this_machine_with_its_own_program(cpu_run):
    """A real profile and a real dump: every instruction that takes time is found."""
    trace, text = cpu_run
    report = lagom_jax.analyze_dump(text, "h100:1x8", profile=trace)
    assert report.pricing.startswith("measured: ")
    assert "100% of their predicted time" in report.pricing
    step = read_profile(trace)
    expected = sum(m.median * m.per_step for m in step.instructions.values())
    # All is synchronous on this backend, so the step is the sum of its parts, and of
    # the gaps between them that the model has for kernels.
    gap = load_kernel_constants("h100").gap_seconds
    gaps = (report.step_seconds - expected) / gap
    assert gaps == pytest.approx(round(gaps), abs=1e-3)
    assert 1 <= round(gaps) <= len(step.instructions)


def test_a_report_with_a_profile(dump, trace):
    report = lagom_jax.analyze_dump(dump, "h100:1x2", profile=trace)
    (gather,) = report.collectives
    assert gather.seconds == pytest.approx(51e-6)
    assert report.pricing.startswith("measured: 3 of 4 instructions, ")
    # The fusion's kernels name no instruction but are named after one.
    times = {total.kind: total.seconds for total in report.kernel_kinds}
    plain = lagom_jax.analyze_dump(dump, "h100:1x2")
    tanh = sum(total.seconds for total in plain.kernel_kinds) / 3
    assert times["fusion"] == pytest.approx(24e-6 + 8e-6 + tanh, rel=0.2)
    assert "The step is predicted. Prices: measured: 3 of 4" in str(report)


def test_profiles_and_calibrations_reach_a_compiled_step(trace, tmp_path):
    x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
    for measured, message in (
        ({"profile": trace}, "next to nothing of jit_tanh"),
        ({"calibration": tmp_path / "none.json"}, "cannot read the calibration"),
    ):
        with pytest.raises(MeasurementError, match=message):
            lagom_jax.analyze(jnp.tanh, x, cluster="h100:1x1", **measured)


def test_calibrate_and_report(capsys, tmp_path, dump, monkeypatch):
    # Whoever runs the tests may have a narrow terminal.
    monkeypatch.setenv("COLUMNS", "140")
    paths = []
    for name in ("all_gather", "all_reduce"):
        paths.append(tmp_path / f"{name}_perf.txt")
        sizes = [1 << octave for octave in range(10, 30)]
        paths[-1].write_text(output(name, ranks=2, sizes=sizes))
    record = tmp_path / "my.json"
    code, out, err = lagom(
        capsys, "calibrate", "--cluster", "h100:1x2", "--output", record,
        *(word for path in paths for word in ("--nccl-tests", path)),
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "all-gather of 2 (inside)" in out
    assert "20 measurements (nccl-tests)" in out
    corrections = json.loads(record.read_text())["corrections"]
    for found in corrections:
        assert found["kept_out"]["median"] < 0.7 * found["before"]["median"]

    words = ["report", dump, "--cluster", "h100:1x2", "--json"]
    plain = json.loads(lagom(capsys, *words)[1])
    fitted = json.loads(lagom(capsys, *words, "--calibration", record)[1])
    truth = 10e-6 + 33554432 / 100e9
    before, after = (
        abs(document["collectives"][0]["seconds"] / truth - 1)
        for document in (plain, fitted)
    )
    assert after < 0.5 * before
    assert fitted["compute_seconds"] == pytest.approx(plain["compute_seconds"])
    assert fitted["pricing"].startswith("calibrated: 40 measurements on h100:1x2; ")


def test_calibrate_with_a_profile(capsys, tmp_path, dump, trace):
    record = tmp_path / "my.json"
    code, out, err = lagom(
        capsys, "calibrate", "--cluster", "h100:1x2", "--profile", trace,
        "--dump", dump, "--output", record,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "3 steps of jit_step, 3 of 4 instructions" in out
    assert "not known" in out
    assert record.exists()


MISTAKES = [
    ([], "nothing to calibrate with"),
    (["--nccl-tests", "none.txt"], "cannot read none.txt"),
    (["--collectives", "none.csv"], "cannot read none.csv"),
    (["--profile", "none"], "there is no none"),
    (["--dump", "{dump}"], "go with --profile"),
    (["--profile", "{trace}"], "--dump"),
    (["--nccl-tests", "{dump}"], "no table of nccl-tests"),
    (["--nccl-tests", "{dump}", "--ranks", "1"], "--ranks 1"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes(capsys, tmp_path, dump, trace, words, message):
    words = [word.format(dump=dump, trace=trace) for word in words]
    record = tmp_path / "my.json"
    code, _, err = lagom(
        capsys, "calibrate", "--cluster", "h100:1x2", "--output", record, *words
    )
    assert code == 2
    assert message in err
    assert not record.exists()
