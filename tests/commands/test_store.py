"""What the command line says and does about compiled steps that are kept."""

import json
import os
import subprocess
import sys

import pytest

from lagom_jax.compile import Store, compile_step, deviceless

from ..command_line import lagom

STEP = """
import jax, jax.numpy as jnp

def make():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    return (lambda x: jnp.tanh(x @ x)), (x,)
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setenv("LAGOM_STORE", str(tmp_path / "store"))
    (tmp_path / "own_step.py").write_text(STEP)
    return ("report", f"{tmp_path / 'own_step.py'}:make", "--cluster", "h100:1x1")


@pytest.fixture
def made(monkeypatch):
    """Whether each compile was found in the store."""
    found = []

    def compiled(*arguments, **named):
        step = compile_step(*arguments, **named)
        found.append(step.stored)
        return step

    monkeypatch.setattr(deviceless, "compile_step", compiled)
    return found


def test_a_report_is_compiled_once(capsys, words, made):
    first = lagom(capsys, *words, "--json")
    assert first == lagom(capsys, *words, "--json")
    assert first[0] == 0
    assert made == [False, True]


def test_without_the_store_nothing_is_found_or_kept(capsys, words, made):
    for _ in range(2):
        code, _, _ = lagom(capsys, *words, "--no-store")
        assert code == 0
    assert made == [False, False]
    assert Store.usual().entries() == []


def test_a_damaged_store_is_said_once_and_answers_are_the_same(
    capsys, words, made, caplog
):
    first = lagom(capsys, *words, "--json")
    ((file, _),) = Store.usual().entries()
    file.write_bytes(file.read_bytes()[:100])
    assert lagom(capsys, *words, "--json") == first
    assert made == [False, False]
    assert caplog.text.count("a kept compile is not used") == 1


def doctor(capsys):
    code, out, _ = lagom(capsys, "doctor", "--no-compile", "--json")
    assert code == 0
    texts = [finding["text"] for finding in json.loads(out)["findings"]]
    (line,) = (text for text in texts if "compiled step" in text)
    return line


def test_doctor_says_where_they_are_and_how_large(capsys, words, monkeypatch):
    folder = os.environ["LAGOM_STORE"]
    assert doctor(capsys).startswith(
        f"0 compiled steps and 0 orders kept in {folder}: 0 B"
    )
    lagom(capsys, *words)
    assert doctor(capsys).startswith(f"1 compiled step and 0 orders kept in {folder}: ")
    os.chmod(folder, 0o777)
    assert "others may write" in doctor(capsys)
    monkeypatch.setenv("LAGOM_STORE", "off")
    assert "LAGOM_STORE=off" in doctor(capsys)


SHARDED = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def make(devices=8):
    mesh = jax.make_mesh((devices,), ("data",))
    def array(shape, *axes):
        where = NamedSharding(mesh, P(*axes))
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=where)
    def step(x, a, b):
        return jnp.tanh(x @ a) @ b
    return step, (array((4096, 1024), "data"), array((1024, 4096), "data"),
                  array((4096, 1024), "data"))
"""
MEASURED = ("seconds", "compile_seconds")


def decided(value):
    """A plan without what was measured while it was made."""
    if isinstance(value, dict):
        return {k: decided(v) for k, v in value.items() if k not in MEASURED}
    return [decided(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_two_plans_at_once_on_one_store_are_the_plan_of_either(tmp_path):
    (tmp_path / "own_step.py").write_text(SHARDED)

    def begin(folder):
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "lagom_jax", "tune"),
                *("own_step.py:make", "--cluster", "h100:1x8"),
                *("--compiles", "2", "--json"),
            ],
            cwd=tmp_path,
            env={**os.environ, "LAGOM_STORE": str(tmp_path / folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(process):
        out, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        assert "not used" not in said
        return decided(json.loads(out))

    both = [begin("shared"), begin("shared")]
    first, second = map(end, both)
    assert first["evidence"]["compiles"] > 1
    assert first == second == end(begin("own"))
    # What both have left can be read.
    assert end(begin("shared")) == first
