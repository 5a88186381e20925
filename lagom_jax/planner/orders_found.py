"""Orders that a plan has looked for: of one module it looks only once.

Two compiles may leave the same module but for the number that XLA counts its modules
with. Ways off the rings do: what they change comes after the scheduler. So it is a part
of the question what will lie in symmetric memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import TypeAlias

from lagom_jax.hlo import Module
from lagom_jax.order import Ordering
from lagom_jax.plan.transport import CtaPolicy
from lagom_jax.planner.kept_orders import KeptOrders
from lagom_jax.settings.controls import Controls

Question: TypeAlias = tuple[str, Controls, int]
"""A module, what can be set, and how many orders may be tried."""


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


class OrdersFound:
    """The answers that are known."""

    def __init__(self, kept: KeptOrders) -> None:
        """Begins with none.

        Args:
            kept: Orders that other plans have found.
        """
        self._answers: dict[Question, OrderFound] = {}
        self._kept = kept

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
        module, controls, evaluations = question
        ordering = self._kept.order(
            {
                "module": module,
                "controls": controls,
                "evaluations": evaluations,
                "spare": spare_bytes,
                "policy": policy,
            },
            find,
        )
        self._answers[question] = OrderFound(ordering, spare_bytes, policy)
        return ordering


def digest_of(module: Module) -> str:
    """The same for modules that differ in nothing that is read here.

    The number that XLA counts its modules with is such a thing, and so are the files
    and lines that instructions come from.
    """
    proto = type(module.proto)()
    proto.CopyFrom(module.proto)
    proto.DiscardUnknownFields()
    proto.ClearField("stack_frame_index")
    stated = repr((*module.stated, *sorted(module.placed.items()))).encode()
    data = proto.SerializeToString(deterministic=True)
    return hashlib.sha256(data + stated).hexdigest()
