"""The process that compiles: how it starts, what it prints, how it ends."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from lagom_jax.compile import chatter, child, compile_step, lower
from lagom_jax.errors import CompileError, ToolchainError

SLEEPER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '.')"


@pytest.fixture(autouse=True)
def processes_of_tests_start_quickly():
    """Here they start as they do for users."""


def run_python(code, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in environment}
    changed = {k: v for k, v in environment.items() if v is not None}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | changed,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_importing_starts_nothing_and_changes_no_environment():
    result = run_python(
        "import os; before = dict(os.environ)\n"
        "import lagom_jax.compile as c\n"
        "[getattr(c, name) for name in c.__all__]\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), dict(os.environ) == before)",
        JAX_PLATFORMS="cpu",
    )
    assert result.stdout == "False True\n", result.stderr


def test_the_toolchain_is_examined_without_jax():
    result = run_python(
        "import sys; from lagom_jax.compile import Toolchain\n"
        "Toolchain.probe(); print('jax' in sys.modules)"
    )
    assert result.stdout == "False\n", result.stderr


def test_the_worker_imports_only_what_compiling_needs():
    result = run_python(
        "import sys; import lagom_jax.compile.worker\n"
        "heavy = ['jax', 'rich', 'flax', 'optax', 'google.protobuf', 'matplotlib']\n"
        "heavy += ['importlib.metadata']\n"
        "heavy += ['lagom_jax.planner', 'lagom_jax.report', 'lagom_jax.runtime']\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.skipif(chatter.gpu_present(), reason="a driver's messages are news")
def test_a_first_lowering_and_a_compile_print_nothing():
    result = run_python(
        "from lagom_jax.compile import chatter\n"
        "with chatter.withheld():\n"
        "    import jax\n"
        "from lagom_jax.compile import compile_step, lower\n"
        "from tests.compile.conftest import TARGET_TEXT, Target\n"
        "target = Target('h100:1x1', TARGET_TEXT, '1x1x1')\n"
        "print(len(compile_step(lower(lambda x: x * 2, 1.0), target).module_bytes) > 0)",
        JAX_PLATFORMS=None,
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_a_compile_prints_nothing(h100, capfd):
    compile_step(lower(lambda x: x * 2, 1.0), h100)
    assert capfd.readouterr() == ("", "")


def test_several_compiles_at_once(h100):
    steps = [lower(lambda x, n=n: x + n, jnp.ones(3)) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda step: compile_step(step, h100), steps))
    assert [c.name for c in compiled] == ["step", "step"]
    assert compiled[0].module_bytes != compiled[1].module_bytes


def sleeping_worker(monkeypatch, tmp_path):
    """Makes the child a process that never answers, and tells its id."""
    note = tmp_path / "pid"
    code = SLEEPER + "; time.sleep(600)"
    monkeypatch.setattr(
        child, "command", lambda: [sys.executable, "-c", code, str(note)]
    )
    return note


def wait_for(note):
    while not (note.exists() and note.read_text().endswith(".")):
        time.sleep(0.01)
    return int(note.read_text()[:-1])


def test_a_compile_that_takes_too_long(h100, monkeypatch, tmp_path):
    note = sleeping_worker(monkeypatch, tmp_path)
    lowered = lower(lambda x: x * 2, 1.0)
    with pytest.raises(CompileError, match=r"took longer than 2 s and was stopped"):
        compile_step(lowered, h100, timeout_s=2)
    with pytest.raises(ProcessLookupError):
        os.kill(wait_for(note), 0)


def test_ctrl_c_ends_the_child(h100, monkeypatch, tmp_path):
    note = sleeping_worker(monkeypatch, tmp_path)
    lowered = lower(lambda x: x * 2, 1.0)

    def interrupt(*_):
        wait_for(note)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            compile_step(lowered, h100, timeout_s=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(wait_for(note), 0)


def test_a_child_that_ends_without_an_answer(h100, monkeypatch):
    code = "import sys; print('bad luck', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(child, "command", lambda: [sys.executable, "-c", code])
    with pytest.raises(CompileError, match=r"(?s)status 3 and no answer.*bad luck"):
        compile_step(lower(lambda x: x * 2, 1.0), h100)


def test_python_without_an_executable(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ToolchainError, match="run lagom_jax from a plain python"):
        child.command()


def test_the_environment_of_the_child_is_not_that_of_the_user(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    environment = child.environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["XLA_FLAGS"] == "--xla_gpu_enable_triton_gemm=false"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
