"""A pass of our own inside XLA's GPU compiler: how it gets in, and out again.

From `PASSES_BY_JAXLIB` on jaxlib has the functions by which jax's public
`jax.extend.xla` registers a pass with the compiler plugin. Before, it did so only
through a client of a real GPU, and without one nothing was ever called; the plugin
itself has the same two functions in an extension of its C interface, which is used here
as XLA's `pjrt_c_api.h` and `pjrt_c_api_xla_transform_extension.h` have it (read
off jax 0.10.2).

A transformation belongs to the process, not to a compile: only one stands at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lagom_jax.compile import _jaxlib
from lagom_jax.compile._internal import internal, jax_version
from lagom_jax.compile.toolchain import (
    PASSES_BY_JAXLIB,
    VERIFIED_ON,
    WITH_PASSES,
    release,
)
from lagom_jax.errors import ToolchainError

Transform = Callable[[bytes], bytes | None]
"""Takes a serialised module; returns a changed one, or None for no change."""

_NAME = "lagom_jax"
_POST_SCHEDULER = 1
_EXTENSION_TYPE = 24
_CALLBACKS_VERSION = 1


@contextlib.contextmanager
def registered(transform: Transform) -> Iterator[None]:
    """Has the compiler call a function after its scheduler, until the block ends.

    Args:
        transform: The function. It is called on whatever thread compiles, for every
            module that is compiled, and must not raise.

    Raises:
        ToolchainError: This jax offers no way to register a pass.
    """
    by_jaxlib = release(jax_version()) >= PASSES_BY_JAXLIB
    register, clear = _by_jaxlib if by_jaxlib else _directly
    register(transform)
    try:
        yield
    finally:
        clear()


def _register_by_jaxlib(transform: Transform) -> None:
    register = internal("jaxlib._xla", "register_xla_transform_c_api")
    register(_plugin(), _NAME, _POST_SCHEDULER, transform)


def _clear_by_jaxlib() -> None:
    clear = internal("jaxlib._xla", "clear_xla_transform_c_api")
    clear(_plugin(), _NAME, _POST_SCHEDULER)


def _plugin() -> Any:
    """The plugin that this process, or jax in it, has loaded."""
    return internal("jaxlib._jax", "get_pjrt_plugin")("cuda")


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Api(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        # Only an extension of our type has these.
        ("register", ctypes.c_void_p),
        ("clear", ctypes.c_void_p),
    )


class _Arguments(ctypes.Structure):
    """The pass's argument structure: inputs of the compiler, outputs of the pass."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("api_version", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("cleanup", ctypes.c_void_p),
        ("has_error", ctypes.c_bool),
        ("error_code", ctypes.c_int),
        ("error_message", _Text),
        ("module", _Text),
        ("transformed", _Text),
        ("changed", ctypes.c_bool),
    )


_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Arguments))
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Callbacks(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int64), ("destroy", _FREE), ("transform", _CALL))


class _RegisterArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("stage", ctypes.c_int),
        ("callbacks", ctypes.POINTER(_Callbacks)),
    )


class _ClearArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("stage", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("callbacks", ctypes.POINTER(_Callbacks)),
        ("cleared", ctypes.c_bool),
    )


# What this process has standing in the compiler: the function, and the changed modules
# that the compiler has not taken over yet, by their addresses.
_transforms: list[Transform] = []
_handed_over: dict[int, Any] = {}


@_CALL
def _call(_callbacks: Any, arguments: Any) -> None:
    given = arguments.contents
    if not _transforms:
        return
    changed = _transforms[-1](ctypes.string_at(given.module.data, given.module.size))
    if changed is None:
        return
    buffer = ctypes.create_string_buffer(changed, len(changed))
    address = ctypes.addressof(buffer)
    _handed_over[address] = buffer
    given.data = address
    given.cleanup = ctypes.cast(_taken_over, ctypes.c_void_p).value
    given.transformed = _Text(address, len(changed))
    given.changed = True


@_FREE
def _taken_over(address: int) -> None:
    _handed_over.pop(address, None)


@_FREE
def _cleared(_callbacks: int) -> None:
    """Nothing to free: what was registered lives as long as the process."""


_CALLBACKS = _Callbacks(_CALLBACKS_VERSION, _cleared, _call)


def _register_directly(transform: Transform) -> None:
    arguments = _RegisterArguments(
        ctypes.sizeof(_RegisterArguments),
        _NAME.encode(),
        len(_NAME),
        _POST_SCHEDULER,
        ctypes.pointer(_CALLBACKS),
    )
    _tell(_extension().register, arguments)
    _transforms.append(transform)


def _clear_directly() -> None:
    arguments = _ClearArguments(
        ctypes.sizeof(_ClearArguments),
        _POST_SCHEDULER,
        _NAME.encode(),
        len(_NAME),
        None,
        False,
    )
    _transforms.pop()
    _tell(_extension().clear, arguments)


def _tell(function: int, arguments: ctypes.Structure) -> None:
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(function)
    if call(ctypes.addressof(arguments)):
        raise ToolchainError("XLA's GPU compiler takes no pass of others")


def _extension() -> _Extension:
    """The extension of the plugin's C interface that takes passes."""
    library = ctypes.CDLL(str(_jaxlib.plugin_library()))
    library.GetPjrtApi.restype = ctypes.POINTER(_Api)
    address = library.GetPjrtApi().contents.extensions
    while address:
        extension = _Extension.from_address(address)
        if extension.type == _EXTENSION_TYPE:
            functions = (extension.register, extension.clear)
            if (
                jax_version() in VERIFIED_ON
                and extension.struct_size == ctypes.sizeof(_Extension)
                and len(set(functions)) == len(functions)
                and all(_is_code(address) for address in functions)
            ):
                return extension
            break
        address = extension.next
    raise ToolchainError(
        "the installed CUDA plugin has no way to take a pass after XLA's scheduler: "
        f"install {WITH_PASSES}"
    )


def _is_code(address: int | None, maps: str = "/proc/self/maps") -> bool:
    """True if there is code of the plugin at an address, which can be called.

    Where a structure has been changed the address may be anything.
    """
    for line in Path(maps).read_text().splitlines():
        if not line.endswith(_jaxlib.PLUGIN_LIBRARY):
            continue
        span, rights, *_ = line.split()
        begin, end = (int(part, 16) for part in span.split("-"))
        if "x" in rights and begin <= (address or 0) < end:
            return True
    return False


_by_jaxlib = (_register_by_jaxlib, _clear_by_jaxlib)
_directly = (_register_directly, _clear_directly)
