"""HLO text to the compiler's serialised module, through the compiler's own parser."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lagom_jax import processes
from lagom_jax.compile.schema import message_class
from lagom_jax.errors import HloError
from lagom_jax.hlo.elided import keep_elided, restore_elided
from lagom_jax.hlo.envelope import has_module, unwrapped
from lagom_jax.hlo.refusals import ends_early, explained, no_module
from lagom_jax.hlo.spellings import mended

_PARSER = Path(__file__).with_name("parser_process.py")
# The parser reads some 20 MB a second; this is for machines a hundred times slower.
_PATIENCE_S, _PATIENCE_S_PER_MB = 60.0, 5.0
_DEVICES = re.compile(r"\b(replica_count|num_partitions)=(\d+)")
_ENTRY = re.compile(r"^\s*ENTRY\s", re.MULTILINE)
_CHECK = re.compile(r"\] (Check failed: .*)")


def parse_text(text: str, *, isolated: bool = True) -> bytes:
    """Parses a module in HLO text, with or without a bug report around it.

    Args:
        text: What `compiled.as_text()` gives, a `*after_optimizations.txt`, or a log
            or report with one such module in it.
        isolated: Parse in a process of its own, which costs about 0.2 s. The compiler's
            parser aborts its process at some contradictions; only text that is known
            to be good may do without.

    Returns:
        A serialised `HloModuleProto`. The module's number of devices, which text has
        and the message has no field for, is in its device assignment: partition p of
        replica r on device r × partitions + p.

    Raises:
        HloError: There is no module in the text, more than one, or one that the
            compiler's parser does not read; the message quotes the place.

    Example:
        >>> from lagom_jax.hlo import read_module
        >>> module = read_module(parse_text('''HloModule step, num_partitions=8
        ...
        ... ENTRY e {
        ...   p = bf16[2,1024] parameter(0)
        ...   ROOT g = bf16[16,1024] all-gather(p), dimensions={0}, replica_groups={}
        ... }
        ... '''))
        >>> module.partitions, module.entry.root.shape.byte_size
        (8, 32768)
    """
    return parse_noting(text, isolated=isolated)[0]


def parse_noting(text: str, *, isolated: bool = True) -> tuple[bytes, tuple[str, ...]]:
    r"""`parse_text`, and what had to be mended in the text.

    Example:
        >>> text = "HloModule m\n\nENTRY e {\n ROOT p = f32[] parameter(0)\n}"
        >>> parse_noting(text)[1]
        ()
    """
    if not has_module(text):
        raise HloError(no_module(text))
    attempt = _parse_isolated if isolated else _parse_here
    text, elided = keep_elided(text)
    refusal: tuple[str, str] | None = None
    for reading, notes in _readings(text):
        try:
            data = attempt(reading)
        except _RefusedError as error:
            # The text without its surroundings is the one to speak of; what a repair
            # made of it, nobody has seen.
            if not notes:
                refusal = str(error), reading
            continue
        if elided:
            data = restore_elided(data)
        return data + _device_assignment(reading), notes
    assert refusal is not None
    raise HloError(explained(*refusal))


def _readings(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Candidate readings of a text, the likeliest first, with the repairs of each."""
    if _ENTRY.search(text):
        yield text, ()
    module = unwrapped(text)
    if not _ENTRY.search(module):
        # The parser would take the last computation for the program.
        raise HloError(ends_early(module))
    if module != text:
        yield module, ()
    yield from mended(module)


class _RefusedError(Exception):
    """The parser's answer to a text that it does not read."""


def _parse_here(text: str) -> bytes:
    # Here and not above: nothing but text needs the compiler.
    parser: Any = importlib.import_module("jaxlib._hlo")
    try:
        return parser.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        raise _RefusedError(str(error)) from None


def _parse_isolated(text: str) -> bytes:
    if not sys.executable:
        return _parse_here(text)
    source = text.encode(errors="replace")
    patience = _PATIENCE_S + _PATIENCE_S_PER_MB * len(source) / 1e6
    with tempfile.TemporaryFile() as stderr:
        try:
            done = subprocess.run(
                processes.python(str(_PARSER)),
                input=source,
                stdout=subprocess.PIPE,
                stderr=stderr,
                timeout=patience,
                env=processes.environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HloError(
                f"the HLO parser has not read the text in {patience:.0f} s and was "
                "stopped; the text is damaged, or far larger than a training step"
            ) from None
        stderr.seek(0)
        printed = stderr.read().decode(errors="replace")
    if done.stdout[:1] == b"+":
        return done.stdout[1:]
    if done.stdout[:1] == b"-":
        raise _RefusedError(done.stdout[1:].decode(errors="replace"))
    check = _CHECK.search(printed)
    last = printed.strip().rpartition("\n")[2]
    raise _RefusedError(
        f"the parser's process ended with status {done.returncode}: "
        f"{check.group(1) if check else last or 'it said nothing'}"
    )


def _device_assignment(text: str) -> bytes:
    """The message's field for how many devices there are, to be appended to it."""
    # The attributes stand before the first computation, hence before its brace.
    header = re.split(r"\n\s*\n|\{\s*\n", text[text.index("HloModule") :], maxsplit=1)[
        0
    ]
    found = {name: int(number) for name, number in _DEVICES.findall(header)}
    replicas = found.get("replica_count", 1)
    partitions = found.get("num_partitions", 1)
    if replicas * partitions == 1:
        return b""
    module = message_class("HloModuleProto")()
    assignment = module.device_assignment
    assignment.replica_count = replicas
    assignment.computation_count = partitions
    for partition in range(partitions):
        assignment.computation_devices.add().replica_device_ids.extend(
            range(partition, replicas * partitions, partitions)
        )
    return module.SerializeToString()
