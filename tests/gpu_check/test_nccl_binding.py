"""C functions are called as their headers and libraries have them."""

import ctypes
import importlib.machinery
import importlib.util
import subprocess
from pathlib import Path

import pytest

from gpu_stages import nccl_log
from gpu_stages.cuda import libraries
from gpu_stages.cuda.binding import CallError
from gpu_stages.cuda.kernels import TRIAD, compiled
from gpu_stages.cuda.libraries import Places
from gpu_stages.cuda.nccl import unique_id, within
from gpu_stages.cuda.prototypes import CUBLAS, CUDART, HEADERS, NCCL, NVRTC, VALUES
from gpu_stages.cuda.runtime import Gpu, HungError
from gpu_stages.standin.build import compile_standins
from lagom_jax.errors import TunerError
from lagom_jax.tuner.build import compiler
from lagom_jax.tuner.nccl_library import find_nccl


def header_folders():
    """Where the real headers are; nothing unless all are there."""
    folders = libraries.wheel_folders("include")
    folders += [folder / "cccl" for folder in folders]
    folders.append(Path("/usr/local/cuda/include"))
    here = {
        name: next((f for f in folders if (f / name).exists()), None)
        for name in (*HEADERS, "nv/target", "crt/host_defines.h")
    }
    if None in here.values():
        missing = ", ".join(name for name, folder in here.items() if folder is None)
        pytest.skip(f"not here: {missing}")
    return [word for folder in dict.fromkeys(here.values()) for word in ("-I", folder)]


@pytest.fixture(scope="module")
def standins(tmp_path_factory):
    """The stand-ins, compiled without a warning."""
    return compile_standins(tmp_path_factory.mktemp("standins"), ("-Werror",))


@pytest.fixture
def gpu(standins):
    return Gpu(libraries.load(Places.all_in(standins)), patience=1.0)


def test_the_real_headers_declare_what_is_called(tmp_path):
    words = header_folders()
    lines = [f"#include <{name}>" for name in HEADERS] + [*HEADERS.values()]
    for values in VALUES.values():
        for name, value in values.items():
            same = f"(unsigned)({name}) == (unsigned)({value})"
            lines.append(f'_Static_assert({same}, "{name}");')
    source = tmp_path / "prototypes.c"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        [*compiler(), "-std=c11", "-Werror", "-fsyntax-only", *words, source],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_stand_ins_fit_the_real_headers(tmp_path):
    words = [str(word) for word in header_folders()]
    assert compile_standins(tmp_path, ("-DWITH_HEADERS", "-Werror", *words)).exists()


@pytest.mark.parametrize(
    ("library", "prototypes"),
    [("cudart", CUDART), ("cublas", CUBLAS), ("nvrtc", NVRTC), ("nccl", NCCL)],
)
def test_the_real_libraries_have_every_function(library, prototypes):
    path = real(library)
    loaded = libraries.Library(path, prototypes, lambda library, status: "")
    assert loaded.path == str(path)


def real(library):
    """A library of a wheel or of the system."""
    if library == "nccl":
        try:
            return find_nccl()
        except TunerError:
            pytest.skip("no NCCL here")
    for major in (13, 12):
        path = libraries._find(f"lib{library}.so.{major}")
        if path is not None:
            return path
    pytest.skip(f"no {library} here")


def test_the_real_compiler_takes_the_triad(standins):
    class Hopper:
        architecture = "sm_90"
        libraries = libraries.load(
            Places(*[standins] * 3, nvrtc=real("nvrtc"), nccl=standins)
        )

    assert compiled(Hopper(), TRIAD)[:4] == b"\x7fELF"
    with pytest.raises(CallError, match=r"nvrtcCompileProgram failed .*no_such"):
        compiled(Hopper(), "__global__ void one() { no_such(); }")


@pytest.mark.parametrize("layout", ["cu13", "cublas"])
def test_both_layouts_of_wheels_are_found(layout, tmp_path, monkeypatch):
    name = "libcublas.so.13"
    folder = tmp_path / "nvidia" / layout / "lib"
    folder.mkdir(parents=True)
    (folder / name).touch()
    wheels = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    wheels.submodule_search_locations = [str(tmp_path / "nvidia")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: wheels)
    assert libraries._find(name) == folder / name


def test_an_error_has_the_function_and_its_reason(gpu, monkeypatch):
    monkeypatch.setenv("STANDIN_FAILS", "cudaMalloc")
    with pytest.raises(CallError, match="cudaMalloc failed with 999: told to fail"):
        gpu.memory(1)


def test_arguments_of_another_type_are_refused(gpu):
    with pytest.raises(ctypes.ArgumentError):
        gpu.libraries.cudart.call("cudaSetDevice", "0")


def test_names_of_communicators_differ(gpu):
    nccl = gpu.libraries.nccl
    one, other = unique_id(nccl), unique_id(nccl)
    assert len(one) == len(other) == 128
    assert one != other


def test_a_call_that_never_returns_is_left_behind():
    with pytest.raises(HungError, match=r"waiting did not end in 0 s"):
        within(0.05, "waiting", lambda: __import__("time").sleep(5))
    with pytest.raises(ValueError, match="its own"):
        within(5, "failing", lambda: int("its own"))


def test_events_wait_for_what_came_before(gpu):
    stream, other = gpu.stream(urgent=True), gpu.stream(urgent=False)
    begun, over = gpu.event(), gpu.event()
    gpu.hold(other, begun)
    gpu.record(over, other)
    # An event that nobody has recorded holds nothing up.
    gpu.wait(over)
    start, end = gpu.timed(stream, lambda: None)
    gpu.wait(end)
    assert gpu.seconds(start, end) == pytest.approx(0, abs=1e-4)


PREFIX = "gpu-7:12:34 [0] NCCL INFO "
SAID = [
    "gpu-7:12:34 [0] NCCL INFO lagom tuner: 2 ranks on 1 hosts in 1 domains: no rules",
    f"{PREFIX}  Algorithm   |{'':14}   {'Tree':>14}   {'':14} |{'Ring':>31}{'':17} |"
    f"{'CollNetDirect':>31}{'':17} |",
    f"{PREFIX}  Protocol    |             LL |          LL128 |         Simple |",
    f"{PREFIX} Max NThreads |            512 |            640 |            512 |",
    f"{PREFIX}    AllGather |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |"
    "     7.2/  24.0 |    15.9/   0.0 |    11.8/  48.0 |     0.0/   0.0 |"
    "     0.0/   0.0 |     0.0/   0.0 |",
    f"{PREFIX}    AllReduce |     8.0/   9.7 |    16.5/   0.0 |    16.4/  40.1 |"
    "     7.8/  24.0 |    17.8/   0.0 |    15.2/  48.0 |     0.0/   0.0 |"
    "     0.0/   0.0 |     0.0/   0.0 |",
    f"{PREFIX}32 coll channels, 32 collnet channels, 0 nvls channels, 32 p2p channels",
]


def test_the_table_says_what_is_offered():
    found = nccl_log.communicator(SAID)
    assert found.channels == 32
    assert found.asks_plugin
    assert found.offered == {
        ("all-gather", "ring", "ll"),
        ("all-gather", "ring", "simple"),
        ("all-reduce", "tree", "ll"),
        ("all-reduce", "tree", "simple"),
        ("all-reduce", "ring", "ll"),
        ("all-reduce", "ring", "simple"),
    }
    assert not nccl_log.communicator(SAID[1:]).asks_plugin


def test_chunks_that_are_cut_are_read():
    line = (
        f"{PREFIX}Reduce: tuner chunk size 524288 exceeds buffer max 131072, clamping"
    )
    assert nccl_log.clamped([line, *SAID]) == [
        nccl_log.Clamped("reduce", 524288, 131072)
    ]


def test_a_log_is_read_in_whole_lines(tmp_path):
    log = nccl_log.Log(tmp_path / "log")
    assert log.new_lines() == []
    log.path.write_text("one\ntwo\nthr")
    assert log.new_lines() == ["one", "two"]
    log.path.write_text("one\ntwo\nthree\n")
    assert log.new_lines() == ["three"]
