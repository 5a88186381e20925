"""Spellings of older and newer compilers that the installed text parser refuses.

XLA's parser reads nearly everything that XLA ever printed. What it refuses is listed
here, one repair a spelling, and applied only to texts that the parser has refused.
Each removes or renames an attribute that no analysis of the schedule reads; one that
matters (groups, dimensions, called computations) is never touched.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

_STRING = r'"(?:[^"\\]|\\.)*"'


def _braces(depth: int) -> str:
    """Braces in braces; in strings they do not count."""
    inside = rf'[^{{}}"]|{_STRING}' + (f"|{_braces(depth - 1)}" if depth else "")
    return rf"\{{(?:{inside})*\}}"


_VALUE = rf'(?:{_STRING}|{_braces(3)}|[^\s,"{{}}()]+)'


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """One spelling, and what the installed parser reads in its place.

    Example:
        >>> repair = Repair("old id", "until 2023", r", old_id=[0-9]+", "", "unused")
        >>> repair("add(a, b), old_id=3, metadata={}")
        'add(a, b), metadata={}'
    """

    name: str
    when: str
    """The compilers that print it, as far as seen."""
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    reason: str
    """Reason why the program stays the same for whoever reads its schedule."""

    def __call__(self, text: str) -> str:
        """The text with every place mended; the same text if there is none."""
        return re.sub(self.pattern, self.replacement, text, flags=re.MULTILINE)


def _without(attribute: str) -> str:
    return rf",\s*{attribute}={_VALUE}"


_ELEMENT = re.compile(rf"{_STRING}|%?[\w.-]+(?:#\d+)+")


def _element_instructions(line: re.Match[str]) -> str:
    """Instructions in place of the operands `%tuple#2`, before the line with them."""
    user = re.match(r"\s*(?:ROOT )?%?([\w.-]+) =", line.group())
    if user is None:
        return line.group()
    made: dict[str, str] = {}

    def operand(match: re.Match[str]) -> str:
        found = match.group()
        if found.startswith('"'):
            return found
        whole, *indices = found.lstrip("%").split("#")
        for index in indices:
            # Names are of a computation; the user's own makes these unique there.
            element = f"{whole}.{index}.of.{user.group(1)}"
            made[element] = f"  %{element} = get-tuple-element(%{whole}), index={index}"
            whole = element
        return f"%{whole}"

    changed = _ELEMENT.sub(operand, line.group())
    return "\n".join((*made.values(), changed))


REPAIRS: tuple[Repair, ...] = (
    Repair(
        "tuple elements as operands",
        "jax 0.12, for every get-tuple-element; refused by 0.10",
        r"^.*[\w.-]#\d.*$",
        _element_instructions,
        "`f(%t#0)` is `%e = get-tuple-element(%t), index=0` and `f(%e)`, free of cost",
    ),
    Repair(
        "async_group_id",
        "async-start, -update and -done in 2022 and 2023; not in November 2025",
        _without("async_group_id"),
        "",
        "starts and dones are paired by their operands",
    ),
    Repair(
        "is_cross_program_prefetch",
        "copy-start until 2023; since then an index",
        r"\bis_cross_program_prefetch=true",
        "cross_program_prefetch_index=0",
        "the same fact, spelled as the index of a prefetch",
    ),
    Repair(
        "settings of the whole module",
        "first line of a module from jax 0.12; refused by 0.10",
        rf"(?<=^HloModule )(.*?)(?:, (?:backend_config|debug_attributes)={_VALUE})+",
        r"\1",
        "settings of the module as a whole; the schedule is in its computations",
    ),
    Repair(
        "is_stable",
        "topk from jax 0.12, always; refused by 0.10",
        _without("is_stable"),
        "",
        "the order of equal values, not the work of finding them",
    ),
    Repair(
        "has_dynamic_root",
        "collective-broadcast from jax 0.12; refused by 0.10",
        _without("has_dynamic_root"),
        "",
        "which device sends, not how much",
    ),
)


def mended(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The text with one repair more each time, as far as there is anything to mend.

    Yields:
        The text, and the names of the repairs in it.

    Example:
        >>> [names for text, names in mended("s = copy-start(p)")]
        []
        >>> [names for text, names in mended("d = async-done(s), async_group_id=0")]
        [('async_group_id',)]
    """
    names: tuple[str, ...] = ()
    for repair in REPAIRS:
        changed = repair(text)
        if changed != text:
            text, names = changed, (*names, repair.name)
            yield text, names
