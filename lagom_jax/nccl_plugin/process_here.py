"""This process, as far as plans with needs ask about it."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Mapping

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.nccl_library import find_nccl, read_nccl


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessHere:
    """Variables, the installed NCCL, and the driver.

    Example:
        >>> ProcessHere({"NCCL_CTA_POLICY": "2"}).cuda_driver
        ''
    """

    variables: Mapping[str, str]
    nccl: str = ""
    cuda_driver: str = ""

    @classmethod
    def probe(cls, environ: Mapping[str, str] = os.environ) -> ProcessHere:
        """Findings here; nothing of CUDA is started."""
        try:
            nccl = read_nccl(find_nccl()).release or ""
        except TunerError:
            nccl = ""
        return cls(dict(environ), nccl, _cuda_driver())


def _cuda_driver() -> str:
    """The CUDA that the driver supports; empty where there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
