"""Reading a compiled program from wherever it was put."""

from __future__ import annotations

import dataclasses
import gzip
import re
import sys
import zlib
from pathlib import Path

from lagom_jax.errors import HloError
from lagom_jax.hlo.dump_folder import final_form_beside, main_module
from lagom_jax.hlo.protofile import is_scheduled, module_in
from lagom_jax.hlo.text import parse_noting

_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# Byte values that text has none of; a file with many of them is no text.
_CONTROL = bytes(set(range(32)) - {9, 10, 12, 13, 27})
_SAMPLE = 65536
# The beginning of MLIR's bytecode, which a file of `jax.export` has inside.
_MLIR = b"ML\xefR"
_MLIR_TEXT = re.compile(rb"^\s*(?:builtin\.)?module (?:@|attributes|\{)", re.MULTILINE)
_HEADER = re.compile(r"^.*HloModule.*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class HloBytes:
    """A module as bytes, and how it was found."""

    module: bytes = dataclasses.field(repr=False)
    """A serialised `HloModuleProto`, for `read_module`; of StableHLO and files of
    `jax.export` what the file holds."""
    path: str
    """The file itself, also where a folder was named; `-` for standard input."""
    form: str
    """`text` or `proto` for HLO, `stablehlo`, or `export`."""
    repairs: tuple[str, ...] = ()
    """Spellings that had to be mended before the text could be parsed."""
    header: str = ""
    """The first line of a text, which says some things that the module does not."""

    @property
    def scheduled(self) -> bool:
        """True if the compiler has finished with it."""
        return self.form in ("text", "proto") and is_scheduled(self.module)


def read_bytes(path: str | Path) -> HloBytes:
    """Reads a compiled, scheduled module.

    Args:
        path: A text dump (`*after_optimizations.txt`, `compiled.as_text()`, a log or
            a bug report with one in it), a serialised module (`.hlo.pb`), either of
            them compressed with gzip, a folder that `--xla_dump_to` filled, or `-`
            for standard input. What a file holds is found out from its content.

    Raises:
        HloError: There is no such file, it is empty, damaged or not HLO, or it holds
            a program that is not scheduled; the message says which file to use.

    Example:
        >>> read_bytes("step.txt")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: there is no file or folder step.txt
    """
    found = read_program(path)
    if found.form in ("stablehlo", "export"):
        raise HloError(f"{found.path}: this is the program before compilation{_AFTER}")
    if not is_scheduled(found.module):
        file = None if found.path == "-" else Path(found.path)
        raise HloError(
            f"{found.path}: the program is not scheduled, so it says nothing about "
            "what overlaps; it was written before the compiler had finished"
            f"{_instead(file) or _AFTER}"
        )
    return found


def read_program(path: str | Path) -> HloBytes:
    """Reads a program, compiled or not.

    Args:
        path: What `read_bytes` takes, HLO from before the optimisations, StableHLO as
            text or bytecode, or a file of `jax.export`.

    Raises:
        HloError: There is no such file, or it is damaged or holds no program.

    Example:
        >>> read_program("step.mlir")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: there is no file or folder step.mlir
    """
    name = str(path)
    if name == "-":
        return _read(sys.stdin.buffer.read(), "standard input", None)
    found = Path(path).expanduser()
    try:
        if found.is_dir():
            found = main_module(found)
        data = found.read_bytes()
    except FileNotFoundError:
        raise HloError(f"there is no file or folder {name}") from None
    except OSError as error:
        raise HloError(f"{name} cannot be read: {error.strerror}") from None
    return _read(data, str(found), found)


def _read(data: bytes, name: str, path: Path | None) -> HloBytes:
    try:
        data = _decompressed(data)
        before = _before_compilation(data)
        if before:
            return HloBytes(data, "-" if path is None else name, before)
        module = module_in(data)
        if module is not None:
            form, repairs = "proto", ()
        else:
            form, (module, repairs) = "text", parse_noting(_decoded(data))
    except HloError as error:
        message = str(error).removesuffix(".")
        raise HloError(f"{name}: {message}{_instead(path)}") from None
    header = ""
    if form == "text":
        header = _HEADER.search(_decoded(data))
        header = header[0] if header else ""
    return HloBytes(module, "-" if path is None else name, form, repairs, header)


_AFTER = (
    ". The scheduled one is *after_optimizations.txt in a folder of --xla_dump_to, or "
    "step.lower(...).compile().as_text(); its first line says is_scheduled=true"
)


def _before_compilation(data: bytes) -> str:
    """The form of a program that no compiler has seen; empty if it is none."""
    if data.startswith(_MLIR):
        return "stablehlo"
    if _MLIR in data[: 1 << 20]:
        return "export"
    beginning = data[: 1 << 16]
    return "stablehlo" if _MLIR_TEXT.search(beginning) else ""


def _instead(path: Path | None) -> str:
    other = None if path is None else final_form_beside(path)
    return "" if other is None else f". Use {other} instead"


def _decompressed(data: bytes) -> bytes:
    if data.startswith(_GZIP):
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise HloError(
                f"the gzip data are damaged or cut off ({error}); copy the file anew"
            ) from None
    if data.startswith((_ZSTD, _ZIP)):
        tool = "zstd -d" if data.startswith(_ZSTD) else "unzip"
        raise HloError(f"the file is compressed; unpack it first with `{tool}`")
    return data


def _decoded(data: bytes) -> str:
    if data.startswith(_UTF16):
        return data.decode("utf-16", errors="replace")
    sample = data[:_SAMPLE]
    if b"\0" in sample or len(sample.translate(None, _CONTROL)) < 0.99 * len(sample):
        raise HloError(
            "this is neither text nor a serialised HLO module; expected is a "
            "*after_optimizations.txt or .hlo.pb from --xla_dump_to, or the text of "
            "step.lower(...).compile().as_text()"
        )
    return data.decode(errors="replace")
