"""The sizes of calls: cut where other rules hold, and coded so that few share one."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lagom_jax.nccl_plugin.rules import MOST_BYTES, Rule

FEW: Final = 4
"""Pieces that a look-up compares in one go."""
# More of them cost more memory than they save steps.
_CODES_PER_PIECE: Final = 2


def code_of(above: int, linear: int, bits: int) -> int:
    """A number that grows with a size.

    As with floating-point numbers, the first codes are equally wide, and those of each
    further exponent twice as wide as before.

    Args:
        above: By how much the size exceeds the least one that has a code.
        linear: The exponent up to which codes are equally wide.
        bits: Binary digits that distinguish codes of one exponent.

    Example:
        >>> [code_of(above, 2, 1) for above in range(12)]
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]
    """
    exponent = (above | 1 << linear).bit_length() - 1
    return (above >> exponent - bits) + (exponent - linear << bits)


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The rules that come into question for sizes up to the next piece."""

    least: int
    rules: tuple[Rule, ...]
    alone: bool = False
    """They are for the least size, and for the others there is no rule."""


def pieces_of(rules: Sequence[Rule]) -> list[Piece]:
    """Ranges of sizes in ascending order, each with its rules, for one function.

    Example:
        >>> from lagom_jax.nccl_plugin.rules import Answer
        >>> few = Rule("reduce", 1, 1, Answer()), Rule("reduce", 8, 9, Answer())
        >>> [(piece.least, piece.alone) for piece in pieces_of(few)]
        [(0, False), (1, True), (8, False), (10, False)]
    """
    begins: dict[int, list[int]] = {0: []}
    ends: dict[int, list[int]] = {}
    for number, rule in enumerate(rules):
        begins.setdefault(rule.least, []).append(number)
        ends.setdefault(rule.most + 1, []).append(number)
    ends.pop(MOST_BYTES + 1, None)
    open_now: set[int] = set()
    found: list[Piece] = []
    for edge in sorted(begins.keys() | ends.keys()):
        open_now.difference_update(ends.get(edge, ()))
        open_now.update(begins.get(edge, ()))
        here = _that_count(rules[number] for number in sorted(open_now))
        last = found[-1] if found else Piece(0, ())
        if not here and last.rules and last.least + 1 == edge:
            found[-1] = dataclasses.replace(last, alone=True)
        elif not found or last.alone or not _alike(last.rules, here):
            found.append(Piece(edge, here))
    return found


def _that_count(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Without those that an earlier one hides."""
    found: dict[int | None, Rule] = {}
    for rule in rules:
        found.setdefault(rule.pipe_ops, rule)
        if rule.pipe_ops is None:
            break
    return tuple(found.values())


def _alike(one: tuple[Rule, ...], other: tuple[Rule, ...]) -> bool:
    return [(r.pipe_ops, r.answer) for r in one] == [
        (r.pipe_ops, r.answer) for r in other
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Codes:
    """An index of sizes: the piece at which a look-up begins."""

    least: int
    linear: int
    bits: int
    starts: list[int]
    """For every code the last piece that begins below it, and in the end the last."""


def codes_of(least: Sequence[int]) -> Codes:
    """Codes under which few pieces begin.

    Args:
        least: Where the pieces begin.

    Example:
        >>> codes_of([0, 100, 120, 140, 160, 180, 200]).starts[-1]
        6
    """
    origin = least[min(1, len(least) - 1)]
    above = [max(nbytes - origin, 0) for nbytes in least]
    _, count, linear, bits = min(
        (_crowded(above, linear, bits), count, linear, bits)
        for linear, bits, count in _ways(above[-1], _CODES_PER_PIECE * len(least))
    )
    begin = [0] * count
    for number in above:
        begin[code_of(number, linear, bits)] += 1
    below = itertools.accumulate(begin, initial=0)
    return Codes(origin, linear, bits, [max(number - 1, 0) for number in below])


def _ways(span: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Exponents up to which codes can be equally wide, each with the most bits."""
    for linear in range(min(span.bit_length(), 63) + 1):
        bits = 0
        while bits < linear and code_of(span, linear, bits + 1) < most:
            bits += 1
        count = code_of(span, linear, bits) + 1
        if count <= most:
            yield linear, bits, count


def _crowded(above: Sequence[int], linear: int, bits: int) -> int:
    """Counts pieces beyond the limit of those that may share a code."""
    codes = [code_of(number, linear, bits) for number in above]
    return sum(map(operator.eq, codes, codes[FEW - 1 :]))
