"""The stand-in for ptxas changes nothing that is read."""

import dataclasses
import subprocess
import tempfile

import jax.numpy as jnp

from lagom_jax.compile import (
    Compiler,
    Toolchain,
    assembler,
    child,
    compile_step,
    kernels,
    lower,
)
from tests.compile.conftest import hlo_text


def test_it_says_the_version_of_the_real_one_and_writes_what_is_asked(tmp_path):
    toolchain = Toolchain.probe()
    with assembler.stand_in(toolchain) as folder:
        said = [
            subprocess.run([tool, "--version"], capture_output=True, check=True).stdout
            for tool in (toolchain.ptxas, *sorted((folder / "bin").iterdir()))
        ]
        assert len(said) == 3
        assert len(set(said)) == 1
        out = tmp_path / "a b"
        subprocess.run(
            [folder / "bin" / "ptxas", "in.ptx", "-o", out, "-arch=sm_90a"], check=True
        )
        assert out.stat().st_size
    assert not folder.exists()


def test_without_room_the_real_one_is_used(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no/such/place")
    with assembler.stand_in(Toolchain.probe()) as folder:
        assert folder is None


def test_where_scripts_may_not_be_started_the_real_one_is_used(monkeypatch):
    monkeypatch.setattr(assembler, "_SCRIPT", "#!/no/such/shell {ptxas}")
    with assembler.stand_in(Toolchain.probe()) as folder:
        assert folder is None


def test_the_module_and_its_memory_are_those_of_the_real_one(h100, monkeypatch):
    def step(x):
        return jnp.sin(jnp.tanh(x @ x).sum() + jnp.sort(x, axis=1).sum())

    lowered = lower(step, jnp.ones((256, 256), jnp.bfloat16))
    with Compiler(store=False) as compiler:
        quick = compile_step(lowered, h100, capture=True, compiler=compiler)
    monkeypatch.setattr(assembler, "_made", lambda *_: False)
    with Compiler(store=False) as compiler:
        real = compile_step(lowered, h100, capture=True, compiler=compiler)
    assert hlo_text(quick.module_bytes) == hlo_text(real.module_bytes)
    assert hlo_text(quick.scheduled_bytes) == hlo_text(real.scheduled_bytes)
    assert quick.memory == real.memory


def test_without_any_linker_kernels_are_compiled_as_one(h100, monkeypatch):
    """As on a machine where no script can be started, and without CUDA of its own."""
    asked = []
    ask = child.Child.ask

    def listened(self, header, payload, **more):
        asked.append(header["options"])
        return ask(self, header, payload, **more)

    monkeypatch.setattr(child.Child, "ask", listened)
    monkeypatch.setattr(assembler, "_made", lambda *_: False)
    with Compiler(store=False) as compiler:
        compiler.toolchain = dataclasses.replace(compiler.toolchain, nvlink=None)
        compile_step(lower(jnp.tanh, 1.0), h100, compiler=compiler)
    assert kernels.SPLIT_OPTION not in asked[0]
    # What is assembled in earnest takes longer the less LLVM has done to it.
    assert kernels.QUICK_OPTION not in asked[0]
