"""Saying why a text could not be read, and what to use in its place."""

from __future__ import annotations

import re

_POSITION = re.compile(r"was parsing (\d+):(\d+): error: (.*)")
_SHOWN = 60


def no_module(text: str) -> str:
    """The error message for a text in which no module begins.

    Example:
        >>> no_module("  ")
        'the text is empty; is the disk full, or the dump still being written?'
    """
    if not text.strip():
        return "the text is empty; is the disk full, or the dump still being written?"
    if re.search(r"^\s*(?:builtin\.)?module @", text, re.MULTILINE):
        return (
            "this is StableHLO, the program before compilation; save the compiled one: "
            "step.lower(...).compile().as_text()"
        )
    if re.search(r"^\s*%?[\w.-]+ = \S+ [\w-]+\(", text, re.MULTILINE):
        return (
            "this is HLO without its beginning; the first line, 'HloModule NAME, ...', "
            "must be there: it says whether the program is scheduled and for how many "
            "devices"
        )
    first = text.strip().splitlines()[0][:_SHOWN]
    return (
        f"this is not HLO: no line 'HloModule NAME' in it; it begins with {first!r}. "
        "Expected is a *after_optimizations.txt from --xla_dump_to, or the text of "
        "step.lower(...).compile().as_text()"
    )


def explained(answer: str, text: str) -> str:
    r"""The parser's error message, with the place quoted and what to do about it.

    Example:
        >>> said = "was parsing 1:3: error: expects opcode"
        >>> explained(said, "a = f32[] ad()\nb = f32[]").partition(". ")[0]
        "the HLO text cannot be read: line 1, column 3: expects opcode in 'a = f32[]
        ad()'"
    """
    lines = text.splitlines()
    position = _POSITION.search(answer)
    if position is None:
        return (
            "the HLO text contradicts itself, so it was changed or damaged on its way; "
            f"dump it anew. The compiler's parser: {answer.strip()[:400]}"
        )
    number, column = int(position.group(1)), int(position.group(2))
    message = position.group(3).partition(". Allowed attributes")[0]
    if number >= len(lines) or not _ends_whole(lines):
        return ends_early(text)
    line = lines[number - 1]
    start = max(0, column - _SHOWN)
    quoted = line[start : column + _SHOWN // 2].strip()
    return (
        f"the HLO text cannot be read: line {number}, column {column}: {message} in "
        f"'{quoted}'. {_advice(line, message)}"
    )


def ends_early(text: str) -> str:
    r"""The error message for a text that is cut off.

    Example:
        >>> ends_early("HloModule m\n\n%sum {\n").partition(":")[0]
        "the HLO text ends in the middle, at line 3 ('%sum {')"
    """
    lines = text.strip().splitlines()
    return (
        f"the HLO text ends in the middle, at line {len(lines)} "
        f"({lines[-1].strip()[-_SHOWN:]!r}): the dump is cut off. Dump it anew, and "
        "copy files rather than what a terminal shows"
    )


def _ends_whole(lines: list[str]) -> bool:
    depth = 0
    for line in lines:
        depth += line.count("{") - line.count("}")
    return depth <= 0


def _advice(line: str, message: str) -> str:
    if line.strip() in ("...", "…") or "..." in line.replace("{...}", ""):
        return "Somebody shortened the text there; the whole of it is needed."
    if "unexpected attribute" in message or "Unknown opcode" in message:
        return (
            "The installed jaxlib does not know this: if a newer one printed the dump, "
            "read it with `pip install -U jax`."
        )
    return (
        "If the text was copied from a terminal, its long lines may have been broken: "
        "take the file itself."
    )
