"""What is known of one knob."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

OptionValue: TypeAlias = bool | int | float | str | bytes
"""A value as `compiler_options` take it: text for an enum and for a list."""
Value: TypeAlias = OptionValue | tuple[str, ...] | dict[str, str]
"""What such a value means: a tuple for a list, a dict for a map."""
Holder: TypeAlias = Literal["xla", "nccl"]
Type: TypeAlias = Literal[
    "bool", "int", "float", "string", "enum", "list", "map", "bytes"
]
Route: TypeAlias = Literal["XLA_FLAGS", "compiler_options", "environment"]
Scope: TypeAlias = Literal["executable", "process", "communicator"]
Changes: TypeAlias = Literal["program", "runtime", "nothing seen", "not tried"]


class FlagError(ValueError):
    """A name that nobody knows, or a value that XLA would refuse.

    Example:
        >>> raise FlagError("xla_gpu_x: no such flag")
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: xla_gpu_x: no such flag
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Spelling:
    """How `XLA_FLAGS` shortens the choices of an enum.

    Example:
        >>> short = Spelling(prefix="COLLECTIVES_", suffix="_MEMORY", any_case=True)
        >>> short.word("COLLECTIVES_PEER_MEMORY")
        'PEER'
    """

    prefix: str = ""
    suffix: str = ""
    any_case: bool = False

    def word(self, choice: str) -> str:
        """What `XLA_FLAGS` calls a choice."""
        return choice.removeprefix(self.prefix).removesuffix(self.suffix)

    def choice(self, word: str, choices: tuple[str, ...]) -> str | None:
        """The choice that a word of `XLA_FLAGS` stands for; None if there is none.

        Args:
            word: One word.
            choices: What may be chosen.

        Example:
            >>> Spelling(prefix="MODE_", any_case=True).choice("on", ("MODE_ON",))
            'MODE_ON'
        """
        word = word.upper() if self.any_case else word
        return next((c for c in choices if self.word(c) == word), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One option of XLA or one variable of NCCL.

    Example:
        >>> from xla_flags import find
        >>> flag = find("xla_gpu_pipeline_all_gather")
        >>> flag.kinds, flag.loops_only, flag.absent
        (('all-gather',), True, ('0.10.2',))
    """

    name: str
    holder: Holder
    group: str
    """What it is about; the file that its record is in."""
    type: Type
    binds: str
    """What it binds, in words."""
    scope: Scope
    """What holds its value: one executable, the process, or a communicator."""
    changes: Changes
    """What another value was seen to change."""
    seen: Mapping[str, Value | None]
    """Its default by version, of jaxlib or of NCCL; None where it is unset."""
    sources: tuple[str, ...]
    absent: tuple[str, ...] = ()
    """Versions that do not know it."""
    not_a_flag_in: tuple[str, ...] = ()
    """Versions whose `XLA_FLAGS` refuse it, or take it and leave it unset."""
    bits: int = 0
    """The width of an int."""
    choices: tuple[str, ...] = ()
    """What an enum or the items of a list may be, in any version."""
    spelling: Spelling = Spelling()
    signed: bool = False
    """Whether `XLA_FLAGS` takes a list of changes to the default, with + and -."""
    kinds: tuple[str, ...] = ()
    """The kinds of collective that it binds."""
    loops_only: bool = False
    """Whether it can only change programs with loops."""
    routes: tuple[Route, ...] = ("XLA_FLAGS", "compiler_options")
    """How it can be set."""
    hazards: tuple[str, ...] = ()
    """What can go wrong, what does nothing, and what it costs."""
    replaced_by: str = ""
    """Its name in versions that do not know this one."""
    planned: bool = False
    """Whether a plan may set it; see `check_planned`."""

    def __post_init__(self) -> None:
        for field, allowed in (
            ("holder", Holder),
            ("type", Type),
            ("scope", Scope),
            ("changes", Changes),
        ):
            value = getattr(self, field)
            if value not in get_args(allowed):
                raise FlagError(f"{self.name}: {field} cannot be {value!r}")
        if unknown := set(self.routes) - set(get_args(Route)):
            raise FlagError(f"{self.name}: no such routes: {unknown}")
        if self.type == "enum" and not self.choices:
            raise FlagError(f"{self.name}: an enum without choices")
        if self.type == "int" and self.bits not in (32, 64):
            raise FlagError(f"{self.name}: an int of {self.bits} bits")

    @property
    def default(self) -> Value | None:
        """Its default in the newest version that has it; None if unset or not known.

        Example:
            >>> from xla_flags import find
            >>> find("xla_gpu_all_gather_combine_threshold_bytes").default
            31457287
        """
        return list(self.seen.values())[-1] if self.seen else None

    def is_known_in(self, version: str) -> bool:
        """Whether a version knows it, or, of one that was never seen, the last before.

        Args:
            version: Of jaxlib or of NCCL, as the flag's holder counts.

        Example:
            >>> from xla_flags import find
            >>> flag = find("xla_gpu_pipeline_all_gather")
            >>> flag.is_known_in("0.10.2"), flag.is_known_in("0.99")
            (False, True)
        """
        return self._nearest(version) not in self.absent

    def is_a_flag_in(self, version: str) -> bool:
        """Whether a version's `XLA_FLAGS` take it, likewise.

        Example:
            >>> from xla_flags import find
            >>> find("xla_gpu_pipeline_all_gather").is_a_flag_in("0.10.2")
            False
        """
        nearest = self._nearest(version)
        return nearest not in (*self.absent, *self.not_a_flag_in)

    def _nearest(self, version: str) -> str:
        versions = sorted({*self.seen, *self.absent, *self.not_a_flag_in}, key=_parts)
        before = [one for one in versions if _parts(one) <= _parts(version)]
        return next(reversed(before), versions[0] if versions else version)

    def as_dict(self) -> dict[str, Any]:
        """What JSON says of it.

        Example:
            >>> from xla_flags import find
            >>> find("NCCL_MAX_CTAS").as_dict()["seen"]
            {'2.30.7': 64}
        """
        return {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        } | {"spelling": dataclasses.asdict(self.spelling), "seen": dict(self.seen)}


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
