"""The compiler as a sweep of candidates asks it, and its answer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from lagom_jax.errors import LagomError
from lagom_jax.plan.order import ScheduleEdit
from lagom_jax.planner.trial import Asked
from lagom_jax.scheduled import Scheduled
from xla_flags import OptionValue

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep


class StepCompiler(Protocol):
    """Compiles the step that is planned for."""

    def __call__(
        self,
        options: dict[str, OptionValue],
        order: ScheduleEdit | None,
        *,
        capture: bool,
    ) -> tuple[Scheduled, CompiledStep]:
        """Compiles it with options, and in another order than XLA's."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """The compiler's result for one candidate, not yet evaluated."""

    asked: Asked
    order: ScheduleEdit | None
    seconds: float
    scheduled: Scheduled | None = None
    compiled: CompiledStep | None = None
    captured: bytes = b""
    error: LagomError | None = None


def lost_in_an_order(compiled: CompiledStep) -> int:
    """Bytes of results that another order keeps apart from donated arguments."""
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile.toolchain import order_keeps_donation

    if order_keeps_donation(compiled.versions["jaxlib"]):
        return 0
    return compiled.memory.alias_bytes
