"""Finding the module in what surrounds it: logs, bug reports, notebooks.

HLO text travels through terminals, issue trackers and log collectors. What they add
is taken off here without knowing anything of HLO but how a module begins and ends.
"""

from __future__ import annotations

import html
import re

from lagom_jax.errors import HloError

# A module's first line: its name, then attributes or the end of the line.
_HEADER = re.compile(r"^(?P<before>.*?)(?<![\w%])HloModule +[^\s,\"]+(?=,|\s*$|\\n)")
_ESCAPES = re.compile(r"\\(.)")
_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*$")
_ESCAPED_HEADER = re.compile(r"HloModule +[^\n]*?\\n")
_QUOTED_LINE_END = re.compile(r"\\n[\"'],?\s*\n\s*[\"']")
_COMPUTATION_END = re.compile(r"\}(?:, execution_thread=\"[^\"]*\")?(?:\s*//.*)?\s*$")


def has_module(text: str) -> bool:
    """True if a module in HLO text begins somewhere in this text.

    Example:
        >>> has_module("I0000 gpu_compiler.cc:7] HloModule jit_step, is_scheduled=true")
        True
        >>> has_module('module @jit_step attributes {mhlo.num_partitions = 8 : i32}')
        False
    """
    return any(_header(_ANSI_COLOUR.sub("", line)) for line in text.splitlines())


def unwrapped(text: str) -> str:
    """The module alone, without what surrounds it.

    Takes off: fences of a bug report and the prose around them, a prefix before every
    line (a logger's, `mpirun`'s, a mail's `> `), terminal colours, HTML entities, and
    the escapes of a string literal or a notebook.

    Raises:
        HloError: There is no module in the text, or more than one that is scheduled.

    Example:
        >>> print(unwrapped('''It hangs with
        ... ```
        ... HloModule m, is_scheduled=true
        ...
        ... ENTRY e {
        ...   ROOT p = f32[] parameter(0)
        ... }
        ... ```
        ... on 8 GPUs.'''))
        HloModule m, is_scheduled=true
        <BLANKLINE>
        ENTRY e {
          ROOT p = f32[] parameter(0)
        }
    """
    text = _ANSI_COLOUR.sub("", text.lstrip("\ufeff"))
    if "&quot;" in text or "-&gt;" in text:
        text = html.unescape(text)
    lines = _unescaped(text).splitlines()
    starts = [number for number, line in enumerate(lines) if _header(line)]
    if not starts:
        raise HloError("there is no HLO module in the text: no line 'HloModule NAME'")
    ends = [*starts[1:], len(lines)]
    modules = [_module(lines[a:b]) for a, b in zip(starts, ends, strict=True)]
    distinct = list(dict.fromkeys(modules))
    # A report often shows the program before and after compilation.
    scheduled = [m for m in distinct if "is_scheduled=true" in m.partition("\n")[0]]
    chosen = scheduled or distinct
    if len(chosen) > 1:
        names = ", ".join(m.partition("\n")[0].split()[1].rstrip(",") for m in chosen)
        raise HloError(
            f"the text holds {len(chosen)} HLO modules ({names}); put the one to look "
            "at into a file of its own"
        )
    return chosen[0]


def _header(line: str) -> re.Match[str] | None:
    return _HEADER.match(line) if "HloModule" in line else None


def _unescaped(text: str) -> str:
    r"""The string literals that hold modules, their `\n` and `\"` turned back."""
    if not _ESCAPED_HEADER.search(text):
        return text
    joined = _QUOTED_LINE_END.sub(r"\\n", text)
    literals: list[str] = []
    position = 0
    while header := _ESCAPED_HEADER.search(joined, position):
        quote = joined[header.start() - 1 : header.start()]
        closing = rf"(?<!\\)(?:\\\\)*{quote}" if quote in ("'", '"') else r"\Z"
        end = re.compile(closing).search(joined, header.end())
        position = end.start() if end else len(joined)
        literals.append(
            _ESCAPES.sub(
                lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]),
                joined[header.start() : position],
            )
        )
    return "\n".join(literals)


def _module(lines: list[str]) -> str:
    """The lines of one module; the first is its header."""
    header = _header(lines[0])
    assert header is not None
    prefix = _prefix_pattern(header.group("before"))
    kept: list[str] = []
    in_entry = False
    for line in lines:
        match = prefix.match(line)
        line = line[match.end() :] if match else line
        if _FENCE.match(line):
            break
        kept.append(line)
        in_entry = in_entry or line.lstrip().startswith("ENTRY ")
        # The entry computation is printed last; what follows is not HLO.
        if in_entry and _COMPUTATION_END.match(line.strip()):
            break
    return "\n".join(kept)


def _prefix_pattern(prefix: str) -> re.Pattern[str]:
    """A pattern for the prefix of every line, numbers in it free to differ.

    Example:
        >>> pattern = _prefix_pattern("I0102 03:04:05.6 7 a.cc:8] ")
        >>> bool(pattern.match("I0102 03:04:06.9 7 a.cc:8] ROOT"))
        True
    """
    escaped = re.escape(prefix.rstrip())
    flexible = re.sub(r"\d+", r"\\d+", re.sub(r"(?:\\ )+", r"\\s+", escaped))
    # At most one space after it belongs to the prefix: the rest is indentation.
    return re.compile(flexible + (" ?" if prefix.rstrip() else ""))
