"""Published recipes, as data, to be compared with the results of a search."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from xla_flags.catalogue import known
from xla_flags.flag import Value
from xla_flags.values import parse_flag

_FILE = Path(__file__).with_name("recipes.json")


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that somebody has published for a kind of program.

    Example:
        >>> next(r for r in recipes() if r.name == "o1").settings
        mappingproxy({'optimization_level': 19})
    """

    name: str
    title: str
    meant_for: str
    """The programs that it is published for."""
    given: Mapping[str, str]
    """Settings that the catalogue cannot read, as they were published."""
    settings: Mapping[str, Value]
    """Settings by name, as values of the catalogue."""
    note: str
    source: str

    def for_version(self, jaxlib: str) -> dict[str, Value]:
        """The settings that a version knows.

        Args:
            jaxlib: A version that the catalogue has seen.

        Returns:
            Settings by name, without those that the version does not know.

        Example:
            >>> maxtext = next(r for r in recipes() if r.name == "maxtext-2-7b-1")
            >>> "xla_gpu_pipeline_all_gather" in maxtext.for_version("0.10.2")
            False
        """
        return {
            name: value
            for name, value in self.settings.items()
            if known()[name].is_known_in(jaxlib)
        }


@functools.cache
def recipes() -> tuple[Recipe, ...]:
    """The recipes of the catalogue.

    Returns:
        Every recipe, in the order of their file.

    Example:
        >>> all(recipe.source for recipe in recipes())
        True
    """
    return tuple(_recipe(r) for r in json.loads(_FILE.read_text(encoding="utf-8")))


def _recipe(record: dict[str, Any]) -> Recipe:
    published: dict[str, Any] = record.pop("published")
    settings: dict[str, Value] = {
        name: value if not isinstance(value, str) else parse_flag(known()[name], value)
        for name, value in published.items()
        if name in known()
    }
    given = {name: str(v) for name, v in published.items() if name not in known()}
    return Recipe(
        **record,
        given=MappingProxyType(given),
        settings=MappingProxyType(settings),
    )
