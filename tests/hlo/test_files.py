"""Programs read from files of every form, and files that hold none."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from lagom_jax.compile.schema import message_class
from lagom_jax.errors import HloError
from lagom_jax.hlo import read_bytes, read_module
from lagom_jax.hlo.files import read_program
from lagom_jax.hlo.protofile import module_in
from lagom_jax.hlo.text import parse_text

TEXT = (Path(__file__).parent / "dumps" / "spelled_2024.txt").read_text()
BARE = parse_text(TEXT)
UNSCHEDULED_TEXT = TEXT.replace(" is_scheduled=true,", "")
FINAL = "module_0042.jit_step.sm_9.0_gpu_after_optimizations"


def wrapped(module: bytes) -> bytes:
    proto = message_class("HloProto")()
    proto.hlo_module.ParseFromString(module)
    return proto.SerializeToString()


FORMS = {
    "text": (TEXT.encode(), "text"),
    "text, gzip": (gzip.compress(TEXT.encode()), "text"),
    "text, UTF-16": (TEXT.encode("utf-16"), "text"),
    "text, latin-1 path": (
        TEXT.replace("work space", "caf\xe9").encode("latin-1"),
        "text",
    ),
    "HloModuleProto": (BARE, "proto"),
    "HloProto": (wrapped(BARE), "proto"),
    "HloProto, gzip": (gzip.compress(wrapped(BARE)), "proto"),
}


@pytest.mark.parametrize(("data", "form"), FORMS.values(), ids=FORMS)
def test_forms_are_told_apart_by_content(tmp_path, data, form):
    path = tmp_path / "file"
    path.write_bytes(data)
    found = read_bytes(path)
    assert (found.form, found.path) == (form, str(path))
    module = read_module(found.module)
    assert (module.name, module.devices) == ("jit_step", 16)
    assert module.entry.sequence is not None


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    found = read_bytes("-")
    assert (found.path, read_module(found.module).name) == ("-", "jit_step")


def test_repairs_are_named(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text(
        TEXT.replace("fft_length={1024}", "fft_length={1024}, async_group_id=1")
    )
    assert read_bytes(path).repairs == ("async_group_id",)


SHORT_MODULE = wrapped(BARE)[:-200]
REFUSED = {
    "empty": (b"", "the text is empty"),
    "binary": (bytes(range(256)) * 40, "neither text nor a serialised HLO module"),
    "cut off proto": (SHORT_MODULE, "neither text nor a serialised HLO module"),
    "cut off gzip": (gzip.compress(TEXT.encode())[:-20], "gzip data are damaged"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd -d"),
    "zip": (b"PK\x03\x04" + bytes(50), "unzip"),
    "unscheduled": (UNSCHEDULED_TEXT.encode(), "not scheduled.*after_optimizations"),
    "unscheduled proto": (
        parse_text(UNSCHEDULED_TEXT),
        "not scheduled.*is_scheduled=true",
    ),
    "prose": (b"hello", "this is not HLO"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_holds_no_scheduled_program_is_refused(tmp_path, data, message):
    path = tmp_path / "file.txt"
    path.write_bytes(data)
    with pytest.raises(HloError, match=f"(?s)^{path}: .*{message}"):
        read_bytes(path)


def test_the_final_form_beside_a_file_is_named(tmp_path):
    before = tmp_path / "module_0042.jit_step.before_optimizations.txt"
    before.write_text(UNSCHEDULED_TEXT)
    final = tmp_path / f"{FINAL}.txt"
    final.write_text(TEXT)
    (tmp_path / "module_0041.jit_init.sm_9.0_gpu_after_optimizations.txt").touch()
    with pytest.raises(HloError, match=f"Use {final} instead"):
        read_bytes(before)
    report = tmp_path / f"{FINAL}-memory-usage-report.txt"
    report.write_text("Memory Space: default")
    with pytest.raises(HloError, match=f"this is not HLO.*Use {final} instead"):
        read_bytes(report)


def test_missing(tmp_path):
    with pytest.raises(HloError, match="there is no file or folder"):
        read_bytes(tmp_path / "step.txt")
    (tmp_path / "a").touch()
    with pytest.raises(HloError, match="cannot be read: Not a directory"):
        read_bytes(tmp_path / "a" / "step.txt")


def test_a_folder_gives_its_main_module_serialised_if_it_can(tmp_path):
    for name in ("before_optimizations", "sm_9.0_gpu_after_optimizations-live-range"):
        (tmp_path / f"module_0042.jit_step.{name}.txt").write_text(TEXT * 9)
    (tmp_path / "module_0007.jit_init.sm_9.0_gpu_after_optimizations.txt").touch()
    (tmp_path / f"{FINAL}.txt").write_text(TEXT)
    assert read_bytes(tmp_path).path == str(tmp_path / f"{FINAL}.txt")
    (tmp_path / f"{FINAL}.hlo.pb").write_bytes(wrapped(BARE))
    found = read_bytes(tmp_path)
    assert (found.path, found.form) == (str(tmp_path / f"{FINAL}.hlo.pb"), "proto")


def test_a_folder_with_two_large_modules_lists_them(tmp_path):
    for number, size in ((1, 100), (2, 90), (3, 5)):
        path = tmp_path / f"module_{number}.jit_f.sm_9.0_gpu_after_optimizations.txt"
        path.write_text("x" * size)
    with pytest.raises(HloError) as caught:
        read_bytes(tmp_path)
    lines = str(caught.value).splitlines()
    assert "more than one could be the training step" in lines[0]
    assert [line.split("module_")[1][0] for line in lines[1:]] == ["1", "2", "3"]


def test_a_folder_without_a_compiled_module_says_what_to_do(tmp_path):
    with pytest.raises(HloError, match="--xla_dump_to"):
        read_bytes(tmp_path)
    before = tmp_path / "module_1.jit_f.before_optimizations.txt"
    before.write_text(UNSCHEDULED_TEXT)
    with pytest.raises(HloError, match="not scheduled"):
        read_bytes(tmp_path)
    assert read_program(tmp_path).path == str(before)
    below = tmp_path / "rank0"
    below.mkdir()
    (below / f"{FINAL}.txt").write_text(TEXT)
    (tmp_path / "module_1.jit_f.before_optimizations.txt").unlink()
    with pytest.raises(HloError, match=f"but these do: {below}"):
        read_bytes(tmp_path)


def test_messages_that_only_look_like_modules_are_told_apart():
    report = message_class("HloModuleProto")(name="a\x01b")
    report.computations.add(name="c")
    assert module_in(report.SerializeToString()) is None
    nameless = message_class("HloModuleProto")(name="m")
    nameless.computations.add(id=7)
    assert module_in(nameless.SerializeToString()) is None


def test_fields_of_a_module_may_come_in_any_order():
    module = message_class("HloModuleProto")(name="step")
    module.computations.add(name="entry")
    bare = module.SerializeToString()
    frames = message_class("HloModuleProto")()
    frames.stack_frame_index.file_names.append("train.py")
    first = frames.SerializeToString() + bare
    assert module_in(first) == first
