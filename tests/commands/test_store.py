"""What the command line says and does about compiled steps that are kept."""

import json
import os

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
    assert doctor(capsys).startswith(f"0 compiled steps kept in {folder}: 0 B")
    lagom(capsys, *words)
    assert doctor(capsys).startswith(f"1 compiled step kept in {folder}: ")
    os.chmod(folder, 0o777)
    assert "others may write" in doctor(capsys)
    monkeypatch.setenv("LAGOM_STORE", "off")
    assert "LAGOM_STORE=off" in doctor(capsys)
