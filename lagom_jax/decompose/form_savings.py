"""Seconds that each form of a collective and its matmul would save, by the cost model.

Beside messages and slices of matmuls, as `cutting_advice` prices them, a form moves
data through memory: slices of operands that are cut out, results that are put together,
sums of what arrives. A form that leaves some of it to the matmul pays less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from lagom_jax.cost.prices import Prices
from lagom_jax.decompose.cutting_advice import in_slices, message_of, part_of
from lagom_jax.decompose.form import Form
from lagom_jax.hlo.collective import Collective
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
    piece, lost = in_slices(matmul, count, prices)
    left = (count - first) * max(0.0, message - piece)
    # One chunk has nothing beside it; a ring begins, or ends, with its own rows.
    alone = message if form.kind == "chunks" else 0.0
    moved = prices.kernel(_copy(_moved_bytes(form, site, matmul))).seconds
    return exposed - alone - left - lost - moved


def by_copy_engines(site: Collective) -> Collective:
    """A message as it would be if XLA put it into the other's memory."""
    return dataclasses.replace(
        site, sends_symmetric=True, receives_symmetric=True, one_sided=True
    )


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
