"""Decisions that were made before, one file each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from lagom_jax.errors import PlanError
from lagom_jax.plan import Plan, load, save
from lagom_jax.runtime.say import LOG

_FOLDER = "lagom"


class Cache:
    """Plans of this process and in a folder; what is wrong with that stops nobody.

    Example:
        >>> Cache(None).find({"program": "0"}) is None
        True
    """

    def __init__(self, folder: Path | None) -> None:
        """Takes a folder, which need not exist, or none."""
        self.folder = folder
        self._here: dict[str, Plan] = {}

    @classmethod
    def at(
        cls, asked: str | Path | bool, environ: Mapping[str, str] = os.environ
    ) -> Cache:
        """The cache in a folder.

        Args:
            asked: The folder, True for the usual one, False for none.
            environ: Where the usual one is looked for.

        Example:
            >>> Cache.at(False).folder is None
            True
        """
        if asked is False:
            return cls(None)
        if asked is not True:
            return cls(Path(asked).expanduser())
        config: Any = jax.config
        near = config.jax_compilation_cache_dir
        # jax may keep its own in a bucket, which is no folder.
        if near and "://" not in str(near):
            return cls(Path(near) / _FOLDER)
        root = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        return cls(Path(root) / "lagom_jax")

    def find(self, parts: Mapping[str, str]) -> Plan | None:
        """The plan for a key; None where there is none that can be read."""
        name = _name(parts)
        path = self._path(name)
        if name in self._here or path is None:
            return self._here.get(name)
        try:
            return load(path) if path.exists() else None
        except (OSError, PlanError) as error:
            LOG.warning("a decision that was kept is not used: %s", error)
            return None

    def keep(self, parts: Mapping[str, str], plan: Plan) -> None:
        """Writes a plan, if it can be written."""
        name = _name(parts)
        self._here[name] = plan
        path = self._path(name)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save(plan, path)
        except (OSError, PlanError) as error:
            LOG.warning("the decision is not kept: %s", error)
        else:
            LOG.debug("the decision is kept at %s", path)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.json"


def _name(parts: Mapping[str, str]) -> str:
    for part, value in sorted(parts.items()):
        LOG.debug("key of the decision: %s = %s", part, value)
    text = "\0".join(f"{part}={parts[part]}" for part in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
