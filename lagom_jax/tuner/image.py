"""The rules as the plugin reads them: one image, checked as a whole.

`docs/tuner.md` describes the format, `plugin/rules.c` reads it.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lagom_jax.cost.setting import PROTOCOLS
from lagom_jax.errors import TunerError
from lagom_jax.files import write_whole
from lagom_jax.tuner.rules import (
    ALGORITHMS,
    FUNCTIONS,
    Answer,
    Place,
    Rule,
    Rules,
    Scope,
)
from lagom_jax.tuner.windows import Call, different, unique_windows

MAGIC: Final = b"LAGOMTUN"
VERSION: Final = 1
"""Raised with every change: a plugin ignores what is newer than itself."""
NOTHING: Final = (1 << 32) - 1
_HEADER: Final = struct.Struct("<8sIIQ7I3I")
_INTERVAL: Final = struct.Struct("<QQII")
_ITEM: Final = struct.Struct("<QIIII")
_ANCHOR: Final = struct.Struct("<QII")
_SCOPE: Final = struct.Struct("<4I20I4I")
_SETTING: Final = struct.Struct("<bbHI")
_CHOICE: Final = struct.Struct("<II")
_START: Final = struct.Struct("<I")
_CHECKED_FROM: Final = 16
_EXPONENTS: Final = 64
_MOST_BITS: Final = 8
# So few intervals may begin under one code before another bit is looked at.
_FEW: Final = 4
_BASE: Final = 0xD6E8FEB86659FD93
_64: Final = (1 << 64) - 1


def checksum(image: bytes) -> int:
    """What tells two images apart; it stands in each.

    Example:
        >>> checksum(pack(Rules(()))) == checksum(pack(Rules((Scope(8),))))
        False
    """
    return zlib.crc32(image[_CHECKED_FROM:])


def pack(rules: Rules) -> bytes:
    """The image of rules, the same for the same rules.

    Raises:
        TunerError: There are too many, or a sequence cannot be recognised.

    Example:
        >>> len(pack(Rules(())))
        64
    """
    return _Writer().image(rules)


def unpack(image: bytes, origin: str = "the image") -> Rules:
    """The rules in an image: the same decisions, though not the same list of rules.

    Args:
        image: What `pack` made.
        origin: The name of the file, for messages.

    Raises:
        TunerError: It is no image, a damaged one, or one of another version.

    Example:
        >>> rules = Rules((Scope(8, rules=(Rule("all-gather", 1, 9, Answer()),)),))
        >>> unpack(pack(rules)) == rules
        True
    """
    if image[: len(MAGIC)] != MAGIC:
        raise TunerError(f"{origin} holds no rules for the tuner plugin")
    if len(image) < _HEADER.size:
        raise TunerError(f"{origin} is cut short")
    _, version, stated, size, *counts = _HEADER.unpack_from(image)
    if version != VERSION:
        raise TunerError(
            f"{origin} has rules of format {version}, this lagom_jax reads {VERSION}: "
            "write them again with the lagom_jax that is installed"
        )
    if size != len(image) or stated != checksum(image):
        raise TunerError(f"{origin} is damaged or cut short: write it again")
    try:
        return _Reader(image, counts[:7]).rules()
    except (IndexError, struct.error) as error:
        raise TunerError(f"{origin} is damaged: {error}") from None


def save(rules: Rules, path: str | Path) -> None:
    """Writes rules to a file: all of them, or nothing where writing fails.

    Raises:
        TunerError: The file cannot be written.

    Example:
        >>> save(Rules(()), "/nowhere/rules")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.TunerError: cannot write the rules /nowhere/rules: ...
    """
    image = pack(rules)
    try:
        write_whole(path, image)
    except OSError as error:
        raise TunerError(f"cannot write the rules {path}: {error}") from None


def load(path: str | Path) -> Rules:
    """Reads the rules in a file; `unpack` says what can be wrong with it.

    Example:
        >>> load("/nowhere/rules")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.TunerError: cannot read the rules /nowhere/rules: ...
    """
    try:
        image = Path(path).read_bytes()
    except OSError as error:
        raise TunerError(f"cannot read the rules {path}: {error}") from None
    return unpack(image, str(path))


def code_of(nbytes: int, bits: int) -> int:
    """A number that grows with a size: its exponent, and the bits behind the first.

    Example:
        >>> [code_of(nbytes, 1) for nbytes in (1, 2, 3, 4, 5, 6)]
        [0, 2, 3, 4, 4, 5]
    """
    nbytes = max(nbytes, 1)
    exponent = nbytes.bit_length() - 1
    behind = (
        nbytes >> exponent - bits if exponent >= bits else nbytes << bits - exponent
    )
    return exponent << bits | behind & (1 << bits) - 1


def window_hash(window: Iterable[Call]) -> int:
    """The hash that the plugin keeps of the last calls.

    Example:
        >>> window_hash([("all-gather", 1)]) == window_hash([("all-gather", 2)])
        False
    """
    total = 0
    for function, nbytes in window:
        mixed = (nbytes << 3 | FUNCTIONS.index(function)) * 0x9E3779B97F4A7C15 & _64
        mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _64
        total = (total * _BASE + (mixed ^ mixed >> 32)) & _64
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class _Interval:
    """Sizes for which the same rules come into question."""

    least: int
    most: int
    rules: tuple[Rule, ...]


def _intervals(rules: Sequence[Rule]) -> list[_Interval]:
    """Disjoint intervals in ascending order, for rules of one function."""
    edges = sorted({edge for rule in rules for edge in (rule.least, rule.most + 1)})
    begins: dict[int, list[int]] = {edge: [] for edge in edges}
    ends: dict[int, list[int]] = {edge: [] for edge in edges}
    for number, rule in enumerate(rules):
        begins[rule.least].append(number)
        ends[rule.most + 1].append(number)
    open_now: set[int] = set()
    found: list[_Interval] = []
    for edge, after in itertools.pairwise(edges):
        open_now.difference_update(ends[edge])
        open_now.update(begins[edge])
        here = _that_count(rules[number] for number in sorted(open_now))
        if not here:
            continue
        if found and found[-1].most + 1 == edge and _alike(found[-1].rules, here):
            found[-1] = dataclasses.replace(found[-1], most=after - 1)
        else:
            found.append(_Interval(edge, after - 1, here))
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


class _Writer:
    """Collects the sections."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, ...]] = []
        self.items: list[tuple[int, ...]] = []
        self.anchors: list[tuple[int, ...]] = []
        self.scopes: list[tuple[int, ...]] = []
        self.settings: dict[Answer, int] = {}
        self.choices: list[tuple[int, ...]] = []
        self.starts: list[tuple[int, ...]] = []

    def image(self, rules: Rules) -> bytes:
        """The whole."""
        for scope in rules.scopes:
            self._scope(scope)
        settings = [_setting(answer) for answer in self.settings]
        sections: tuple[tuple[struct.Struct, Sequence[tuple[int, ...]]], ...] = (
            (_INTERVAL, self.intervals),
            (_ITEM, self.items),
            (_ANCHOR, self.anchors),
            (_SCOPE, self.scopes),
            (_SETTING, settings),
            (_CHOICE, self.choices),
            (_START, self.starts),
        )
        body = b"".join(form.pack(*row) for form, rows in sections for row in rows)
        counts = [len(rows) for _, rows in sections]
        size = _HEADER.size + len(body)
        unsigned = _HEADER.pack(MAGIC, VERSION, 0, size, *counts, 0, 0, 0) + body
        header = (MAGIC, VERSION, checksum(unsigned), size, *counts, 0, 0, 0)
        return _HEADER.pack(*header) + body

    def _scope(self, scope: Scope) -> None:
        tables: list[int] = []
        for function in FUNCTIONS:
            tables += self._table([r for r in scope.rules if r.function == function])
        sequences = different(scope.sequences)
        window, unique = unique_windows(sequences)
        first = len(self.items)
        for sequence in sequences:
            self._sequence(sequence)
        first_anchor = len(self.anchors)
        slots = self._anchors(unique, first)
        self.scopes.append(
            (
                scope.ranks,
                scope.hosts or 0,
                scope.domains or 0,
                window,
                *tables,
                first if len(sequences) == 1 else NOTHING,
                first_anchor,
                slots,
                0,
            )
        )

    def _table(self, rules: Sequence[Rule]) -> tuple[int, int, int, int]:
        intervals = _intervals(rules)
        if not intervals:
            return (0, 0, 0, 0)
        first_interval, first_start = len(self.intervals), len(self.starts)
        for interval in intervals:
            self.intervals.append(
                (
                    interval.least,
                    interval.most,
                    len(self.choices),
                    len(interval.rules),
                )
            )
            for rule in interval.rules:
                self.choices.append((rule.pipe_ops or 0, self._answer(rule.answer)))
        least = [interval.least for interval in intervals]
        bits, starts = min(
            ((bits, _starts(least, bits)) for bits in range(_MOST_BITS + 1)),
            key=lambda made: (max(_FEW, _most_in_one(made[1])), made[0]),
        )
        self.starts += [(start,) for start in starts]
        return (first_interval, len(intervals), first_start, bits)

    def _sequence(self, sequence: tuple[Place, ...]) -> None:
        first = len(self.items)
        for number, place in enumerate(sequence):
            self.items.append(
                (
                    place.nbytes,
                    FUNCTIONS.index(place.function),
                    NOTHING if place.answer is None else self._answer(place.answer),
                    first + (number + 1) % len(sequence),
                    0,
                )
            )

    def _anchors(self, unique: dict[tuple[Call, ...], int], first: int) -> int:
        """A hash table with at least as many empty slots as full ones."""
        if not unique:
            return 0
        slots = 1 << (2 * len(unique) - 1).bit_length()
        table = [(0, 0, 0)] * slots
        for window, last in unique.items():
            hashed = window_hash(window)
            slot = hashed >> 32 & slots - 1
            while table[slot][2]:
                slot = (slot + 1) % slots
            table[slot] = (hashed, first + last, 1)
        self.anchors += table
        return slots

    def _answer(self, answer: Answer) -> int:
        return self.settings.setdefault(answer, len(self.settings))


def _setting(answer: Answer) -> tuple[int, int, int, int]:
    return (
        -1 if answer.algorithm is None else ALGORITHMS.index(answer.algorithm),
        -1 if answer.protocol is None else PROTOCOLS.index(answer.protocol),
        answer.channels or 0,
        answer.chunk_bytes or 0,
    )


def _starts(least: Sequence[int], bits: int) -> list[int]:
    """For every code the number of intervals that begin below it.

    What counts is how far they begin above the first.
    """
    count = [0] * (_EXPONENTS << bits)
    for nbytes in least:
        count[code_of(nbytes - least[0], bits)] += 1
    starts = [0]
    for number in count:
        starts.append(starts[-1] + number)
    return starts


def _most_in_one(starts: Sequence[int]) -> int:
    return max(b - a for a, b in itertools.pairwise(starts))


class _Reader:
    """Takes the sections apart."""

    def __init__(self, image: bytes, counts: Sequence[int]) -> None:
        forms = (_INTERVAL, _ITEM, _ANCHOR, _SCOPE, _SETTING, _CHOICE, _START)
        rows: list[list[tuple[int, ...]]] = []
        at = _HEADER.size
        for form, count in zip(forms, counts, strict=True):
            end = at + form.size * count
            if end > len(image):
                raise IndexError("its sections do not fit")
            rows.append(list(form.iter_unpack(image[at:end])))
            at = end
        self.intervals, self.items, self.anchors, self.scopes = rows[:4]
        settings, self.choices, _ = rows[4:]
        self.answers = [_read_setting(*row) for row in settings]

    def rules(self) -> Rules:
        """The whole."""
        found: list[Scope] = []
        for row in self.scopes:
            rules: list[Rule] = []
            for number, function in enumerate(FUNCTIONS):
                first, count, _, _ = row[4 + 4 * number : 8 + 4 * number]
                for interval in self.intervals[first : first + count]:
                    rules += self._rules(function, interval)
            sequences = self._sequences(*row[25:27]) if row[3] else ()
            found.append(
                Scope(row[0], row[1] or None, row[2] or None, tuple(rules), sequences)
            )
        return Rules(tuple(found))

    def _rules(self, function: str, interval: tuple[int, ...]) -> list[Rule]:
        least, most, first, count = interval
        return [
            Rule(function, least, most, self.answers[setting], pipe_ops or None)
            for pipe_ops, setting in self.choices[first : first + count]
        ]

    def _sequences(self, first: int, slots: int) -> tuple[tuple[Place, ...], ...]:
        """Every sequence of a scope has a place with an anchor."""
        anchors = self.anchors[first : first + slots]
        found: list[tuple[Place, ...]] = []
        done: set[int] = set()
        for start in sorted(item for _, item, used in anchors if used):
            if start in done:
                continue
            ring = [start]
            while (after := self.items[ring[-1]][3]) != start:
                ring.append(after)
                if len(ring) > len(self.items):
                    raise IndexError("a sequence does not come back")
            done.update(ring)
            begin = ring.index(min(ring))
            found.append(tuple(self._place(i) for i in ring[begin:] + ring[:begin]))
        return tuple(found)

    def _place(self, number: int) -> Place:
        nbytes, function, setting, _, _ = self.items[number]
        answer = None if setting == NOTHING else self.answers[setting]
        return Place(FUNCTIONS[function], nbytes, answer)


def _read_setting(
    algorithm: int, protocol: int, channels: int, chunk_bytes: int
) -> Answer:
    return Answer(
        None if algorithm < 0 else ALGORITHMS[algorithm],
        None if protocol < 0 else PROTOCOLS[protocol],
        channels or None,
        chunk_bytes or None,
    )
