"""The calls that NCCL makes of one collective, and so what a tuner can know of it."""

from __future__ import annotations

from lagom_jax.cost.span import Span
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.setting import Call

# In a group of operations NCCL goes through them by ascending size and takes those
# together whose traffic is below four times that of the first.
_TOGETHER = 4


def calls_of(collective: Collective, span: Span) -> tuple[Call, ...]:
    """The calls of one launch of a collective; several if its operands differ much.

    Args:
        collective: The collective.
        span: How its groups lie on the cluster.
    """
    larger = collective.bytes // max(1, collective.operand_bytes)
    return tuple(
        Call(
            collective.kind,
            span.size,
            span.domains,
            larger * nbytes,
            len(collective.operands),
        )
        for nbytes in aggregated(collective.operands)
    )


def aggregated(operands: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Bytes of each call that NCCL makes of operands in one group, in its order.

    Types come in the order of their largest operands.

    Args:
        operands: Element type and bytes of each.

    Example:
        >>> aggregated((("bf16", 1000), ("bf16", 3999), ("bf16", 4000)))
        (4999, 4000)
        >>> aggregated((("bf16", 1000), ("f32", 2000)))
        (2000, 1000)
    """
    found: list[int] = []
    by_size = sorted(operands, key=lambda operand: -operand[1])
    for kind in dict.fromkeys(kind for kind, _ in by_size):
        first = 0
        for nbytes in sorted(nbytes for other, nbytes in operands if other == kind):
            if first and nbytes < _TOGETHER * first:
                found[-1] += nbytes
            else:
                found.append(nbytes)
                first = nbytes
    return tuple(found)
