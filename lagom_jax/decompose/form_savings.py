"""Seconds that each form of a collective and its matmuls would save, by the cost model.

The form and its transport are one decision: messages between neighbours are the finest
cut, but NCCL gives them few channels; parts of the collective itself keep its rate, and
leave the last part, or the first, with nothing to hide it. A form is replayed as the
schedule that it is written in, so that matmuls beside messages are slowed as in a step.
Beside these a form moves data through memory: slices of operands that are cut out,
results that are put together, sums of what arrives. What a schedule makes of it, a
compile has to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from lagom_jax.cost.contention import Contention
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import replay
from lagom_jax.decompose.form import WHOLE, Form
from lagom_jax.decompose.form_schedule import (
    cuts_shorter_side,
    message_of,
    schedule_of,
)
from lagom_jax.decompose.matmul_beside import MatmulsBeside
from lagom_jax.decompose.site_forms import by_partitioner
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import Kernel, Program

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
_FORMS: Final[Mapping[str, tuple[Form, ...]]] = {
    "all-gather": (WHOLE, *_RINGS, *_CHUNKS),
    "reduce-scatter": (WHOLE, *_RINGS, *_CHUNKS),
    "all-reduce": _WHOLE_CHUNKS,
}


def forms_of(site: Collective) -> tuple[Form, ...]:
    """The forms that `with_forms` can give a collective, and that are tried."""
    forms = _FORMS.get(site.kind, ())
    return _WHOLE_CHUNKS if forms and by_partitioner(site) else forms


def forms_beside(site: Collective, beside: MatmulsBeside) -> tuple[Form, ...]:
    """Those of them that the matmuls next to a collective allow.

    Where nothing is transposed a whole collective is the plain one; and rows that are
    only summed over are needed all at once.
    """
    if not beside.matmuls:
        return ()
    return tuple(
        form
        for form in forms_of(site)
        if (beside.turned if form == WHOLE else beside.keeps_rows)
    )


def can_be_cut(site: Collective, beside: MatmulsBeside) -> bool:
    """True if a form of the matmuls next to a collective is one of the collective, too.

    Which operand of a matmul the partitioner gathers nobody says: chunks are of the
    larger one, and a smaller one would be gathered for all of them.
    """
    if not beside.matmuls or site.groups.size < 2 or not forms_of(site):
        return False
    if site.kind != "all-gather" or not by_partitioner(site):
        return True
    products = beside.matmuls[0].work.matmuls
    return site.bytes >= max(size for one in products for size in _operands(one))


@dataclasses.dataclass(frozen=True, slots=True)
class FormPrices:
    """Prices of collectives and kernels, and how messages may be carried."""

    prices: Prices
    contention: Contention | None = None
    """Of tasks beside each other; nothing by default."""
    copy_engines: bool = False
    """True if copy engines may carry messages between two."""

    def message(self, site: Collective) -> Collective:
        """A message of a collective's ring, by the shorter of the ways it may take."""
        usual = message_of(site)
        if not self.copy_engines:
            return usual
        # XLA puts it into the other's memory.
        put = dataclasses.replace(
            usual, sends_symmetric=True, receives_symmetric=True, one_sided=True
        )
        return min(usual, put, key=lambda one: self.prices.collective(one).seconds)


def seconds_saved(
    form: Form, site: Collective, beside: MatmulsBeside, exposed: float, by: FormPrices
) -> float:
    """Seconds less of one execution; below 0 where it takes more.

    Args:
        form: How the collective and the matmuls would be cut.
        site: The collective as it is.
        beside: The matmuls next to it.
        exposed: Its seconds that nothing hides.
        by: What everything takes.
    """
    body = schedule_of(form, site, beside, by.message(site))
    program = Program("a form", body, site.groups.size)
    totals = replay(program, by.prices, by.contention).totals
    now = (*beside.matmuls, *beside.between, *beside.turned)
    whole = sum(by.prices.kernel(one).seconds for one in now)
    # What hides a part of the collective as it is can hide as much of its slices.
    elsewhere = max(0.0, by.prices.collective(site).seconds - exposed)
    waits = max(0.0, totals.exposed_seconds - elsewhere)
    moved = by.prices.kernel(_copy(_moved_bytes(form, site, beside))).seconds
    return whole + exposed - totals.compute_seconds - waits - moved


def bytes_on_their_way(form: Form, site: Collective) -> int:
    """Bytes of a slice to send and one to receive.

    Where all slices are sent home, sums of those before are made meanwhile: two more.
    """
    parts = form.slices if form.by_collectives else site.groups.size * form.parts
    added = form.kind == "direct" and site.kind != "all-gather"
    return (4 if added else 2) * site.bytes // parts


def _moved_bytes(form: Form, site: Collective, beside: MatmulsBeside) -> float:
    """Bytes that are written a second time, beside what the plain form moves."""
    products = [one for kernel in beside.matmuls for one in kernel.work.matmuls]
    if form == WHOLE:
        return _turned_bytes(site, beside)
    if site.kind == "all-gather":
        # For who needs products or rows whole, they are put together.
        late = form.whole_weights or beside.late_sums
        rows = site.bytes if late and beside.whole_rows else 0.0
        return rows + beside.joined_bytes
    short = cuts_shorter_side(form, site)
    cut_out = sum((min if short else max)(_operands(one)) for one in products)
    if beside.turned and short:
        cut_out += sum(max(_operands(one)) for one in products)
    if form.kind == "chunks" and form.whole_weights:
        return cut_out + beside.joined_bytes
    if form.kind == "chunks" or form.sums_in_matmul:
        return cut_out
    # What arrives is added to what was made, which may be twice as wide.
    return cut_out + site.bytes * (2.0 if form.wide_sums else 1.5)


def _turned_bytes(site: Collective, beside: MatmulsBeside) -> float:
    """Bytes of what is put into the order of ranks, or out of it."""
    if site.kind != "all-gather":
        # What a matmul takes in place of what it makes.
        rows = [one for kernel in beside.matmuls for one in kernel.work.matmuls]
        return sum(max(_operands(one)) for one in rows)
    kernels = beside.sums if beside.keeps_rows else (*beside.sums, *beside.matmuls)
    sums = [one for kernel in kernels for one in kernel.work.matmuls]
    # Beside rows that are summed over, what they are multiplied with.
    return beside.joined_bytes + sum(min(_operands(one)) for one in sums)


def _operands(one: Matmul) -> tuple[float, float]:
    """Bytes of both operands of a product."""
    left = _bytes(one.batch * one.m * one.k, one.lhs)
    return left, _bytes(one.batch * one.k * one.n, one.rhs)


def _bytes(elements: int, kind: str) -> float:
    return elements * element_bytes(kind)


def _copy(nbytes: float) -> Kernel:
    return Kernel("a copy", Work("copy", 0.0, int(nbytes), int(nbytes), ()))
