"""Seconds that each form of a collective and its matmul would save, by the cost model.

The form and its transport are one decision: messages between neighbours are the finest
cut, but NCCL gives them few channels; parts of the collective itself keep its rate, and
leave the last part, or the first, with nothing to hide it. Beside messages and slices
of matmuls a form moves data through memory: slices of operands that are cut out,
results that are put together, sums of what arrives. What a schedule makes of it, a
compile has to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np

from lagom_jax.cost.prices import Price, Prices
from lagom_jax.decompose.form import Form
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import Kernel

_RINGS: Final = (
    Form("ring"),
    Form("ring", wide_sums=False, sums_in_matmul=True, whole_weights=False),
    Form("direct", wide_sums=False, whole_weights=False),
)
_CHUNKS: Final = tuple(
    Form("chunks", slices=count, whole_weights=whole)
    for count in (2, 4)
    for whole in (True, False)
)
_WHOLE_CHUNKS: Final = tuple(form for form in _CHUNKS if form.whole_weights)
FORMS: Final[Mapping[str, tuple[Form, ...]]] = {
    "all-gather": (*_RINGS, *_CHUNKS),
    "reduce-scatter": (*_RINGS, *_CHUNKS),
    "all-reduce": _WHOLE_CHUNKS,
}
"""The forms that `with_forms` can give each kind of collective, and that are tried."""


def seconds_saved(
    form: Form, site: Collective, matmul: Kernel, exposed: float, prices: Prices
) -> float:
    """Seconds less of one execution; below 0 where it takes more.

    Args:
        form: How the collective and the matmul would be cut.
        site: The collective as it is.
        matmul: The matmul next to it.
        exposed: Its seconds that nothing hides.
        prices: What collectives and kernels take alone.
    """
    if form.kind == "chunks":
        count, first = form.slices, 1
        message = prices.collective(part_of(site, count)).seconds
    else:
        count, first = site.groups.size * form.parts, form.parts
        message = prices.collective(part_of(message_of(site), form.parts)).seconds
    piece, lost = _in_slices(matmul, count, prices)
    left = (count - first) * max(0.0, message - piece)
    # One chunk has nothing beside it; a ring begins, or ends, with its own rows.
    alone = message if form.kind == "chunks" else 0.0
    moved = prices.kernel(_copy(_moved_bytes(form, site, matmul))).seconds
    return exposed - alone - left - lost - moved


def bytes_on_their_way(form: Form, site: Collective) -> int:
    """Bytes of a slice to send and one to receive; of all, where all are sent home."""
    parts = form.slices if form.kind == "chunks" else site.groups.size * form.parts
    return (parts if form.kind == "direct" else 2) * site.bytes // parts


class ByCopyEngines:
    """Prices of messages where those that copy engines can carry are carried so."""

    def __init__(self, prices: Prices) -> None:
        """Takes the prices of everything else."""
        self.kernel = prices.kernel
        self._prices = prices

    def collective(self, collective: Collective) -> Price:
        """The less of both."""
        usual = self._prices.collective(collective)
        if collective.kind != "collective-permute":
            return usual
        # XLA puts it into the other's memory.
        put = dataclasses.replace(
            collective, sends_symmetric=True, receives_symmetric=True, one_sided=True
        )
        other = self._prices.collective(put)
        return min(usual, other, key=lambda price: price.seconds)


def _moved_bytes(form: Form, site: Collective, matmul: Kernel) -> float:
    """Bytes that are written a second time, beside what the plain form moves."""
    made = float(matmul.work.bytes_written)
    if site.kind == "all-gather":
        # Products are put together; rows, too, where a gradient of a weight needs them.
        return made + (site.bytes if form.whole_weights else 0.0)
    cut_out = max(0.0, matmul.work.bytes_read - made)
    if form.kind == "chunks" or form.sums_in_matmul:
        return cut_out
    # What arrives is added to what was made, which may be twice as wide.
    return cut_out + made * (2.0 if form.wide_sums else 1.5)


def _copy(nbytes: float) -> Kernel:
    return Kernel("a copy", Work("copy", 0.0, int(nbytes), int(nbytes), ()))


def _in_slices(matmul: Kernel, count: int, prices: Prices) -> tuple[float, float]:
    """Seconds of one slice, and what all of them take more than the whole."""
    whole = prices.kernel(matmul).seconds
    piece = prices.kernel(slice_of(matmul, count)).seconds
    return piece, max(0.0, count * piece - whole)


def slice_of(matmul: Kernel, count: int) -> Kernel:
    """A matmul of one part of the rows: the longer of the sides that are not summed.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> whole = Matmul(1, 4096, 1024, 512, "bf16", "bf16", "bf16")
        >>> kernel = Kernel("dot", Work("matmul", 1e9, 800, 400, (whole,)))
        >>> slice_of(kernel, 4).work.matmuls[0].m, slice_of(kernel, 4).work.flops
        (1024, 250000000.0)
    """
    work = matmul.work
    return Kernel(
        f"{matmul.name}, a slice",
        dataclasses.replace(
            work,
            flops=work.flops / count,
            bytes_read=work.bytes_read // count,
            bytes_written=work.bytes_written // count,
            matmuls=tuple(_rows_of(one, count) for one in work.matmuls),
        ),
    )


def _rows_of(matmul: Matmul, count: int) -> Matmul:
    if matmul.m >= matmul.n:
        return dataclasses.replace(matmul, m=max(1, matmul.m // count))
    return dataclasses.replace(matmul, n=max(1, matmul.n // count))


def part_of(site: Collective, count: int) -> Collective:
    """The same collective for a part of its bytes."""
    return dataclasses.replace(
        site,
        operands=tuple((kind, -(-size // count)) for kind, size in site.operands),
        result_bytes=-(-site.result_bytes // count),
    )


def message_of(site: Collective) -> Collective:
    """The message of a rank to the next one in a ring: one slice."""
    members = site.groups.members
    pairs = np.stack([members, np.roll(members, -1, axis=1)], axis=-1).reshape(-1, 2)
    size = -(-site.bytes // site.groups.size)
    kind = site.element_types[0] if site.element_types else "bf16"
    return dataclasses.replace(
        site,
        kind="collective-permute",
        operands=((kind, size),),
        result_bytes=size,
        groups=Groups(pairs, point_to_point=True),
    )
