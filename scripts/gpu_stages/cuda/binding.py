"""A C library's functions by their prototypes; every call is checked."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpu_stages.cuda.prototypes import value

_PROTOTYPE: Final = re.compile(r"([\w\s]+?[\s*]+)(\w+)\(([^)]*)\);")


class UniqueId(ctypes.Structure):
    """NCCL's name of a communicator, which all its ranks are given."""

    _fields_ = [("internal", ctypes.c_char * value("NCCL_UNIQUE_ID_BYTES"))]


_HANDLES: Final = (
    *("cudaStream_t", "cudaEvent_t", "CUmodule", "CUfunction", "CUstream"),
    *("cublasHandle_t", "nvrtcProgram", "ncclComm_t"),
)
_ENUMERATIONS: Final = (
    *("cudaError_t", "CUresult", "cublasStatus_t", "nvrtcResult", "ncclResult_t"),
    *("enum cudaDeviceAttr", "cublasOperation_t", "cudaDataType"),
    *("cublasComputeType_t", "cublasGemmAlgo_t", "ncclDataType_t", "ncclRedOp_t"),
)
_BY_NAME: Final[dict[str, Any]] = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
    "ncclUniqueId": UniqueId,
    **dict.fromkeys(_HANDLES, ctypes.c_void_p),
    **dict.fromkeys(_ENUMERATIONS, ctypes.c_int),
}


class CallError(Exception):
    """A function of a C library failed; the text has its name and its reason."""

    def __init__(self, function: str, status: int, reason: str) -> None:
        super().__init__(f"{function} failed with {status}: {reason}")
        self.function = function
        self.status = status


class Library:
    """A C library whose functions return 0 if all is well.

    Example:
        >>> libc = Library("", "int abs(int number);", lambda library, status: "well")
        >>> libc.status("abs", -3)
        3
        >>> libc.call("abs", -3)
        Traceback (most recent call last):
        ...
        gpu_stages.cuda.binding.CallError: abs failed with 3: well
    """

    def __init__(
        self,
        path: Path | str,
        prototypes: str,
        reason: Callable[[Library, int], str],
    ) -> None:
        """Loads it.

        Args:
            path: The file, or a name that the loader knows; nothing for this process.
            prototypes: The functions, in C.
            reason: What a status means, asked of the library itself.

        Raises:
            OSError: It cannot be loaded.
        """
        self.path = str(path)
        self._reason = reason
        library = ctypes.CDLL(self.path or None)
        self._functions = {
            name: _bound(library, name, result, arguments)
            for result, name, arguments in _PROTOTYPE.findall(prototypes)
        }

    def status(self, function: str, *arguments: Any) -> Any:
        """What a function returns, which is not checked."""
        return self._functions[function](*arguments)

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            CallError: It did not return 0.
        """
        status = self._functions[function](*arguments)
        if status:
            raise CallError(function, status, self._reason(self, status))


def _bound(library: ctypes.CDLL, name: str, result: str, arguments: str) -> Any:
    try:
        function = library[name]
    except AttributeError as error:
        raise OSError(f"{library._name} has no function {name}: {error}") from None
    function.restype = _type_of(result)
    parts = [] if arguments == "void" else arguments.split(",")
    function.argtypes = [_type_of(re.sub(r"\w+\s*$", "", part)) for part in parts]
    return function


def _type_of(text: str) -> Any:
    """The type that a text in C names, without a parameter's name.

    Example:
        >>> _type_of("const char *"), _type_of("unsigned int ")
        (<class 'ctypes.c_char_p'>, <class 'ctypes.c_uint'>)
    """
    words = " ".join(text.replace("*", " * ").replace("const", "").split())
    if words == "char *":
        return ctypes.c_char_p
    return ctypes.c_void_p if words.endswith("*") else _BY_NAME[words]
