"""Kernels that are kept from one compile to the next."""

from pathlib import Path

import hypothesis.strategies as st
import jax.numpy as jnp
import pytest
from hypothesis import given

from lagom_jax.compile import Compiler, compile_step, lower
from lagom_jax.compile.kernels import KernelCache, Kernels, asked_by_user
from tests.compile.conftest import comparable, hlo_text

WORDS = st.binary(max_size=200)


@st.composite
def kernels(draw):
    found = {}
    for fingerprint in draw(st.lists(WORDS, unique=True, min_size=1, max_size=5)):
        tail = draw(WORDS)
        value = (
            b"\n" + _length(fingerprint) + fingerprint + b"\x12" + _length(tail) + tail
        )
        found[fingerprint] = (draw(WORDS), value)
    return Kernels(found, draw(st.sampled_from([b"", b"\x10\x01"])))


def _length(data):
    return bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, 1])


@given(kernels(), kernels())
def test_files_of_two_compiles_become_one_that_is_read_again(one, other):
    both = Kernels.read(one.with_(other).written())
    fingerprints = one.by_fingerprint.keys() | other.by_fingerprint.keys()
    assert both.by_fingerprint.keys() == fingerprints
    names = [name for name, _ in both.by_fingerprint.values()]
    assert len(set(names)) == len(names)
    for fingerprint, (_, value) in both.by_fingerprint.items():
        known = other.by_fingerprint.get(fingerprint)
        assert value == (known or one.by_fingerprint[fingerprint])[1]


@given(kernels(), st.data())
def test_half_a_file_is_refused_or_holds_less(whole, data):
    written = Kernels(whole.by_fingerprint).written()
    cut = data.draw(st.integers(1, len(written) - 1))
    try:
        found = Kernels.read(written[:cut])
    except ValueError:
        return
    assert known(found).items() < known(whole).items()


def known(kernels):
    return {key: value for key, (_, value) in kernels.by_fingerprint.items()}


def write(cache, content):
    with cache.copy() as file:
        file.write_bytes(content)


def kernel(fingerprint, name=b"fusion"):
    value = b"\n" + _length(fingerprint) + fingerprint
    return Kernels({fingerprint: (name, value)})


def test_compiles_at_once_do_not_lose_each_others(tmp_path):
    cache = KernelCache(tmp_path / "k")
    with cache.copy() as first, cache.copy() as second:
        first.write_bytes(kernel(b"1").written())
        second.write_bytes(kernel(b"2").written())
    with KernelCache(tmp_path / "k").copy() as file:
        assert Kernels.read(file.read_bytes()).by_fingerprint.keys() == {b"1", b"2"}


def test_processes_at_once_do_not_lose_each_others(tmp_path):
    one, other = KernelCache(tmp_path / "k"), KernelCache(tmp_path / "k")
    write(one, kernel(b"1").written())
    write(other, kernel(b"2").written())
    with KernelCache(tmp_path / "k").copy() as file:
        assert Kernels.read(file.read_bytes()).by_fingerprint.keys() == {b"1", b"2"}


@pytest.mark.parametrize("content", [b"nonsense", b"\n\x7fshort"])
def test_a_damaged_file_is_left_out_and_replaced(tmp_path, caplog, content):
    (tmp_path / "k").write_bytes(content)
    cache = KernelCache(tmp_path / "k")
    assert "kept kernels are not used" in caplog.text
    write(cache, kernel(b"1").written())
    assert Kernels.read((tmp_path / "k").read_bytes()).by_fingerprint.keys() == {b"1"}


def test_what_a_killed_compile_left_is_not_kept(tmp_path):
    cache = KernelCache(tmp_path / "k")
    write(cache, b"\n\x7fhalf")
    assert not (tmp_path / "k").exists()


def test_a_folder_that_cannot_be_made_stops_nobody(caplog):
    cache = KernelCache(Path("/proc/no/such/k"))
    write(cache, kernel(b"1").written())
    write(cache, kernel(b"2").written())
    assert caplog.text.count("compiled kernels are not kept") == 1
    with cache.copy() as file:
        assert len(Kernels.read(file.read_bytes()).by_fingerprint) == 2


def test_what_the_user_said_of_kernels_stays(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert not asked_by_user({})
    assert asked_by_user({"xla_gpu_kernel_cache_file": "/k"})
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_kernel_cache_file=/k")
    assert asked_by_user({})


def step(x):
    return jnp.tanh(x @ x).sum() + jnp.cos(x).sum()


def test_xla_takes_the_file_back_and_the_module_stays(h100, tmp_path):
    lowered = lower(step, jnp.ones((64, 64)))
    plain = compile_step(lowered, h100, compiler=None)
    with Compiler(store=tmp_path / "s") as compiler:
        first = compile_step(lowered, h100, compiler=compiler)
        (file,) = (tmp_path / "s").glob("*.kernels")
        written = file.read_bytes()
        assert Kernels.read(written).by_fingerprint
        for entry in (tmp_path / "s").glob("*.compile"):
            entry.unlink()
        again = compile_step(lowered, h100, compiler=compiler)
        assert not again.stored
        assert file.read_bytes() == written
    texts = [hlo_text(made.module_bytes) for made in (plain, first, again)]
    assert comparable(texts[0]) == comparable(texts[1]) == comparable(texts[2])
    assert plain.memory == first.memory == again.memory
    assert "xla_gpu_kernel_cache_file" not in again.options
