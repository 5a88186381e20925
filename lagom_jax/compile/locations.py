"""Places in the user's source, kept beside a program instead of in it.

jax writes into a module where each operation comes from: the frames of the call, as
file, line and function. So a comment above a step, or another caller, would make it
another program to whoever compares bytes. Here a program carries numbers in the place
of files and lines, given in the order in which they occur, and the places travel beside
it: they are put back into what the compiler made of it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

from lagom_jax.compile.schema import message_class

_FILE: Final = "lagom.place"
_STRING = r'"((?:[^"\\]|\\.)*)"'
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_REFERENCE = re.compile(r"#loc\d*")
_SOURCE = re.compile(_STRING + r":(\d+):(\d+)(?: to .*)?")
_NAME = re.compile(_STRING + r"(?:\((#loc\d*)\))?")
_CALL = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_FUSED = re.compile(r"fused(?:<.*>)?\[(#loc\d*(?:, #loc\d*)*)\]")
_ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2})")


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFrame:
    """One frame of a call: a line of a source file, and its function."""

    file: str
    line: int
    function: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Locations:
    """The places of a program, by number; each the frames of a call, innermost first.

    Example:
        >>> Locations(((SourceFrame("train.py", 7, "step"),),)).places[0][0].line
        7
    """

    places: tuple[tuple[SourceFrame, ...], ...] = dataclasses.field(
        default=(), repr=False
    )

    def restored(self, module: bytes) -> bytes:
        """A compiled module, as if it had been compiled with its places.

        Args:
            module: A serialised `HloModuleProto`.
        """
        if not self.places:
            return module
        # All but the table of frames stays as it is, and unread.
        message: Any = message_class("HloModuleFramesProto").FromString(module)
        table = message.stack_frame_index
        known = [
            self._place(table, frame.file_location_id) for frame in table.stack_frames
        ]
        if not any(known):
            return module
        writer = _TableWriter(table)
        for number, place in enumerate(known):
            if place:
                writer.put(number, place)
        return message.SerializeToString()

    def _place(self, table: Any, location_id: int) -> tuple[SourceFrame, ...]:
        """The frames that a number in a table of XLA stands for; empty for none."""
        location = table.file_locations[location_id - 1]
        if table.file_names[location.file_name_id - 1] != _FILE:
            return ()
        return self.places[location.line - 1]


class _TableWriter:
    """Frames in a table of XLA, in which everything is counted from 1."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._names: dict[tuple[str, str], int] = {}
        self._locations: dict[SourceFrame, int] = {}
        self._frames: dict[tuple[SourceFrame, ...], int] = {}

    def put(self, number: int, place: tuple[SourceFrame, ...]) -> None:
        """Makes an entry, by its index, stand for a place."""
        entry = self._table.stack_frames[number]
        entry.file_location_id = self._location(place[0])
        entry.parent_frame_id = self._frame(place[1:])

    def _frame(self, place: tuple[SourceFrame, ...]) -> int:
        if not place:
            return 0
        if place not in self._frames:
            parent = self._frame(place[1:])
            self._table.stack_frames.add(
                file_location_id=self._location(place[0]), parent_frame_id=parent
            )
            self._frames[place] = len(self._table.stack_frames)
        return self._frames[place]

    def _location(self, frame: SourceFrame) -> int:
        if frame not in self._locations:
            self._table.file_locations.add(
                file_name_id=self._name("file_names", frame.file),
                function_name_id=self._name("function_names", frame.function),
                line=frame.line,
            )
            self._locations[frame] = len(self._table.file_locations)
        return self._locations[frame]

    def _name(self, kind: str, text: str) -> int:
        if (kind, text) not in self._names:
            getattr(self._table, kind).append(text)
            self._names[kind, text] = len(getattr(self._table, kind))
        return self._names[kind, text]


def separated(text: str) -> tuple[str, Locations] | None:
    """A module in MLIR's text form with numbers for places, and the places.

    Args:
        text: The module, printed with its locations.

    Returns:
        None where locations have a form that is not known here.

    Example:
        >>> program, found = separated('''
        ... #loc1 = loc("train.py":7:0)
        ... #loc2 = loc("step"(#loc1))
        ... #loc3 = loc("jit(step)/add"(#loc2))
        ... module { %0 = add loc(#loc3) }''')
        >>> found.places
        ((SourceFrame(file='train.py', line=7, function='step'),),)
        >>> program.splitlines()[3]
        '#loc3 = loc("jit(step)/add"("lagom.place":1:0))'
    """
    aliases = dict(_ALIAS.findall(text))
    frames: dict[str, tuple[SourceFrame, ...]] = {}
    try:
        for alias in aliases:
            _resolve(alias, aliases, frames)
    except ValueError:
        return None
    numbers: dict[tuple[SourceFrame, ...], int] = {}
    body = _ALIAS.sub("", text)
    for reference in _REFERENCE.findall(body):
        if frames.get(reference):
            numbers.setdefault(frames[reference], len(numbers) + 1)

    def rewritten(match: re.Match[str]) -> str:
        alias, said = match.groups()
        place = numbers.get(frames[alias])
        if place is None:
            # A part of other places, or none.
            return f"{alias} = loc({said if not frames[alias] else 'unknown'})"
        written = f'"{_FILE}":{place}:0'
        named = _NAME.fullmatch(said)
        if named is not None:
            written = f'"{named[1]}"({written})'
        return f"{alias} = loc({written})"

    return _ALIAS.sub(rewritten, text), Locations(tuple(numbers))


def _resolve(
    alias: str, aliases: dict[str, str], frames: dict[str, tuple[SourceFrame, ...]]
) -> tuple[SourceFrame, ...]:
    """The frames that an alias stands for.

    Raises:
        ValueError: It has a form that is not known here.
    """
    if alias in frames:
        return frames[alias]
    said = aliases.get(alias)
    found: tuple[SourceFrame, ...] = ()
    if said is None:
        raise ValueError(alias)
    if source := _SOURCE.fullmatch(said):
        found = (SourceFrame(_unescaped(source[1]), int(source[2])),)
    elif name := _NAME.fullmatch(said):
        found = _resolve(name[2], aliases, frames) if name[2] else ()
        if found and not found[0].function:
            inner = dataclasses.replace(found[0], function=_unescaped(name[1]))
            found = (inner, *found[1:])
    elif call := _CALL.fullmatch(said):
        parts = (_resolve(call[1], aliases, frames), _resolve(call[2], aliases, frames))
        found = parts[0] + parts[1]
    elif fused := _FUSED.fullmatch(said):
        parts = [_resolve(one, aliases, frames) for one in fused[1].split(", ")]
        found = next(filter(None, parts), ())
    elif said != "unknown":
        raise ValueError(said)
    frames[alias] = found
    return found


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
