"""`lagom mesh`: JSON, tables, scores of published runs, and answers to mistakes."""

import csv
import io
import json
import re

import pytest

from lagom_jax.cli import main

BASIC = ["mesh", "llama-3-8b", "--tokens", "65536", "--sequence", "2048"]
ROW = {
    "framework": "MaxText (JAX)",
    "model": "Llama 2 7B",
    "gpu": "H100-80GB",
    "num_gpus": "8",
    "gbs_seqs": "16",
    "mbs_seqs": "2",
    "seq_len": "4096",
    "fsdp": "8",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "32",
    "ffn": "11008",
    "vocab": "32000",
    "remat": "",
}
KEYS = (
    *("data", "fsdp", "tensor", "sequence", "pipeline", "expert", "micro_batch"),
    *("remat", "step_seconds", "step_low", "step_high", "memory_bytes"),
    *("communication_share", "verified_step_seconds"),
)


def as_json(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_json_has_the_choices_best_first(capsys):
    code, found = as_json(capsys, *BASIC, "--cluster", "h100:2x8")
    assert code == 0
    steps = [choice["step_seconds"] for choice in found["choices"]]
    assert steps == sorted(steps)
    assert found["evaluated"] >= len(steps) > 3
    assert found["seconds"] > 0
    for choice in found["choices"]:
        assert set(KEYS) <= choice.keys()
        axes = ("data", "fsdp", "tensor", "sequence", "pipeline", "expert")
        product = 1
        for axis in axes:
            product *= choice[axis]
        assert product == 16
        assert choice["step_low"] <= choice["step_seconds"] <= choice["step_high"]


def test_clusters_are_compared_by_price(capsys):
    words = [*BASIC, "--clusters", "h100:2x8,a100:2x8", "--price", "3,1"]
    code, found = as_json(capsys, *words)
    assert code == 0
    prices = [one["dollars_per_million_tokens"] for one in found["clusters"]]
    assert prices == sorted(prices)
    _, dear = as_json(capsys, *words[:-1], "1,3")
    assert dear["clusters"][0]["cluster"] == "h100:2x8"


def test_nothing_fits_and_what_would_do(capsys):
    words = ["mesh", "llama-3-70b", "--tokens", "65536", "--sequence", "2048"]
    code, found = as_json(capsys, *words, "--cluster", "h100:1x8")
    assert code == 1
    assert found["choices"] == []
    assert found["infeasible"]["limit"] == "memory"
    assert {"what": "cluster", "value": "h100:2x8"} in found["infeasible"]["remedies"]
    assert main([*words, "--cluster", "h100:1x8"]) == 1
    assert "No mesh fits into memory" in capsys.readouterr().out


def test_a_table_for_people(capsys, tmp_path):
    words = [*BASIC, "--cluster", "h100:2x8", "--pictures", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Meshes, best first" in shown
    assert "predicted" in shown
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == ["llama-3-8b-h100-2x8-chart.svg", "llama-3-8b-h100-2x8-matrix.svg"]


def test_a_page_for_people(capsys, tmp_path):
    page = tmp_path / "mesh.html"
    assert main([*BASIC, "--cluster", "h100:2x8", "--html", str(page)]) == 0
    assert f"page written to {page}" in capsys.readouterr().out
    assert "Who sends to whom" in page.read_text()
    lost = tmp_path / "no" / "mesh.html"
    assert main([*BASIC, "--cluster", "h100:2x8", "--html", str(lost)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["mesh"], "name one cluster"),
        (["mesh", "--cluster", "h100:1x8"], "say what to train"),
        ([*BASIC, "--clusters", "h100:1x8,a100:1x8", "--price", "3"], "one price"),
        (["mesh", "llama-3", *BASIC[2:], "--cluster", "h100:1x8"], "no model"),
        ([*BASIC, "--cluster", "h100:1x8", "--score", "absent.csv"], "cannot read"),
    ],
)
def test_mistakes_are_answered(capsys, words, answer):
    assert main(words) == 2
    assert answer in capsys.readouterr().err


def score(capsys, tmp_path, *rows):
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    code = main(["mesh", "--score", str(path)])
    told = capsys.readouterr()
    return code, list(csv.DictReader(io.StringIO(told.out))), told.err


def test_published_runs_keep_their_cells(capsys, tmp_path):
    code, (row,), _ = score(capsys, tmp_path, ROW)
    assert code == 0
    assert {name: row[name] for name in ROW} == ROW
    assert 0.3 < float(row["predicted_step_seconds"]) < 1.5
    assert int(row["predicted_memory_bytes"]) > 10e9
    assert row["predicted_fits"] == "true"


def test_rows_without_dimensions_stay_without_figures(capsys, tmp_path):
    unknown = {**ROW, "model": "DeepSeekV3", "hidden": "", "layers": ""}
    code, rows, told = score(capsys, tmp_path, unknown, ROW, {**ROW, "gpu": "TPU"})
    assert code == 5
    assert [bool(row["predicted_step_seconds"]) for row in rows] == [False, True, False]
    assert "line 2" in told
    assert "line 4" in told


def test_more_memory_than_there_is_does_not_fit(capsys, tmp_path):
    large = {**ROW, "mbs_seqs": "16", "gbs_seqs": "128", "remat": "none"}
    _, (row,), _ = score(capsys, tmp_path, large)
    assert row["predicted_fits"] == "false"


def test_more_gpus_take_less_time(capsys, tmp_path):
    more = {**ROW, "num_gpus": "16", "fsdp": "16", "mbs_seqs": "1"}
    _, (one, other), _ = score(capsys, tmp_path, ROW, more)
    steps = [float(row["predicted_step_seconds"]) for row in (one, other)]
    assert steps[1] < steps[0]


FACTORY = """
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

def make(**sizes):
    devices = 1
    for axis in ("data", "fsdp", "tensor", "sequence", "pipeline", "expert"):
        devices *= sizes[axis]
    mesh = AbstractMesh((devices,), ("all",))
    rows, spread = (NamedSharding(mesh, P(*axes)) for axes in (["all"], [None, "all"]))
    def loss(w, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0])
    def step(w, x):
        return w - jax.grad(loss)(w, x)
    w = jax.ShapeDtypeStruct((8, 4096, 4096), jnp.bfloat16, sharding=spread)
    x = jax.ShapeDtypeStruct((16384, 4096), jnp.bfloat16, sharding=rows)
    return jax.jit(step, out_shardings=spread), (w, x)
"""


@pytest.mark.slow
def test_the_best_are_compiled_as_often_as_asked(capsys, monkeypatch, tmp_path):
    file = tmp_path / "steps.py"
    file.write_text(FACTORY)
    words = [*BASIC, "--cluster", "h100:1x8", "--step", f"{file}:make"]
    _, predicted = as_json(capsys, *words)
    found, compiles = {}, {}
    # Every compile is an entry of its own.
    store = tmp_path / "store"
    monkeypatch.setenv("LAGOM_STORE", str(store))
    for each in (1, 2):
        code = main([*words, "--verify", "2", "--compiles", str(each), "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        found[each] = json.loads(told.out)["choices"]
        compiles[each] = sum(1 for path in store.rglob("*") if path.is_file())
    for choices in found.values():
        times = [choice["verified_step_seconds"] for choice in choices]
        assert times[0] <= times[1]
        assert times[2:] == [None] * (len(times) - 2)
        # The others stand as they were predicted.
        assert choices[2:] == predicted["choices"][2:]
    assert compiles[2] > compiles[1] > 0
    # More options to choose from never make a plan longer.
    assert found[2][0]["verified_step_seconds"] <= found[1][0]["verified_step_seconds"]


def test_why_a_step_was_refused_stands_below(capsys, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def make(data, fsdp, tensor):\n    return print, 1, 2\n")
    words = [*BASIC, "--cluster", "h100:1x8", "--verify", "1", "--step", f"{file}:make"]
    main(words)
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"refused: \S.*: the factory returned .*must return a pair", out)


def test_a_step_that_names_no_function(capsys):
    words = [*BASIC, "--cluster", "h100:1x8", "--verify", "1", "--step", "no_colon"]
    assert main(words) != 0
    assert "write MODULE:FACTORY" in capsys.readouterr().err
