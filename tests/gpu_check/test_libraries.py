"""CuPy and nccl4py have the functions that are called, as the stand-ins have them."""

import inspect

import pytest

from gpu_stages.gpu import Gpu
from gpu_stages.stage import CannotRunError, Request
from gpu_stages.standin import cupy as virtual_cupy
from gpu_stages.standin import nccl as virtual_nccl


def words_of(function):
    """Names of parameters; a compiled function has them in its first line of help."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        head = (function.__doc__ or "").strip().partition(")")[0].partition("(")[2]
        return [
            part.split("=")[0].split()[-1] for part in head.split(",") if part.split()
        ]


def assert_takes(real, virtual):
    """Every parameter of the stand-in is one of the real function, in that order."""
    there = words_of(real)
    taken = [w for w in words_of(virtual) if not w.startswith("_") and w != "self"]
    assert [word for word in there if word in taken] == taken, (there, taken)


def test_cupy_has_what_is_called():
    cupy = pytest.importorskip("cupy")
    for name in ("Stream", "Event", "Device", "get_elapsed_time"):
        assert hasattr(cupy.cuda, name)
    assert_takes(cupy.cuda.get_elapsed_time, virtual_cupy.get_elapsed_time)
    for owner, virtual, names in (
        (
            cupy.cuda.Stream,
            virtual_cupy.Stream,
            ("wait_event", "__enter__", "__exit__"),
        ),
        (cupy.cuda.Event, virtual_cupy.Event, ("record", "done")),
        (cupy.cuda.Device, virtual_cupy.Device, ("use", "attributes")),
    ):
        for name in names:
            assert hasattr(owner, name), (owner, name)
        assert hasattr(virtual, names[0])
    # nccl4py takes a stream by this.
    assert hasattr(cupy.cuda.Stream, "__cuda_stream__")
    assert {"non_blocking", "priority"} <= set(words_of(cupy.cuda.Stream.__init__))
    for name in ("getDeviceCount", "deviceSynchronize"):
        assert hasattr(cupy.cuda.runtime, name)
    assert cupy.RawKernel
    assert_takes(cupy.asarray, virtual_cupy.asarray)
    try:
        blas = cupy.cuda.cublas
    except ImportError:
        return  # Without cuBLAS itself its names cannot be seen.
    assert_takes(blas.gemmEx, virtual_cupy.cuda.cublas.gemmEx)


def test_nccl4py_has_what_is_called():
    nccl = pytest.importorskip("nccl.core")
    for name in ("get_unique_id", "get_version", "group", "SUM"):
        assert hasattr(nccl, name)
    assert hasattr(nccl.get_version(), "libnccl")
    zero = nccl.CTAPolicy(2)
    config = nccl.NCCLConfig(max_ctas=8, cta_policy=zero)
    assert (config.max_ctas, config.cta_policy) == (8, zero)
    assert nccl.WindowFlag.COLL_SYMMETRIC == virtual_nccl.WindowFlag.COLL_SYMMETRIC
    windowed = pytest.importorskip("nccl.core.interop.cupy")
    assert_takes(windowed.empty, virtual_nccl.empty)
    for name in (
        *("init", "broadcast", "reduce", "allgather", "reduce_scatter", "allreduce"),
        *("register_window", "get_async_error", "abort"),
    ):
        assert_takes(
            getattr(nccl.Communicator, name), getattr(virtual_nccl.Communicator, name)
        )


def test_without_them_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(CannotRunError, match=r"pip install 'lagom_jax\[gpu-check\]'"):
        Gpu(Request("h100", False, 60.0, str(tmp_path)))
