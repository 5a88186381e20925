"""The command line as a user meets it: answers, refusals, exit codes."""

import json
import subprocess
import sys

import pytest

from lagom_jax import cli
from lagom_jax.commands.options import parse_options
from lagom_jax.errors import LagomError

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

def make(devices):
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    cut = NamedSharding(mesh, P("x"))
    def step(w, x):
        return jnp.sum(jnp.tanh(x @ w).astype(jnp.float32))
    w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=cut)
    x = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16, sharding=cut)
    return step, (w, x)

def for_two():
    return make(2)

def wrong():
    return "nothing"

def broken():
    def step(x):
        raise RuntimeError("my own mistake")
    return step, (jax.ShapeDtypeStruct((8,), jnp.float32),)

number = 3
"""

DUMP = """HloModule step, is_scheduled=true, num_partitions=4

ENTRY main {
  x = f32[1024] parameter(0)
  start = (f32[1024], f32[4096]) all-gather-start(x), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  work = f32[1024] multiply(x, x)
  done = f32[4096] all-gather-done(start)
  ROOT out = (f32[4096], f32[1024]) tuple(done, work)
}
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(STEP)
    return path


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"
    path.write_text(DUMP)
    return path


def lagom(capsys, *words):
    """Exit code, what it printed, and what it complained about."""
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("verb", ["report", "calibrate", "clusters", "doctor"])
def test_help(capsys, verb):
    code, out, _ = lagom(capsys, verb, "--help")
    assert code == 0
    assert f"lagom {verb}" in out


def test_version(capsys):
    assert lagom(capsys, "--version")[1].startswith("lagom 0.")


def test_clusters(capsys):
    code, out, _ = lagom(capsys, "clusters")
    assert code == 0
    for name in ("h100", "a40-nvlink", "a40-pcie", "gb200-nvl72"):
        assert name in out


def test_one_cluster_with_its_sources(capsys):
    code, out, _ = lagom(capsys, "clusters", "h100:8x8")
    assert code == 0
    assert "gpu.memory_bytes_per_s" in out


def test_clusters_as_json(capsys):
    document = json.loads(lagom(capsys, "clusters", "h100:8x8", "--json")[1])
    assert (document["name"], document["devices"]) == ("h100:8x8", 64)
    assert len(json.loads(lagom(capsys, "clusters", "--json")[1])) >= 7


def test_doctor_finds_this_environment_usable(capsys):
    code, out, _ = lagom(capsys, "doctor", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["healthy"]
    assert any("trial compile" in f["text"] for f in document["findings"])


def test_report_of_a_dump(capsys, dump):
    code, out, err = lagom(capsys, "report", dump, "--cluster", "h100:1x4", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    (row,) = document["collectives"]
    assert (row["kind"], row["bytes"], row["group_size"]) == ("all-gather", 16384, 4)
    assert row["executions"] == 1
    assert not row["sync"]


def test_report_of_a_dump_as_a_table(capsys, dump):
    code, out, _ = lagom(capsys, "report", dump, "--cluster", "h100:1x4")
    assert code == 0
    assert "all-gather" in out


def test_report_of_a_dump_on_standard_input(dump):
    done = subprocess.run(
        [sys.executable, "-m", "lagom_jax", "report", "-", "--cluster", "h100:1x4"],
        input=dump.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "all-gather" in done.stdout


def test_script_gives_the_same_report(dump):
    words = [str(dump), "--cluster=h100:1x4", "--json"]
    script = subprocess.run(
        [sys.executable, "scripts/hlo_report.py", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    verb = subprocess.run(
        [sys.executable, "-m", "lagom_jax", "report", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(script.stdout) == json.loads(verb.stdout)


def test_report_of_a_step_of_ones_own(capsys, mine):
    code, out, err = lagom(
        capsys, "report", f"{mine}:make", "--cluster", "h100:1x4", "--json"
    )
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["devices"] == 4
    assert document["peak_memory_bytes"] > 0
    assert "all-gather" in {row["kind"] for row in document["collectives"]}


def test_report_of_a_model(capsys):
    words = ["report", "llama-3-8b", "--tiny", "--cluster", "h100:1x8", "--json"]
    code, out, err = lagom(capsys, *words)
    assert (code, err) == (0, "")
    kinds = {row["kind"] for row in json.loads(out)["collectives"]}
    assert kinds >= {"all-gather", "reduce-scatter"}


# words after `lagom report`, exit code, what the message must say
MISTAKES = [
    (["nothing_here.txt", "--cluster", "h100:1x4"], 2, "nothing_here.txt"),
    (["{dump}", "--cluster", "h1000:1x4"], 2, "h1000"),
    (["{dump}", "--cluster", "h100:zero"], 2, "HOSTSxGPUS"),
    (["{dump}", "--cluster", "h100:1x8"], 2, "4 device"),
    (["{dump}", "--cluster", "h100:1x4", "--tiny"], 2, "--tiny"),
    (["{dump}", "--cluster", "h100:1x4", "--option", "a=1"], 2, "already compiled"),
    (["{mine}", "--cluster", "h100:1x4"], 2, ""),
    (["{mine}:make", "--cluster", "h100:1x4", "--option", "a"], 2, "NAME=VALUE"),
    (["{mine}:make", "--cluster", "h100:1x4", "--option", "a=1"], 4, "No such compile"),
    (["{mine}:missing", "--cluster", "h100:1x4"], 2, "missing"),
    (["{mine}:number", "--cluster", "h100:1x4"], 2, "function"),
    (["{mine}:wrong", "--cluster", "h100:1x4"], 2, "pair"),
    (["{mine}:for_two", "--cluster", "h100:1x4"], 4, "2 device"),
    (["no_such_module:make", "--cluster", "h100:1x4"], 2, "no_such_module"),
    (["llama-3-9b", "--cluster", "h100:1x4"], 2, "llama-3-8b"),
    (["llama-3-8b", "--cluster", "h100:1x4", "--parallelism", "ep"], 2, "ep"),
    (["llama-3-8b", "--cluster", "h100:1x4", "--layers", "0"], 2, "above 0"),
    (["llama-3-8b"], 2, "--cluster"),
]


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES)
def test_a_users_mistake_is_told_and_not_traced(capsys, mine, dump, words, code, said):
    words = [word.format(mine=mine, dump=dump) for word in words]
    found, _, err = lagom(capsys, "report", *words)
    assert found == code
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 100, b"hello\n", b"HloModule"])
def test_files_that_are_not_hlo(capsys, tmp_path, content):
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    code, _, err = lagom(capsys, "report", path, "--cluster", "h100:1x4")
    assert code == 2
    assert "file.txt" in err


def test_an_exception_of_the_users_step_comes_through(capsys, mine):
    with pytest.raises(RuntimeError, match="my own mistake"):
        lagom(capsys, "report", f"{mine}:broken", "--cluster", "h100:1x1")


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m lagom_jax clusters h100 --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=true", True),
        ("a=False", False),
        ("a=7", 7),
        ("a=0.5", 0.5),
        ("a=X,Y", "X,Y"),
    ],
)
def test_option_values_have_types(word, value):
    assert parse_options([word]) == {"a": value}
    assert type(parse_options([word])["a"]) is type(value)


def test_options_without_a_name_are_refused():
    with pytest.raises(LagomError, match="NAME=VALUE"):
        parse_options(["=1"])
