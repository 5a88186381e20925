"""Where the libraries are: in the wheels that jax uses, or where the loader looks."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpu_stages.cuda.binding import CallError, Library
from gpu_stages.cuda.prototypes import CUBLAS, CUDART, DRIVER, NCCL, NVRTC
from gpu_stages.nccl_sharing import HOW_TO_GET_IT
from gpu_stages.stage import CannotRunError
from lagom_jax.errors import TunerError
from lagom_jax.tuner.nccl_library import find_nccl

# The newest first; only those that the driver can run.
_MAJORS: Final = (13, 12)


@dataclasses.dataclass(frozen=True, slots=True)
class Libraries:
    """Loaded, ready to be called."""

    cudart: Library
    driver: Library
    cublas: Library
    nvrtc: Library
    nccl: Library


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """A file for each library, or a name that the loader knows."""

    cudart: Path | str
    driver: Path | str
    cublas: Path | str
    nvrtc: Path | str
    nccl: Path | str

    @classmethod
    def all_in(cls, path: Path) -> Places:
        """One file that has the functions of all."""
        return cls(path, path, path, path, path)


def find(nccl: Path | None = None) -> Places:
    """The libraries of this machine, all of one release of CUDA.

    Args:
        nccl: Which NCCL to take; the one that is installed, if none is named.

    Raises:
        CannotRunError: One is missing.
    """
    driver = "libcuda.so.1"
    try:
        newest = _driver_version(_driver(driver)) // 1000
        nccl = nccl or find_nccl()
    except (OSError, CallError) as error:
        raise CannotRunError(
            f"no driver that answers ({error}): run this on a machine with a GPU"
        ) from None
    except TunerError:
        raise CannotRunError(f"no NCCL here: pip install {HOW_TO_GET_IT}") from None
    for major in _MAJORS:
        names = [f"lib{name}.so.{major}" for name in ("cudart", "cublas", "nvrtc")]
        found = [_find(name) for name in names]
        if major <= newest and None not in found:
            cudart, cublas, nvrtc = (path for path in found if path is not None)
            return Places(cudart, driver, cublas, nvrtc, nccl)
    raise CannotRunError(
        f"no cudart, cublas and nvrtc of one CUDA that the driver runs (up to "
        f"{newest}): pip install nvidia-cuda-runtime nvidia-cublas nvidia-cuda-nvrtc, "
        "or 'jax[cuda13]', which brings them"
    )


def load(places: Places) -> Libraries:
    """Loads them.

    Raises:
        CannotRunError: One cannot be loaded.
    """
    try:
        return Libraries(
            cudart=Library(places.cudart, CUDART, _text_of("cudaGetErrorString")),
            driver=_driver(places.driver),
            cublas=Library(places.cublas, CUBLAS, _text_of("cublasGetStatusString")),
            nvrtc=Library(places.nvrtc, NVRTC, _text_of("nvrtcGetErrorString")),
            nccl=Library(places.nccl, NCCL, _nccl_reason),
        )
    except OSError as error:
        raise CannotRunError(f"a library of CUDA cannot be loaded: {error}") from None


def wheel_folders(name: str) -> list[Path]:
    """The folders of a name in the wheels of CUDA, which have one for each or for all.

    Args:
        name: `lib` or `include`.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    return sorted(path for root in roots for path in Path(root).glob(f"*/{name}"))


def _find(name: str) -> Path | str | None:
    for folder in wheel_folders("lib"):
        if (folder / name).exists():
            return folder / name
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    return name


def _driver(path: Path | str) -> Library:
    return Library(path, DRIVER, _driver_reason)


def _driver_version(driver: Library) -> int:
    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    return version.value


def _text_of(function: str) -> Callable[[Library, int], str]:
    def reason(library: Library, status: int) -> str:
        return library.status(function, status).decode()

    return reason


def _driver_reason(library: Library, status: int) -> str:
    text = ctypes.c_char_p()
    library.status("cuGetErrorString", status, ctypes.byref(text))
    return (text.value or b"no such error").decode()


def _nccl_reason(library: Library, status: int) -> str:
    what = library.status("ncclGetErrorString", status).decode()
    why = (library.status("ncclGetLastError", None) or b"").decode().strip()
    return f"{what}; {why}" if why else what
