"""Orders that a plan has looked for: of one module it looks only once.

Ways off the rings leave most modules as XLA's scheduler left them before, but for the
number that XLA counts its modules with: what changes comes after the scheduler. Where
there is a store, what was found stays for the plans that come.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.compile.store import Store
from lagom_jax.files import digest_of_code
from lagom_jax.hlo import Module
from lagom_jax.measurements import Calibration
from lagom_jax.order import Ordering
from lagom_jax.plan.transport import CtaPolicy
from lagom_jax.settings.controls import Controls
from lagom_jax.typed_json import FormError, plain, typed

LOG = logging.getLogger("lagom_jax")

_PACKAGE: Final = Path(__file__).parents[1]
DECIDED_BY: Final = (
    *("cluster", "compile", "cost", "hlo", "measurements", "order", "plan"),
    *("program", "settings"),
    *("errors.py", "files.py", "later.py", "markup.py", "typed_json.py", "units.py"),
)
"""Rooms and modules whose code has a say in an order: those that the search loads."""

Question: TypeAlias = tuple[str, Controls, int, int | None]
"""A module, what can be set, how many orders may be tried, and the place of the model
that is asked; None for the likeliest."""


@dataclasses.dataclass(frozen=True, slots=True)
class OrderFound:
    """The answer to a question, and what it was found under."""

    ordering: Ordering
    spare_bytes: int | None
    """Bytes that the program might have taken more than it did; None for any."""
    policy: CtaPolicy
    """Of the process."""

    def fits(self, spare_bytes: int | None) -> bool:
        """True if it is the answer with no more memory than there was, too.

        What is the best among many orders is the best among those of them that fit.

        Example:
            >>> from lagom_jax.order import Ordering
            >>> found = OrderFound(Ordering({}, {}, 2.0, 1.0, 5, 9, ()), 7, "default")
            >>> [found.fits(spare) for spare in (4, 5, 7, 8, None)]
            [False, True, True, False, False]
        """
        if spare_bytes is None:
            return self.spare_bytes is None
        if self.spare_bytes is not None and spare_bytes > self.spare_bytes:
            return False
        return self.ordering.live_bytes_change <= spare_bytes


class Circumstances(NamedTuple):
    """Conditions of a search that are the same for all questions of a plan."""

    cluster: Cluster
    constants: str
    """The digest of the likeliest model's constants."""
    calibration: Calibration | None
    streams: bool
    """True if collectives may have a second stream."""


class OrdersFound:
    """The answers that are known, and where more of them may be kept."""

    def __init__(self, store: Store | None, circumstances: Circumstances) -> None:
        """Begins with none.

        Args:
            store: Where answers stay for other plans; None for nowhere.
            circumstances: What all questions are asked under.
        """
        self._answers: dict[Question, OrderFound] = {}
        self._store = store
        self._circumstances = circumstances

    def answer(
        self,
        question: Question,
        spare_bytes: int | None,
        policy: CtaPolicy,
        *,
        same: Callable[[CtaPolicy], bool],
        find: Callable[[], Ordering],
    ) -> Ordering:
        """The order for a question, looked for where it is not known.

        Args:
            question: What is asked.
            spare_bytes: What the program may take more than it does.
            policy: Of the process.
            same: Whether a module's collectives are the same under another policy.
            find: Looks for it.
        """
        known = self._answers.get(question)
        if (
            known is not None
            and known.fits(spare_bytes)
            and (known.policy == policy or same(known.policy))
        ):
            return known.ordering
        ordering = self._kept_or_found(question, spare_bytes, policy, find)
        self._answers[question] = OrderFound(ordering, spare_bytes, policy)
        return ordering

    def _kept_or_found(
        self,
        question: Question,
        spare_bytes: int | None,
        policy: CtaPolicy,
        find: Callable[[], Ordering],
    ) -> Ordering:
        if self._store is None:
            return find()
        key = self._key(question, spare_bytes, policy)
        entry = self._store.find(key, "order")
        if entry is not None:
            try:
                return typed(Ordering, entry[0])
            except FormError as error:
                LOG.warning("a kept order is not used: %s: %s", key, error)
        ordering = find()
        self._store.keep(key, plain(ordering), kind="order")
        return ordering

    def _key(
        self, question: Question, spare_bytes: int | None, policy: CtaPolicy
    ) -> str:
        """The key under which an answer is kept."""
        module, controls, evaluations, member = question
        stated = {
            "code": digest_of_code(*(_PACKAGE / name for name in DECIDED_BY)),
            "versions": [platform.python_version(), np.__version__],
            "under": plain(self._circumstances._asdict()),
            "module": module,
            "controls": plain(controls),
            "evaluations": evaluations,
            "member": member,
            "spare": spare_bytes,
            "policy": policy,
        }
        text = json.dumps(stated, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def digest_of(module: Module) -> str:
    """The same for modules that differ in nothing that is read here.

    The number that XLA counts its modules with is such a thing, and so are the files
    and lines that instructions come from.
    """
    proto = type(module.proto)()
    proto.CopyFrom(module.proto)
    proto.DiscardUnknownFields()
    proto.ClearField("stack_frame_index")
    stated = repr(tuple(module.stated)).encode()
    data = proto.SerializeToString(deterministic=True)
    return hashlib.sha256(data + stated).hexdigest()
