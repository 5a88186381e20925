"""The main job whole, on the real compiler, at full size: the report, and the demo."""

import json
from pathlib import Path

import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_models.traffic import total_bytes

from ..command_line import lagom_alone, without_progress

STEP = ("llama-3-8b", "--parallelism", "fsdp", "--cluster", "h100:8x8")
MAKEFILE = Path(__file__).parents[2] / "Makefile"


def lagom(*words):
    done = lagom_alone(*words)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def report():
    return lagom("report", *STEP, "--json")


@pytest.fixture(scope="module")
def document(report):
    return json.loads(report.stdout)


@pytest.mark.slow
def test_nothing_but_the_report_is_printed(report):
    # On a slow machine it says now and then how far it is.
    assert not without_progress(report.stderr)


@pytest.mark.slow
def test_the_demo_makes_the_step_shorter_and_its_plan_can_be_replayed(
    document, tmp_path
):
    words = ("tune", *STEP, "--compiles", "5")
    assert f"$(BIN)/lagom {' '.join(words)}" in MAKEFILE.read_text()
    path = str(tmp_path / "plan.json")
    demo = lagom(*words, "--json", "--output", path)
    # Where nobody watches, a long run says now and then what it does, and no more.
    assert not without_progress(demo.stderr)
    plan = json.loads(demo.stdout)
    default, tuned = (plan["evidence"][key] for key in ("default", "tuned"))
    assert default["step_seconds"] == pytest.approx(document["step_seconds"])
    assert tuned["step_seconds"] < 0.9 * default["step_seconds"]
    again = json.loads(lagom("report", *STEP, "--json", "--plan", path).stdout)
    for key, seconds in tuned.items():
        assert again[key] == pytest.approx(seconds)
    assert again["peak_memory_bytes"] == plan["evidence"]["tuned_peak"]


@pytest.mark.slow
def test_bytes_are_those_that_the_shapes_imply(document):
    totals = {}
    for row in document["collectives"]:
        key = (row["kind"], row["group_size"])
        totals[key] = totals.get(key, 0) + row["bytes"] * row["executions"]
    assert totals == total_bytes(lagom_models.build("llama-3-8b", devices=64))


@pytest.mark.slow
def test_parts_add_up(document):
    parts = ("compute_seconds", "exposed_seconds", "waiting_seconds")
    assert document["step_seconds"] == pytest.approx(sum(document[p] for p in parts))
    for whole, part in (("communication_seconds", "seconds"), ("exposed_seconds",) * 2):
        rows = sum(row[part] for row in document["collectives"])
        assert document[whole] == pytest.approx(rows)
    for row in document["collectives"]:
        parts = row["hidden_seconds"] + row["exposed_seconds"]
        assert row["seconds"] == pytest.approx(parts)


@pytest.mark.slow
def test_arithmetic_fits_the_model(document):
    """Not faster than the weights' own arithmetic at the peak, not absurdly slower."""
    step = lagom_models.build("llama-3-8b", devices=64)
    tokens = 2048
    peak = Cluster.parse("h100:8x8").gpu.dense_flops_per_s["bf16"]
    least = 6 * step.parameters * tokens / peak
    assert least < document["compute_seconds"] < 6 * least


@pytest.mark.slow
def test_it_fits_into_memory(document):
    assert 0 < document["peak_memory_bytes"] < document["memory_bytes"]
    # Weights and moments, float32 and cut over 64 devices, are the least it can be.
    step = lagom_models.build("llama-3-8b", devices=64)
    assert document["peak_memory_bytes"] > 3 * 4 * step.parameters / 64


@pytest.mark.slow
def test_most_weights_travel_asynchronously(document):
    asynchronous = [row for row in document["collectives"] if not row["sync"]]
    assert len(asynchronous) > len(document["collectives"]) / 2
    assert all(row["source"] for row in asynchronous)
