"""One JSON record: exact keys, every number with a source, errors that name the place.

A record is a JSON object. Texts and references stand by themselves; every number
stands under `facts` as `{"value": ..., "source": ...}`, where the source is a key of
the record's own `sources` table.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import cast

from lagom_jax.errors import ClusterError

Json = dict[str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """A value with the place it was read from and the text of its source."""

    key: str
    value: object
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFile:
    """A record as read from its file; every method may raise `ClusterError`.

    Example:
        >>> record = RecordFile(Path("my.json"), {"name": "mine", "facts": {}})
        >>> record.text("name")
        'mine'
        >>> record.text("title")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.ClusterError: record my.json: `title` is missing
    """

    path: Path
    content: Json

    @classmethod
    def read(cls, path: Path) -> RecordFile:
        """The record in the file `path`."""
        try:
            content: object = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ClusterError(
                f"cannot read the record {path}: {error.strerror}"
            ) from None
        except json.JSONDecodeError as error:
            raise ClusterError(
                f"record {path} is not JSON: {error.msg} in line {error.lineno}"
            ) from None
        except UnicodeDecodeError:
            raise ClusterError(f"record {path} is not a text file") from None
        if not isinstance(content, dict):
            raise ClusterError(f"record {path} must be a JSON object")
        return cls(path, cast(Json, content))

    def error(self, key: str, problem: str) -> ClusterError:
        """An error about one key of this record, to be raised by the caller."""
        return ClusterError(f"record {self.path}: `{key}` {problem}")

    def expect_keys(self, *keys: str) -> None:
        """Checks that the record has these keys and no other."""
        self._check_keys("", self.content, keys, ())

    def text(self, key: str) -> str:
        """A text that is not empty."""
        if key not in self.content:
            raise self.error(key, "is missing")
        value = self.content[key]
        if not isinstance(value, str) or not value:
            raise self.error(key, "must be a text that is not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, possibly empty."""
        value = self.content.get(key)
        if not isinstance(value, list):
            raise self.error(key, "must be a list of texts (it may be empty)")
        for item in cast("list[object]", value):
            if not isinstance(item, str):
                raise self.error(key, "must hold nothing but texts")
        return tuple(cast("list[str]", value))

    def facts(
        self,
        keys: Collection[str],
        tables: Collection[str] = (),
        optional: Collection[str] = (),
    ) -> list[Fact]:
        """The facts of the record: `keys`, no others but the tables of facts.

        Args:
            keys: the facts that must be there, and no others.
            tables: names that must be there too and are read by `fact_table`.
            optional: facts that may be there, and come last.
        """
        content = self._table("facts", self.content.get("facts"))
        self._check_keys("facts.", content, (*keys, *tables), optional)
        found = (*keys, *(key for key in optional if key in content))
        return [self._fact(f"facts.{key}", content[key]) for key in found]

    def fact_table(
        self, key: str, needed: Collection[str], optional: Collection[str] = ()
    ) -> list[Fact]:
        """The facts in the table `facts.<key>`, such as rates by element type."""
        facts = self._table("facts", self.content.get("facts"))
        content = self._table(f"facts.{key}", facts.get(key))
        self._check_keys(f"facts.{key}.", content, needed, optional)
        return [
            self._fact(f"facts.{key}.{part}", inner) for part, inner in content.items()
        ]

    def check_sources(self, facts: Iterable[Fact]) -> None:
        """Checks that every source of the record is the source of one of `facts`."""
        used = {fact.source for fact in facts}
        for key, text in self._sources().items():
            if text not in used:
                raise self.error(f"sources.{key}", "is not the source of any fact")

    def count(self, fact: Fact, least: int = 1) -> int:
        """The fact's value: a whole number of at least `least`."""
        value = fact.value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(fact.key, f"must be a whole number, {least} or more")
        return value

    def quantity(self, fact: Fact) -> float:
        """The fact's value: a positive, finite number."""
        value = fact.value
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value < math.inf
        ):
            raise self.error(fact.key, "must be a positive number")
        return value

    def triple(self, fact: Fact) -> tuple[int, int, int]:
        """The fact's value: three whole numbers of at least 1."""
        value = fact.value
        items = cast("list[object]", value) if isinstance(value, list) else []
        if len(items) != 3:
            raise self.error(fact.key, "must be a list of three whole numbers")
        x, y, z = (self.count(Fact(fact.key, item, "")) for item in items)
        return x, y, z

    def _fact(self, key: str, content: object) -> Fact:
        entry = self._table(key, content)
        self._check_keys(f"{key}.", entry, ("value", "source"), ())
        sources = self._sources()
        source = entry["source"]
        if not isinstance(source, str) or source not in sources:
            raise self.error(
                f"{key}.source",
                f"must be a key of this record's `sources`: {_listed(sources)}",
            )
        return Fact(key, entry["value"], sources[source])

    def _sources(self) -> dict[str, str]:
        table = self._table("sources", self.content.get("sources"))
        for key, text in table.items():
            if not isinstance(text, str) or not text:
                raise self.error(f"sources.{key}", "must say who the source is")
        return cast("dict[str, str]", table)

    def _table(self, key: str, value: object) -> Json:
        if not isinstance(value, dict):
            raise self.error(key, "must be a JSON object")
        return cast(Json, value)

    def _check_keys(
        self,
        prefix: str,
        table: Json,
        needed: Collection[str],
        optional: Collection[str],
    ) -> None:
        missing = [key for key in needed if key not in table]
        unknown = [key for key in table if key not in needed and key not in optional]
        if missing and unknown:
            # One key written wrongly is both.
            raise ClusterError(
                f"record {self.path}: unknown "
                f"{_listed(f'`{prefix}{key}`' for key in unknown)}; missing "
                f"{_listed(f'`{prefix}{key}`' for key in missing)}"
            )
        for key in missing:
            raise self.error(prefix + key, "is missing")
        for key in unknown:
            known = _listed([*needed, *optional])
            raise self.error(prefix + key, f"is not known; known are {known}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
