"""How the processes of a job share one GPU: through CUDA's service, or in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages.clusters import cluster_of
from gpu_stages.nccl_sharing import (
    FIRST_WITH_SHARED_GPUS,
    ON_ONE_HOST,
    OVER_LOOPBACK,
    as_host,
    number_of,
)
from lagom_jax import processes
from lagom_jax.errors import TunerError
from lagom_jax.tuner.nccl_library import find_nccl, read_nccl

_CONTROL: Final = "nvidia-cuda-mps-control"
# All of them together; the rest is for contexts, NCCL's buffers and the service.
_MEMORY: Final = 0.8
# Of all ranks: less than half of the SMs of the GPUs that are large enough for this.
_CHANNELS: Final = 32
_STARTS_IN, _ENDS_IN, _REACHES_IN = 2.0, 15.0, 40.0
# So that both programs have the same kernels, and every all-reduce is one of NCCL.
_XLA_FLAGS: Final = (
    "--xla_gpu_autotune_level=0 "
    "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false"
)
# A dry run is about neither speed nor code of this processor.
_QUICKLY: Final = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# A CUDA context on the first device that is visible, and no more than that.
_REACH: Final = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
sys.exit(
    cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Sharing:
    """What processes must be told to be ranks of one job on one device."""

    common: Mapping[str, str]
    """Environment variables of all of them."""
    as_hosts: bool = False
    """Whether NCCL must take each process for a host of its own."""
    how: str = "on this processor"
    """Where the processes run, in words."""
    nccl: str | None = None
    """NCCL's release, where there is one."""

    def environment(self, index: int, count: int) -> dict[str, str]:
        """Of one of the processes.

        Example:
            >>> sharing = Sharing({"A": "1"}, as_hosts=True)
            >>> sharing.environment(1, 2)["NCCL_HOSTID"]
            'gpu_check-1'
        """
        own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{_MEMORY / count:.2f}"}
        if self.nccl is not None:
            # Ranks wait for each other, and each channel holds an SM of the one GPU.
            own["NCCL_MAX_CTAS"] = str(_CHANNELS // count)
        if self.as_hosts:
            own |= as_host(index)
        return processes.environment(**self.common, **own)

    def cluster(self, gpu: str, count: int) -> str:
        """What NCCL takes the processes for, by its name.

        Example:
            >>> Sharing({}).cluster("h100", 2), Sharing({}, True).cluster("h100", 2)
            ('h100:1x2', 'h100:2x1')
        """
        if self.as_hosts:
            return cluster_of(gpu, hosts=count).name
        return cluster_of(gpu, count).name


def on_cpus() -> Sharing:
    """No GPU is shared: a dry run."""
    return Sharing({"XLA_FLAGS": f"{_XLA_FLAGS} {_QUICKLY}", "JAX_PLATFORMS": "cpu"})


@contextlib.contextmanager
def on_one_gpu(folder: Path) -> Iterator[Sharing]:
    """The GPU that CUDA may see first, shared while the context lasts.

    Args:
        folder: Where the logs of CUDA's service go.
    """
    try:
        release = read_nccl(find_nccl()).release
    except TunerError:
        # Which one jax will load, if any, is known no better than here.
        release = None
    nccl, as_hosts = nccl_environment(release)
    common = {
        "XLA_FLAGS": _XLA_FLAGS,
        # Rather an error than a job on CPUs.
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **nccl,
    }
    with service(folder) as (variables, how):
        yield Sharing({**common, **variables}, as_hosts, how, release)


def nccl_environment(release: str | None) -> tuple[dict[str, str], bool]:
    """What lets NCCL take two ranks on one GPU, and whether it sees several hosts.

    Args:
        release: Of NCCL; None where it is not known.

    Example:
        >>> nccl_environment("2.32.3")[0]["NCCL_MULTI_RANK_GPU_ENABLE"]
        '1'
        >>> nccl_environment("2.28.9")[1]
        True
    """
    # Ranks on one GPU have no NVLink switch between them; said here, planning knows.
    common = {"NCCL_DEBUG": "WARN", "NCCL_NVLS_ENABLE": "0"}
    if release is None or number_of(release) >= FIRST_WITH_SHARED_GPUS:
        return common | ON_ONE_HOST, False
    return common | OVER_LOOPBACK, True


def reaches_the_gpu(environment: Mapping[str, str]) -> bool:
    """Whether a process comes to the GPU."""
    try:
        done = subprocess.run(
            processes.python("-c", _REACH),
            env=dict(environment),
            capture_output=True,
            timeout=_REACHES_IN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def service(
    folder: Path, reaches: Callable[[Mapping[str, str]], bool] = reaches_the_gpu
) -> Iterator[tuple[dict[str, str], str]]:
    """CUDA's multi-process service, of our own, while the context lasts.

    Args:
        folder: Where its logs go.
        reaches: Whether a process with an environment comes to the GPU.

    Returns:
        What its clients must have in their environment, and how the GPU is shared, in
        words: where the service cannot be used, in turns.
    """
    control = shutil.which(_CONTROL)
    if control is None:
        yield {}, f"on one GPU, in turns, since there is no {_CONTROL}"
        return
    # Its sockets' paths must be short.
    with tempfile.TemporaryDirectory(prefix="mps-") as pipes:
        places = {
            "CUDA_MPS_PIPE_DIRECTORY": pipes,
            "CUDA_MPS_LOG_DIRECTORY": str(folder),
        }
        with (folder / "mps.log").open("wb") as log:
            # In the foreground, so that it ends with this process, whatever happens.
            daemon = subprocess.Popen(
                [control, "-f"],
                env=os.environ | places,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            time.sleep(_STARTS_IN)
            clients = places | _renumbered()
            if daemon.poll() is not None:
                yield {}, f"on one GPU, in turns, since {_CONTROL} ended at once"
            elif not reaches(os.environ | clients):
                _quit(control, daemon, places)
                yield {}, "on one GPU, in turns, since none reaches it through MPS"
            else:
                yield clients, "on one GPU, at the same time, through MPS"
        finally:
            _quit(control, daemon, places)


def _renumbered() -> dict[str, str]:
    """The service numbers those devices that it sees itself."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"CUDA_VISIBLE_DEVICES": "0"} if seen.split(",")[0].isdecimal() else {}


def _quit(
    control: str, daemon: subprocess.Popen[bytes], places: Mapping[str, str]
) -> None:
    """Ends the service and its servers, if it has not ended yet."""
    if daemon.poll() is not None:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [control],
            input=b"quit\n",
            env=os.environ | places,
            capture_output=True,
            timeout=_ENDS_IN,
            check=False,
        )
        daemon.wait(_ENDS_IN)
    daemon.kill()
    daemon.wait()
