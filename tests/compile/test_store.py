"""Compiled steps that are kept: found again, never wrong, in nobody's way."""

import logging
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from lagom_jax.compile import Compiler, Store, compile_step, lower
from lagom_jax.compile.store import depends_on_files, key_of

KEY = "a" * 64


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def aged(file, seconds):
    then = time.time() - seconds
    os.utime(file, (then, then))


def only_file(store):
    ((file, _),) = store.entries()
    return file


def test_what_is_kept_is_found(store):
    store.keep(KEY, {"ok": True, "bytes": b"\0"}, b"module")
    assert store.find(KEY) == ({"ok": True, "bytes": b"\0"}, b"module")
    assert store.find("b" * 64) is None


def test_nobody_else_may_read_or_write_it(store):
    store.keep(KEY, {}, b"")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(store).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: b"", "another format"),
        (lambda data: data.replace(b"compile 1", b"compile 0", 1), "another format"),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_said_once(store, caplog, damage, what):
    store.keep(KEY, {"ok": True}, b"module" * 1000)
    file = only_file(store)
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING, "lagom_jax"):
        assert store.find(KEY) is None
    assert len(caplog.records) == 1
    assert what in caplog.text
    store.keep(KEY, {"ok": True}, b"new")
    assert store.find(KEY) == ({"ok": True}, b"new")


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_what_others_could_have_written_is_not_read(store, caplog, mode):
    store.keep(KEY, {"ok": True}, b"")
    only_file(store).chmod(mode)
    assert store.find(KEY) is None
    assert "others may write to" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_read(store, caplog):
    store.keep(KEY, {"ok": True}, b"")
    os.chown(only_file(store), 12345, -1)
    assert store.find(KEY) is None
    assert "belongs to another user" in caplog.text


def test_a_link_is_not_followed(store, tmp_path):
    store.keep(KEY, {"ok": True}, b"")
    file = only_file(store)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert store.find(KEY) is None


def test_nothing_is_written_to_a_folder_that_others_may_write_to(store, caplog):
    store.folder.mkdir(mode=0o777)
    store.folder.chmod(0o777)
    store.keep(KEY, {}, b"")
    assert list(store.folder.iterdir()) == []
    assert "not kept" in caplog.text


def test_a_compile_and_an_order_may_have_one_key(store):
    store.keep(KEY, {"of": "compile"})
    store.keep(KEY, {"of": "order"}, kind="order")
    assert store.find(KEY) == ({"of": "compile"}, b"")
    assert store.find(KEY, "order") == ({"of": "order"}, b"")
    assert {file.suffix for file, _ in store.entries()} == {".compile", ".order"}


def test_the_oldest_go_first_and_what_was_used_lately_stays(store):
    filler = os.urandom(10_000)
    for number, kind in enumerate(("compile", "order", "compile")):
        store.keep(str(number), {}, filler, kind)
        aged(store.folder / f"{number}.{kind}", 100 - number)
    assert store.find("0") is not None
    small = Store(store.folder, most_bytes=35_000)
    small.keep("3", {}, filler)
    assert [file.stem for file, _ in small.entries()] == ["2", "0", "3"]


def test_what_was_never_finished_goes(store):
    store.folder.mkdir(mode=0o700)
    for name, age in [(".new-old", 7200), (".new-young", 0)]:
        (store.folder / name).write_bytes(b"half")
        aged(store.folder / name, age)
    store.keep(KEY, {}, b"")
    names = {file.name for file in store.folder.iterdir()}
    assert names == {".new-young", f"{KEY}.compile"}


def test_a_folder_that_cannot_be_made_stops_nobody(caplog):
    store = Store(Path("/proc/no/such/place"))
    store.keep(KEY, {}, b"")
    assert store.find(KEY) is None
    assert caplog.text.count("not kept") == 1


def test_a_full_disk_stops_nobody(tmp_path):
    # A limit on the size of files is the full disk that needs no disk.
    code = f"""
        import logging, os, resource
        from pathlib import Path
        from lagom_jax.compile import Store
        logging.basicConfig(format="%(message)s")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        store = Store(Path({str(tmp_path / "store")!r}))
        store.keep("k", {{}}, os.urandom(100_000))
        print(store.find("k"), os.listdir(store.folder))
    """
    done = run(code)
    assert done.stdout == "None []\n"
    assert done.stderr.count("\n") == 1
    assert "not kept for the next time" in done.stderr


def test_killed_in_the_middle_of_writing(tmp_path):
    folder = tmp_path / "store"
    code = f"""
        import os, signal
        from pathlib import Path
        from lagom_jax.compile import Store
        Path({str(folder)!r}).mkdir(mode=0o700)
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Store(Path({str(folder)!r})).keep("k", {{}}, b"module")
    """
    assert run(code).returncode == -signal.SIGKILL
    assert [name[:5] for name in os.listdir(folder)] == [".new-"]
    assert Store(folder).find("k") is None


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )


def keep_many(folder, content):
    for number in range(100):
        Store(folder).keep(str(number % 7), {"n": content[:1]}, content)


def test_two_processes_share_it(store):
    contents = [b"a" * 50_000, b"b" * 60_000]
    spawn = multiprocessing.get_context("spawn")
    writers = [
        spawn.Process(target=keep_many, args=(store.folder, c)) for c in contents
    ]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        for number in range(7):
            found = store.find(str(number))
            if found is not None:
                seen += 1
                assert found[1] in contents
                assert found[0]["n"] == found[1][:1]
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LAGOM_STORE": "off", "XDG_CACHE_HOME": "/c"}, None),
        ({"LAGOM_STORE": "/s"}, "/s"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/lagom_jax/compiles"),
    ],
)
def test_the_usual_place(environ, folder):
    store = Store.usual(environ)
    assert (store and str(store.folder)) == folder


def test_keys_tell_everything_apart(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    request = {"options": {"fdo_profile": b"1"}, "order": None, "capture": False}
    keys = {
        key_of(request, "program", {"jaxlib": "1"}),
        key_of({**request, "options": {}}, "program", {"jaxlib": "1"}),
        key_of(
            {**request, "options": {"fdo_profile": b"2"}}, "program", {"jaxlib": "1"}
        ),
        key_of({**request, "capture": True}, "program", {"jaxlib": "1"}),
        key_of(request, "another", {"jaxlib": "1"}),
        key_of(request, "program", {"jaxlib": "2"}),
    }
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    keys.add(key_of(request, "program", {"jaxlib": "1"}))
    assert len(keys) == 7


def test_devices_that_the_cpu_pretends_to_have_are_no_part_of_a_key(monkeypatch):
    keys = set()
    for count in ("", "--xla_force_host_platform_device_count=8 "):
        monkeypatch.setenv("XLA_FLAGS", f"{count}--xla_gpu_enable_triton_gemm=false")
        keys.add(key_of({}, "program", {}))
    assert len(keys) == 1


def test_options_that_name_files(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert depends_on_files({"xla_gpu_pgle_profile_file_or_directory_path": "/p"})
    assert not depends_on_files({"xla_gpu_all_reduce_combine_threshold_bytes": 1})
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/dump")
    assert depends_on_files({})


@pytest.fixture
def compiler(store):
    with Compiler(store=store.folder) as made:
        yield made


def double(x):
    return jnp.tanh(x @ x) * 2


def test_a_step_is_compiled_once(h100, compiler):
    x = jnp.ones((64, 64))
    made = compile_step(lower(double, x), h100, compiler=compiler)
    found = compile_step(lower(double, x), h100, compiler=compiler)
    assert (made.stored, found.stored) == (False, True)
    assert found.module_bytes == made.module_bytes
    assert (found.memory, found.options, found.notes) == (
        made.memory,
        made.options,
        made.notes,
    )
    assert found.compile_seconds == 0.0


def test_captured_steps_serve_those_that_want_no_capture(h100, compiler):
    lowered = lower(double, jnp.ones((64, 64)))
    made = compile_step(lowered, h100, capture=True, compiler=compiler)
    found = compile_step(lowered, h100, compiler=compiler)
    assert found.stored
    assert found.module_bytes == made.module_bytes
    assert made.scheduled_bytes
    assert found.scheduled_bytes is None


def test_other_options_are_another_step(h100, compiler):
    lowered = lower(double, jnp.ones((64, 64)))
    compile_step(lowered, h100, compiler=compiler)
    options = {"xla_gpu_enable_triton_gemm": False}
    assert not compile_step(lowered, h100, options, compiler=compiler).stored


def test_a_refusal_is_not_kept(h100, compiler, store):
    with pytest.raises(Exception, match="xla_gpu_bogus"):
        compile_step(
            lower(lambda x: x, 1.0), h100, {"xla_gpu_bogus": 1}, compiler=compiler
        )
    assert store.entries() == []


def test_without_a_store_nothing_is_kept(h100, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LAGOM_STORE", raising=False)
    with Compiler(store=False) as compiler:
        lowered = lower(double, jnp.ones((64, 64)))
        compile_step(lowered, h100, compiler=compiler)
        assert not compile_step(lowered, h100, compiler=compiler).stored
    assert list(tmp_path.iterdir()) == []


def test_a_dump_is_asked_for_every_time(h100, compiler, monkeypatch, tmp_path):
    lowered = lower(double, jnp.ones((64, 64)))
    compile_step(lowered, h100, compiler=compiler)
    # What the environment asks for is the user's own program's, and not for this one.
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path / 'own'}")
    asked = {"xla_dump_to": str(tmp_path / "dump")}
    with Compiler(store=compiler.store.folder) as another:
        assert not compile_step(lowered, h100, asked, compiler=another).stored
        assert not compile_step(lowered, h100, asked, compiler=another).stored
    assert list((tmp_path / "dump").iterdir())
    assert not (tmp_path / "own").exists()
