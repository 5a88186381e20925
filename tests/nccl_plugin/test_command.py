"""`lagom tuner`: where the plugin is, who loads it, and what it answers."""

import json
import subprocess
import sys

import pytest

from lagom_jax.commands import tuner
from lagom_jax.nccl_plugin import build, library, nccl_library
from lagom_jax.nccl_plugin.image import load, save
from lagom_jax.nccl_plugin.rules import Answer, Place, Rule, Rules, Scope
from lagom_jax.plan import load as load_plan

from ..command_line import lagom
from .hosted import HERE

RING = Answer("ring", "ll128", 6, 100_000)
RULES = Rules(
    (
        Scope(
            16,
            domains=2,
            rules=(
                Rule("all-gather", 1, 4096, RING, 2),
                Rule("reduce", 1, 9, Answer()),
            ),
            sequences=((Place("all-gather", 50, Answer(channels=3)),),),
        ),
    )
)
CALL = ("--function", "all-gather", "--bytes", "50", "--ranks", "16", "--hosts", "2")


@pytest.fixture
def here(plugin, monkeypatch):
    """As if the plugin had been installed."""
    monkeypatch.setattr(tuner, "built", lambda: plugin)
    return plugin


@pytest.fixture
def rules(tmp_path):
    save(RULES, tmp_path / "rules")
    return tmp_path / "rules"


def test_path(capsys, here):
    assert lagom(capsys, "tuner", "path") == (0, f"{here}\n", "")


def test_without_a_compiler_there_is_no_plugin_and_a_way_out(capsys, monkeypatch):
    monkeypatch.setattr(library, "NAME", "nothing.so")
    code, _, complaint = lagom(capsys, "tuner", "path")
    assert code == 2
    assert "apt-get install gcc" in complaint
    assert "--force-reinstall" in complaint


def nccl(tmp_path, *versions):
    symbols = b"".join(b"ncclTunerPlugin_v%d\0" % version for version in versions)
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"\x7fELF..NCCL version 2.28.3+cuda12.9\0" + symbols)
    return path


@pytest.mark.parametrize(
    ("versions", "code", "words"),
    [
        ((2, 3, 4, 5, 6), 0, "in version 6, and takes chunk sizes"),
        ((2, 3, 4, 5, 6, 7), 0, "in version 6, and"),
        ((2, 3, 4, 5), 0, "in version 5, but takes no chunk sizes"),
        ((2,), 1, "will not load"),
        ((7, 8), 1, "will not load"),
    ],
)
def test_check(capsys, here, tmp_path, versions, code, words):
    path = nccl(tmp_path, *versions)
    found, printed, _ = lagom(capsys, "tuner", "check", path)
    assert found == code
    assert words in printed
    assert "NCCL 2.28.3" in printed
    _, printed, _ = lagom(capsys, "tuner", "check", path, "--json")
    assert json.loads(printed)["loads"] == (code == 0)


def test_check_of_what_is_no_nccl(capsys, here, tmp_path):
    code, _, complaint = lagom(capsys, "tuner", "check", nccl(tmp_path))
    assert code == 2
    assert "looks for no tuner plugin" in complaint
    assert lagom(capsys, "tuner", "check", tmp_path / "none")[0] == 2


def test_check_finds_the_wheel(capsys, here, tmp_path, monkeypatch):
    package = tmp_path / "nvidia" / "nccl" / "lib"
    package.mkdir(parents=True)
    nccl(package, 6)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    assert nccl_library.find_nccl() == package / "libnccl.so.2"


def test_explain(capsys, here, rules):
    code, printed, _ = lagom(capsys, "tuner", "explain", rules, *CALL, "--pipe-ops", 2)
    assert code == 0
    assert printed.count("ring/ll128, 6 channels, chunk 99840") == 2
    assert "at 1 places in a sequence: 3 channels" in printed
    code, printed, _ = lagom(capsys, "tuner", "explain", rules, *CALL)
    assert code == 0
    assert printed.count("as NCCL chooses") == 2
    _, printed, _ = lagom(capsys, "tuner", "explain", rules, *CALL, "--json")
    assert json.loads(printed)["differ"] is False


def test_explain_minds_the_users_variables(capsys, here, rules, monkeypatch):
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "010")
    monkeypatch.setenv("NCCL_MIN_CTAS", "0x7")
    monkeypatch.setenv("LAGOM_TUNER_RULES", "/nowhere")
    code, printed, _ = lagom(capsys, "tuner", "explain", rules, *CALL, "--pipe-ops", 2)
    assert code == 0
    assert printed.count("7 channels") == 2


def test_explain_says_where_plugin_and_specification_differ(
    capsys, rules, monkeypatch, tmp_path
):
    """A plugin that never answers."""
    source = tmp_path / "silent.c"
    source.write_text(
        (HERE / "other_tuner.c")
        .read_text()
        .replace("= 0.0f", "+= 0.0f")
        .replace("10 + ", "0 * ")
    )
    silent = tmp_path / "silent.so"
    words = [
        *build.compiler(),
        "-shared",
        "-fPIC",
        "-DVERSIONS=64",
        "-I",
        build.SOURCES,
    ]
    subprocess.run([*words, "-o", silent, source], check=True)
    monkeypatch.setattr(tuner, "built", lambda: silent)
    code, printed, _ = lagom(capsys, "tuner", "explain", rules, *CALL, "--pipe-ops", 2)
    assert code == tuner.DIFFERS
    assert "the plugin is defective" in printed


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(build.NoCompilerError, match="no-such-option"):
        build.compile_plugin(tmp_path / build.NAME)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.NoCompilerError, match="or name it in CC"):
        build.compile_plugin(tmp_path / build.NAME)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_write_says_to_nccl_what_a_plan_says(capsys, tmp_path):
    step = ("llama-3-8b", "--layers", 2, "--cluster", "h100:1x8")
    plan, rules = tmp_path / "plan.json", tmp_path / "rules"
    how = ("--compiles", 1, "--controls", "sequence")
    assert lagom(capsys, "tune", *step, *how, "--output", plan)[0] == 0
    code, _, _ = lagom(
        capsys, "tuner", "write", *step, "--plan", plan, "--output", rules
    )
    assert code == 0
    told = {str(s.setting) for s in load_plan(plan).settings}
    assert told
    written = {
        f"{answer.algorithm}/{answer.protocol}"
        for scope in load(rules).scopes
        for answer in (
            *(rule.answer for rule in scope.rules),
            *(place.answer for sequence in scope.sequences for place in sequence),
        )
        if answer is not None
    }
    assert written == {"/".join(text.split("/")[:2]) for text in told}
