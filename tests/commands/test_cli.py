"""The command line as a user meets it: answers, refusals, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lagom_jax import Cluster, analyze
from lagom_jax.commands import clusters, tracebacks
from lagom_jax.commands.options import parse_options
from lagom_jax.commands.subjects import find_subject
from lagom_jax.commands.terminal import console
from lagom_jax.errors import ClusterTypeError, LagomError

from ..command_line import lagom, lagom_alone, write_dump

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

def raises(devices):
    return 1 / 0

def step(state, batch):
    return state

number = 3
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(STEP)
    return path


@pytest.fixture
def dump(tmp_path):
    return write_dump(tmp_path, devices=4)


VERBS = ["report", "predict", "validate", "calibrate", "clusters", "doctor"]


@pytest.mark.parametrize("verb", VERBS)
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
    assert (row["kind"], row["bytes"], row["group_size"]) == ("all-gather", 1 << 26, 4)
    assert row["executions"] == 1
    assert not row["sync"]


def test_report_of_a_dump_as_a_table(capsys, dump):
    code, out, _ = lagom(capsys, "report", dump, "--cluster", "h100:1x4")
    assert code == 0
    assert "all-gather" in out


def test_a_program_for_the_cpu_is_noted(capsys, tmp_path):
    path = tmp_path / "cpu.txt"
    words = (
        "import jax, jax.numpy as jnp;"
        "print(jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((8, 8)))"
        ".compile().as_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    path.write_text(done.stdout)
    code, out, _ = lagom(capsys, "report", path, "--cluster", "h100:1x1", "--json")
    assert code == 0
    note = next(n for n in json.loads(out)["notes"] if "compiled for a GPU" in n)
    assert "compiled for the CPU" in note


def test_report_of_a_dump_on_standard_input(dump):
    words = ["report", "-", "--cluster", "h100:1x4"]
    done = lagom_alone(*words, input=dump.read_text())
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
    verb = lagom_alone("report", *words, check=True)
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


def test_the_step_in_the_documents(capsys, tmp_path):
    page = Path("docs/how-to/own-step.md").read_text()
    path = tmp_path / "train.py"
    path.write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    words = ["report", f"{path}:make_step", "--cluster", "h100:1x8", "--json"]
    code, out, err = lagom(capsys, *words)
    assert (code, err) == (0, "")
    kinds = {row["kind"] for row in json.loads(out)["collectives"]}
    assert kinds >= {"all-gather"}


def test_report_of_a_model(capsys):
    words = ["report", "llama-3-8b", "--tiny", "--cluster", "h100:1x8", "--json"]
    code, out, err = lagom(capsys, *words)
    # A machine that is busy says after 20 s what it is doing.
    assert code == 0
    assert all(" s: compiling " in line for line in err.splitlines())
    kinds = {row["kind"] for row in json.loads(out)["collectives"]}
    assert kinds >= {"all-gather", "reduce-scatter"}


@pytest.mark.parametrize(
    ("environment", "code", "said"),
    [
        ({"XLA_FLAGS": "--xla_nonsense"}, 2, "Unknown flag in XLA_FLAGS"),
        ({"JAX_PLATFORMS": "cuda"}, 0, ""),
    ],
)
def test_the_users_environment_is_no_trap(mine, environment, code, said):
    words = ["report", f"{mine}:make", "--cluster", "h100:1x4", "--json"]
    done = lagom_alone(*words, env=os.environ | environment)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# words after `lagom report`, exit code, what the message must say
MISTAKES = [
    (["nothing_here.txt", "--cluster", "h100:1x4"], 2, "nothing_here.txt"),
    (["{dump}", "--cluster", "h1000:1x4"], 2, "h1000"),
    (["{dump}", "--cluster", "h100:zero"], 2, "HOSTSxGPUS"),
    (["{dump}", "--cluster", "h100:1x8"], 2, "4 device"),
    (["{dump}", "--cluster", "h100:1x4", "--tiny"], 2, "--tiny"),
    (["{dump}", "--cluster", "h100:1x4", "--option", "a=1"], 2, "already compiled"),
    (["{mine}", "--cluster", "h100:1x4"], 2, "name the function in it"),
    (["{mine}:make", "--cluster", "h100:1x4", "--option", "a"], 2, "NAME=VALUE"),
    (["{mine}:make", "--cluster", "h100:1x4", "--option", "a=1"], 2, "No such compile"),
    (["{mine}:missing", "--cluster", "h100:1x4"], 2, "missing"),
    (["{mine}:number", "--cluster", "h100:1x4"], 2, "function"),
    (["{mine}:wrong", "--cluster", "h100:1x4"], 2, "pair"),
    (["{mine}:step", "--cluster", "h100:1x4"], 2, "Name not the step"),
    (["{mine}:for_two", "--cluster", "h100:1x4"], 2, "2 device"),
    (["no_such_module:make", "--cluster", "h100:1x4"], 2, "no_such_module"),
    (["llama-3-9b", "--cluster", "h100:1x4"], 2, "llama-3-8b"),
    (["llama-3-8b", "--cluster", "h100:1x4", "--parallelism", "ep"], 2, "ep"),
    (["llama-3-8b", "--cluster", "h100:1x4", "--layers", "0"], 2, "above 0"),
    (["llama-3-8b", "--cluster", "h100:1x4", "--model-axis", "2"], 2, "--model-axis"),
    (["", "--cluster", "h100:1x4"], 2, "is empty"),
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


@pytest.mark.parametrize(
    ("factory", "said"),
    [("broken", "RuntimeError: my own mistake"), ("raises", "ZeroDivisionError")],
)
def test_an_exception_of_the_users_begins_in_the_users_file(
    capsys, monkeypatch, mine, factory, said
):
    monkeypatch.delenv(tracebacks.FULL, raising=False)
    words = ["report", f"{mine}:{factory}", "--cluster", "h100:1x1"]
    code, out, err = lagom(capsys, *words)
    lines = err.splitlines()
    assert (code, out) == (1, "")
    assert lines[0] == "Traceback (most recent call last):"
    assert str(mine) in lines[1]
    assert said in err
    assert "subjects.py" not in err


def test_all_of_a_traceback_can_be_seen(capsys, monkeypatch, mine):
    monkeypatch.setenv(tracebacks.FULL, "full")
    with pytest.raises(ZeroDivisionError):
        lagom(capsys, "report", f"{mine}:raises", "--cluster", "h100:1x1")


def test_a_file_that_python_cannot_read_is_shown(capsys, tmp_path):
    path = tmp_path / "unfinished.py"
    path.write_text("def make(:\n")
    words = ["report", f"{path}:make", "--cluster", "h100:1x1"]
    code, _, err = lagom(capsys, *words)
    assert code == 1
    assert err.lstrip().startswith(f'File "{path}", line 1')
    assert "importlib" not in err


def test_a_defect_keeps_its_traceback(capsys, monkeypatch):
    monkeypatch.setattr(clusters, "_show_all", clusters._rate)
    with pytest.raises(AttributeError):
        lagom(capsys, "clusters")


def test_a_file_that_ends_the_process_is_told(capsys, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys\nsys.exit(7)\n")
    words = ["report", f"{path}:make", "--cluster", "h100:1x1"]
    code, _, err = lagom(capsys, *words)
    assert code == 2
    assert "sys.exit(7)" in err
    assert "__main__" in err


@pytest.mark.parametrize("factory", ["by_name", "by_place", "alone", "optional"])
def test_a_factory_is_told_the_devices_if_it_asks(factory, tmp_path):
    path = tmp_path / "factories.py"
    path.write_text(
        "def step(x): return x\n"
        "def by_name(layers=2, *, devices): return step, (devices,)\n"
        "def by_place(n, layers=2): return step, (n,)\n"
        "def alone(): return step, (4,)\n"
        "def optional(n=4): return step, (n,)\n"
    )
    found = find_subject(f"{path}:{factory}", Cluster.parse("h100:1x4"), {})
    assert found.arguments == (4,)


def test_what_a_factory_enters_is_left_with_the_command(capsys, tmp_path):
    path = tmp_path / "entered.py"
    path.write_text(
        "import pathlib\n\n\n"
        "def make():\n"
        "    try:\n"
        "        yield (lambda x: x + 1), (1.0,)\n"
        "    finally:\n"
        f"        pathlib.Path({str(tmp_path / 'left')!r}).touch()\n"
    )
    code, *_ = lagom(capsys, "report", f"{path}:make", "--cluster", "h100:1x1")
    assert code == 0
    assert (tmp_path / "left").exists()


def test_no_words_show_the_help(capsys):
    code, out, err = lagom(capsys)
    assert (code, out) == (2, "")
    assert "lagom report llama-3-8b" in err


@pytest.mark.parametrize("words", [["dump.txt"], []])
def test_the_script_says_first_what_is_missing(words):
    done = subprocess.run(
        [sys.executable, "scripts/hlo_report.py", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("hlo_report: name ")


@pytest.mark.parametrize("words", [["clusters"], ["clusters", "h100", "--json"]])
def test_a_full_disk_is_told(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lagom_jax", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("lagom: cannot write to standard output: No space")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("columns", "width"), [("90", 90), ("0", 140), ("x", 140)])
def test_columns_say_how_wide_a_file_is(capsys, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


@pytest.mark.parametrize("cluster", [5, None, ("h100", 8)])
def test_a_cluster_is_a_name(cluster):
    with pytest.raises(ClusterTypeError, match='such as "h100:8x8"'):
        analyze(abs, 1.0, cluster=cluster)


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


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("xla_gpu_enable_pipelined_p2p=1", True),
        ("xla_gpu_auto_unknown=1", 1),
        ("xla_gpu_all_gather_mode=peer", "COLLECTIVES_PEER_MEMORY"),
        ("xla_gpu_disable_async_collectives=allgather", "ALLGATHER"),
        ("xla_dump_to=5", "5"),
        ("optimization_level=19", 19),
    ],
)
def test_options_of_the_catalogue_are_written_as_in_xla_flags(word, value):
    (found,) = parse_options([word]).values()
    assert (type(found), found) == (type(value), value)


def test_a_value_that_xla_would_refuse_is_refused_before_it_compiles():
    with pytest.raises(
        LagomError, match=r"--option xla_gpu_autotune_level=high: .* int"
    ):
        parse_options(["xla_gpu_autotune_level=high"])


def test_options_without_a_name_are_refused():
    with pytest.raises(LagomError, match="NAME=VALUE"):
        parse_options(["=1"])


def test_a_batch_that_fills_the_gpu():
    cluster = Cluster.parse("h100:8x8")
    one, most = (
        find_subject("llama-3-8b", cluster, {"batch": batch}).arguments[1].shape[0]
        for batch in (1, "auto")
    )
    assert most > one
    assert most % one == 0


TALKING = """\
import gc, jax, jax.numpy as jnp
print("imported")

def step(x):
    print("traced")
    return x * 2

def make_step():
    print("made")
    yield jax.jit(step), (jax.ShapeDtypeStruct((8,), jnp.float32),)
    print("left after", sum(one["collections"] for one in gc.get_stats()), "searches")
"""


@pytest.mark.parametrize("verb", [("report",), ("tune", "--compiles", "1")])
def test_what_users_print_is_no_part_of_the_results(tmp_path, verb):
    """In a process of its own, as what a file prints goes where that process says."""
    (tmp_path / "talking.py").write_text(TALKING)
    words = [*verb, "talking.py:make_step", "--cluster", "h100:1x1", "--json"]
    done = lagom_alone(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    for said in ("imported", "made", "traced", "left"):
        assert said in done.stderr
    # For garbage among what was imported before the command itself began; without a
    # word of ours there are 319.
    assert int(re.findall(r"left after (\d+) searches", done.stderr)[-1]) < 50


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("report", "llama-3-8b", "--cluster", "h100:8x8", "--rows", "-3"),
            "lagom: argument --rows: '-3' is not a whole number above 0; see `lagom "
            "report --help`\n",
        ),
        (
            ("plan",),
            "lagom: the following arguments are required: WHAT; see `lagom plan "
            "--help`\n",
        ),
    ],
)
def test_what_is_wrong_with_the_words_is_said_in_a_line(capsys, words, complaint):
    assert lagom(capsys, *words) == (2, "", complaint)
