"""Decisions that were made before: one file each, read only from their owner.

Beside a plan lies, while its program makes its first step, a mark: whoever finds the
mark of a process that is gone knows that the plan ended a job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax

from lagom_jax.compile import files
from lagom_jax.errors import PlanError
from lagom_jax.plan import Plan, from_json, to_json
from lagom_jax.runtime.say import LOG

_FOLDER: Final = "lagom"
_DAY: Final = 86_400.0
_KEPT: Final = re.compile(rb'"kept":\s*true')
VERDICT_DAYS: Final = 7
"""For so long a measurement by which a plan was slower keeps it from being used."""


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
        try:
            if asked is not True:
                return cls(Path(asked).expanduser())
            config: Any = jax.config
            near = config.jax_compilation_cache_dir
            # jax may keep its own in a bucket, which is no folder.
            if near and "://" not in str(near):
                return cls(Path(near) / _FOLDER)
            root = environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
            return cls(Path(root) / "lagom_jax")
        except RuntimeError as error:
            # A user that the machine does not know has no home.
            LOG.info("decisions are kept nowhere: %s; name a folder (cache=)", error)
            return cls(None)

    def find(
        self, parts: Mapping[str, str], *, measured_only: bool = False
    ) -> Plan | None:
        """The plan for a key; None where there is none that can be read.

        Args:
            parts: The key.
            measured_only: Only one that was measured and found faster.
        """
        name = name_of(parts)
        path, plan = self._path(name), self._here.get(name)
        if plan is None and path is not None:
            plan = self._read(path)
        wanted = plan is not None and (not measured_only or was_faster(plan))
        return plan if wanted else None

    def _read(self, path: Path) -> Plan | None:
        try:
            content = files.read(path)
            if content is None:
                return None
            plan = from_json(content.decode(), str(path))
            measured = plan.evidence.measured
            old = time.time() - path.stat().st_mtime > VERDICT_DAYS * _DAY
            return None if measured and not measured.kept and old else plan
        except (OSError, ValueError, PlanError) as error:
            LOG.warning("a decision that was kept is not used: %s", error)
            return None

    def keep(self, parts: Mapping[str, str], plan: Plan) -> None:
        """Writes a plan, if it can be written."""
        name = name_of(parts)
        self._here[name] = plan
        _write(self._path(name), to_json(plan).encode())

    def keep_verdict(self, parts: Mapping[str, str], plan: Plan) -> None:
        """Writes a plan that was measured, unless noise may have hidden how it is.

        That is no verdict: the next job looks again.
        """
        measured = plan.evidence.measured
        assert measured is not None
        loss = measured.tuned_seconds - measured.baseline_seconds
        if measured.kept or loss > measured.noise_seconds:
            self.keep(parts, plan)

    def has_measured(self) -> bool:
        """True if any plan here was measured and found faster."""
        if any(was_faster(plan) for plan in self._here.values()):
            return True
        try:
            found = [] if self.folder is None else [*self.folder.glob("*.json")]
            # They are looked through before the first step, and not parsed for that.
            return any(_KEPT.search(path.read_bytes()) for path in found)
        except OSError as error:
            LOG.debug("decisions cannot be looked through: %s", error)
            return False

    def mark_of(self, plan: Plan) -> Path | None:
        """The file that says that a plan's program makes its first step."""
        return None if self.folder is None else self.folder / f"{digest_of(plan)}.tried"

    def mark(self, plan: Plan) -> None:
        """Says that a plan's program is about to make its first step."""
        _write(self.mark_of(plan), json.dumps(_here()).encode())

    def survived(self, plan: Plan) -> None:
        """Says that the job has gone on after it."""
        path = self.mark_of(plan)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def ended_a_job(self, plan: Plan) -> bool:
        """True if a job with this plan did not come through its first step."""
        path = self.mark_of(plan)
        try:
            content = None if path is None else files.read(path)
            if content is None:
                return False
            host, process = json.loads(content)
            # It may be in that step just now.
            return host != _here()[0] or not _runs(int(process))
        except OSError as error:
            LOG.debug("there is no mark of a plan that can be read: %s", error)
            return False
        except (ValueError, TypeError):
            return True

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.json"


def _write(path: Path | None, content: bytes) -> None:
    if path is None:
        return
    try:
        files.write(path, content)
    except OSError as error:
        LOG.warning("the decision is not kept: %s", error)
    else:
        LOG.debug("kept at %s", path)


def was_faster(plan: Plan) -> bool:
    """True if a plan was measured and found faster."""
    measured = plan.evidence.measured
    return measured is not None and measured.kept


def name_of(parts: Mapping[str, str]) -> str:
    """A key as a name, made of its parts."""
    for part, value in sorted(parts.items()):
        LOG.debug("key of the decision: %s = %s", part, value)
    text = "\0".join(f"{part}={parts[part]}" for part in sorted(parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_of(plan: Plan) -> str:
    """A hash of what a plan has done, however and whenever it was found."""
    same = dataclasses.replace(
        plan, evidence=dataclasses.replace(plan.evidence, measured=None, seconds=0.0)
    )
    return hashlib.sha256(to_json(same).encode()).hexdigest()[:32]


def _here() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    # This one has been through the step, or it would have taken the mark away.
    return process != os.getpid()
