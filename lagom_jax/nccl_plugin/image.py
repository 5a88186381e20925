"""The rules as the plugin reads them: one image, checked as a whole.

`docs/reference/tuner.md` describes the format, `plugin/rules.c` reads it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from lagom_jax.errors import TunerError
from lagom_jax.files import write_whole
from lagom_jax.nccl_plugin.pieces import FEW, Piece, codes_of, pieces_of
from lagom_jax.nccl_plugin.rules import (
    ALGORITHMS,
    FUNCTIONS,
    MOST_BYTES,
    Answer,
    Place,
    Rule,
    Rules,
    Scope,
)
from lagom_jax.nccl_plugin.windows import Call, different, unique_windows
from lagom_jax.plan.setting import PROTOCOLS

MAGIC: Final = b"LAGOMTUN"
VERSION: Final = 2
"""Raised with every change: a plugin ignores what is newer than itself."""
LARGEST: Final = 256 << 20
"""Bytes of a file or a control page; the plugin reads no larger one."""
NOTHING: Final = (1 << 32) - 1
_HEADER: Final = struct.Struct("<8sIIQ6I4I")
_PIECE: Final = struct.Struct("<QbbBBI")
_ITEM: Final = struct.Struct("<QbbBBIII")
_ANCHOR: Final = struct.Struct("<QII")
_SCOPE: Final = struct.Struct("<4I" + 5 * "Q6I" + "4I")
_CHOICE: Final = struct.Struct("<bbBBII")
_START: Final = struct.Struct("<I")
_SECTIONS: Final = (_PIECE, _ITEM, _ANCHOR, _SCOPE, _CHOICE, _START)
_CHECKED_FROM: Final = 16
# In place of an algorithm.
_NO_RULE: Final = -2
_BY_PIPE_OPS: Final = -3
_BASE: Final = 0xD6E8FEB86659FD93
_64: Final = (1 << 64) - 1


def checksum(image: bytes) -> int:
    """The checksum of an image, which is stored in it.

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
    image = _Writer().image(rules)
    if len(image) > LARGEST:
        raise TunerError(
            f"too many rules: they take {len(image)} bytes, and the plugin reads no "
            f"more than {LARGEST}"
        )
    return image


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
        return _ImageReader(image, counts[: len(_SECTIONS)]).rules()
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


class _Writer:
    """Collects the sections."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, ...]] = []
        self.items: list[tuple[int, ...]] = []
        self.anchors: list[tuple[int, ...]] = []
        self.scopes: list[tuple[int, ...]] = []
        self.choices: list[tuple[int, ...]] = []
        self.starts: list[tuple[int, ...]] = []

    def image(self, rules: Rules) -> bytes:
        """The whole."""
        for scope in rules.scopes:
            self._scope(scope)
        sections = (
            self.pieces,
            self.items,
            self.anchors,
            self.scopes,
            self.choices,
            self.starts,
        )
        body = b"".join(
            form.pack(*row)
            for form, rows in zip(_SECTIONS, sections, strict=True)
            for row in rows
        )
        counts = [len(rows) for rows in sections]
        size = _HEADER.size + len(body)
        unsigned = _HEADER.pack(MAGIC, VERSION, 0, size, *counts, 0, 0, 0, 0) + body
        header = (MAGIC, VERSION, checksum(unsigned), size, *counts, 0, 0, 0, 0)
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

    def _table(self, rules: Sequence[Rule]) -> tuple[int, ...]:
        pieces = pieces_of(rules)
        rows = [(piece.least, *self._piece_setting(piece)) for piece in pieces]
        # So that four can be compared wherever a look-up begins.
        rows += rows[-1:] * (FEW - 1)
        first_piece, first_start = len(self.pieces), len(self.starts)
        self.pieces += rows
        codes = codes_of([piece.least for piece in pieces])
        self.starts += [(start,) for start in codes.starts]
        return (
            codes.least,
            first_piece,
            len(rows),
            first_start,
            len(codes.starts) - 1,
            codes.linear,
            codes.bits,
        )

    def _piece_setting(self, piece: Piece) -> tuple[int, int, int, int, int]:
        rules = piece.rules
        if not rules:
            return _setting(None)
        if rules[0].pipe_ops is None:
            return _setting(rules[0].answer, piece.alone)
        first = len(self.choices)
        for rule in rules:
            self.choices.append((*_setting(rule.answer), rule.pipe_ops or 0))
        if rules[-1].pipe_ops is not None:
            self.choices.append((*_setting(None), 0))
        return (_BY_PIPE_OPS, -1, 0, piece.alone, first)

    def _sequence(self, sequence: tuple[Place, ...]) -> None:
        first = len(self.items)
        for number, place in enumerate(sequence):
            self.items.append(
                (
                    place.nbytes,
                    *_setting(place.answer),
                    FUNCTIONS.index(place.function),
                    first + (number + 1) % len(sequence),
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


def _setting(
    answer: Answer | None, alone: bool = False
) -> tuple[int, int, int, int, int]:
    if answer is None:
        return (_NO_RULE, -1, 0, 0, 0)
    return (
        -1 if answer.algorithm is None else ALGORITHMS.index(answer.algorithm),
        -1 if answer.protocol is None else PROTOCOLS.index(answer.protocol),
        answer.channels or 0,
        alone,
        answer.chunk_bytes or 0,
    )


class _ImageReader:
    """Takes the sections apart."""

    def __init__(self, image: bytes, counts: Sequence[int]) -> None:
        rows: list[list[tuple[int, ...]]] = []
        at = _HEADER.size
        for form, count in zip(_SECTIONS, counts, strict=True):
            end = at + form.size * count
            if end > len(image):
                raise IndexError("its sections do not fit")
            rows.append(list(form.iter_unpack(image[at:end])))
            at = end
        self.pieces, self.items, self.anchors, self.scopes = rows[:4]
        self.choices = rows[4]

    def rules(self) -> Rules:
        """The whole."""
        found: list[Scope] = []
        for row in self.scopes:
            rules: list[Rule] = []
            for number, function in enumerate(FUNCTIONS):
                first, count = row[5 + 7 * number : 7 + 7 * number]
                rules += self._rules(function, self.pieces[first : first + count])
            sequences = self._sequences(*row[40:42]) if row[3] else ()
            found.append(
                Scope(row[0], row[1] or None, row[2] or None, tuple(rules), sequences)
            )
        return Rules(tuple(found))

    def _rules(self, function: str, pieces: Sequence[tuple[int, ...]]) -> list[Rule]:
        found: list[Rule] = []
        ends = [piece[0] - 1 for piece in pieces[1:]]
        for (least, *setting), most in zip(pieces, [*ends, MOST_BYTES], strict=True):
            # Nothing begins and ends there: the last piece is written several times.
            if most < least:
                continue
            end = least if setting[3] else most
            for answer, pipe_ops in self._choices(setting):
                found.append(Rule(function, least, end, answer, pipe_ops or None))
        return found

    def _choices(self, setting: Sequence[int]) -> Iterator[tuple[Answer, int]]:
        settings = [(*setting, 0)]
        if setting[0] == _BY_PIPE_OPS:
            first = end = setting[4]
            while self.choices[end][5]:
                end += 1
            settings = self.choices[first : end + 1]
        for *parts, pipe_ops in settings:
            answer = _read_setting(*parts)
            if answer is not None:
                yield answer, pipe_ops

    def _sequences(self, first: int, slots: int) -> tuple[tuple[Place, ...], ...]:
        """Every sequence of a scope has a place with an anchor."""
        anchors = self.anchors[first : first + slots]
        found: list[tuple[Place, ...]] = []
        done: set[int] = set()
        for start in sorted(item for _, item, used in anchors if used):
            if start in done:
                continue
            ring = [start]
            while (after := self.items[ring[-1]][7]) != start:
                ring.append(after)
                if len(ring) > len(self.items):
                    raise IndexError("a sequence does not come back")
            done.update(ring)
            begin = ring.index(min(ring))
            found.append(tuple(self._place(i) for i in ring[begin:] + ring[:begin]))
        return tuple(found)

    def _place(self, number: int) -> Place:
        nbytes, *setting, function, _ = self.items[number]
        return Place(FUNCTIONS[function], nbytes, _read_setting(*setting))


def _read_setting(
    algorithm: int, protocol: int, channels: int, _: int, chunk_bytes: int
) -> Answer | None:
    if algorithm == _NO_RULE:
        return None
    return Answer(
        None if algorithm < 0 else ALGORITHMS[algorithm],
        None if protocol < 0 else PROTOCOLS[protocol],
        channels or None,
        chunk_bytes or None,
    )
