"""Orders in a store, where they stay for the plans that come."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.compile.store import Store
from lagom_jax.files import digest_of_code
from lagom_jax.measurements import Calibration
from lagom_jax.order import Ordering
from lagom_jax.typed_json import FormError, plain, typed

LOG = logging.getLogger("lagom_jax")

_PACKAGE: Final = Path(__file__).parents[1]
DECIDED_BY: Final = (
    *("cluster", "compile", "cost", "hlo", "measurements", "order", "plan"),
    *("program", "settings"),
    *("errors.py", "files.py", "later.py", "markup.py", "typed_json.py", "units.py"),
)
"""Rooms and modules whose code has a say in an order: those that the search loads."""


class Circumstances(NamedTuple):
    """Conditions of a search that are the same for all questions of a plan."""

    cluster: Cluster
    constants: str
    """The digest of the likeliest model's constants."""
    calibration: Calibration | None
    streams: bool
    """True if collectives may have a second stream."""


class KeptOrders:
    """Orders that were found under the same circumstances, by what was asked."""

    def __init__(self, store: Store | None, circumstances: Circumstances) -> None:
        """Reads nothing yet.

        Args:
            store: Where orders stay; None for nowhere.
            circumstances: Conditions under which all are found.
        """
        self._store, self._circumstances = store, circumstances

    def order(
        self, question: Mapping[str, Any], find: Callable[[], Ordering]
    ) -> Ordering:
        """The order that is kept as the answer to a question, or is found and kept.

        Args:
            question: All that the answer depends on beside the circumstances.
            find: Looks for it.
        """
        if self._store is None:
            return find()
        key = self._key(question)
        entry = self._store.find(key, "order")
        if entry is not None:
            try:
                return typed(Ordering, entry[0])
            except FormError as error:
                LOG.warning("a kept order is not used: %s: %s", key, error)
        ordering = find()
        self._store.keep(key, plain(ordering), kind="order")
        return ordering

    def _key(self, question: Mapping[str, Any]) -> str:
        stated = {
            "code": digest_of_code(*(_PACKAGE / name for name in DECIDED_BY)),
            "versions": [platform.python_version(), np.__version__],
            "under": plain(self._circumstances._asdict()),
            "question": plain(question),
        }
        text = json.dumps(stated, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
