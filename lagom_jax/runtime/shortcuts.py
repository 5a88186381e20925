"""Calls that go straight to their program, once it is known which one that is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax

from lagom_jax.runtime.arguments import Path, StaticsApart, fact_at, facts_of, paths_of
from lagom_jax.runtime.programs import UnknownArgumentsError


class _Settled(NamedTuple):
    """A program, and what tells its arguments from those of others."""

    fixed: tuple[Hashable, ...]
    facts: Mapping[Path, Hashable]
    run: Callable[..., Any]


class Shortcuts:
    """Programs by the few properties of arguments in which they differ.

    The programs themselves refuse what was guessed wrongly.

    Example:
        >>> import jax.numpy as jnp
        >>> shortcuts = Shortcuts(None)
        >>> shortcuts.add((jnp.ones(3),), {}, lambda x: "three")
        >>> shortcuts.add((jnp.ones(4),), {}, lambda x: "four")
        >>> shortcuts.run(jnp.ones(4))
        'four'
    """

    def __init__(self, apart: StaticsApart | None) -> None:
        """Takes what tells static arguments from others; None where there are none."""
        self._apart = apart
        self.forget()

    def forget(self) -> None:
        """Forgets all programs."""
        self.run: Callable[..., Any] | None = None
        """Runs one with all arguments of a call; None where there is none."""
        self._settled: list[_Settled] = []
        self._probes: list[Path] = []
        self._table: dict[Hashable, Callable[..., Any]] = {}

    def add(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
    ) -> None:
        """Lets calls with such arguments go to a program.

        Args:
            args: Arguments of a call.
            kwargs: The same by keyword.
            run: The program; takes them without static ones.
        """
        fixed, args, kwargs = self._divided(args, kwargs)
        facts = facts_of(jax.tree.leaves((args, kwargs)))
        by_path = dict(zip(paths_of(args, kwargs), facts, strict=True))
        new = _Settled(fixed, by_path, run)
        self._settled = [one for one in self._settled if one.run is not run]
        for other in self._settled:
            if self._key(other) == self._key(new):
                self._probes += _telling(other, new)
        self._settled.append(new)
        self._table = {self._key(one): one.run for one in self._settled}
        alone = len(self._settled) == 1 and self._apart is None
        self.run = run if alone else self._routed

    def _divided(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Hashable, ...], tuple[Any, ...], dict[str, Any]]:
        if self._apart is None:
            return (), args, kwargs
        return self._apart.divided(args, kwargs)

    def _routed(self, /, *args: Any, **kwargs: Any) -> Any:
        fixed: tuple[Hashable, ...] = ()
        if self._apart is not None:
            fixed, args = self._apart.taken(args, kwargs)
        for path in self._probes:
            fixed += (fact_at(path, args, kwargs),)
        run = self._table.get(fixed)
        if run is None:
            raise UnknownArgumentsError
        return run(*args, **kwargs)

    def _key(self, one: _Settled) -> Hashable:
        return (*one.fixed, *(one.facts.get(path) for path in self._probes))


def _telling(one: _Settled, other: _Settled) -> list[Path]:
    """A place where the arguments of two programs differ."""
    for path, fact in one.facts.items():
        if path and path in other.facts and fact != other.facts[path]:
            return [path]
    return []
