"""A collective in a form, with the matmuls next to it, as a schedule of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from lagom_jax.decompose.form import Form
from lagom_jax.decompose.matmul_beside import MatmulsBeside
from lagom_jax.decompose.site_forms import by_partitioner
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.program.program import Block, Kernel, Launch, Node, Run, Stream, Wait


def cuts_shorter_side(form: Form, site: Collective) -> bool:
    """True for a form that cuts the smaller operands of matmuls, mostly weights.

    So do chunks of what matmuls make. A gather brings rows of the larger, and gradients
    of weights in slices sum over these.

    Args:
        form: The form.
        site: The collective; what follows a matmul that is left to the partitioner
            nobody knows, so that it is cut as for a gather.
    """
    if site.kind == "all-gather" or by_partitioner(site):
        return False
    return form.kind == "chunks" and form.whole_weights


def schedule_of(
    form: Form, site: Collective, beside: MatmulsBeside, message: Collective
) -> Block:
    """The schedule in which `with_forms` writes a collective and its matmuls.

    Args:
        form: How they are cut.
        site: The collective as it is.
        beside: The matmuls that need it, or that it needs.
        message: What rings send, as it is carried.
    """
    short = cuts_shorter_side(form, site)
    chunks = form.by_collectives
    count = form.slices if chunks else site.groups.size * form.parts
    sent = part_of(site, count) if chunks else part_of(message, form.parts)
    matmuls = [Run(slice_of(one, count, shorter=short)) for one in beside.matmuls]
    between = [Run(slice_of(one, count)) for one in beside.between]
    gathers = site.kind == "all-gather"
    work = (*between, *matmuls) if gathers else (*matmuls, *between)
    sends = [Launch(sent, Stream.COLLECTIVE, number) for number in range(count)]
    own = 0 if chunks else form.parts
    if not gathers:
        walk = _reduced(work, sends, own=own, sums=form.sums_in_matmul)
    elif chunks:
        walk = _gathered(work, sends)
    else:
        walk = _passed_on(work, sends, own=own)
    return tuple(walk)


def _gathered(work: Block, sends: Sequence[Launch]) -> Iterator[Node]:
    """Chunks that are sent for at once; none is there without a message."""
    yield from sends
    for send in sends:
        yield Wait((send.token,))
        yield from work


def _passed_on(work: Block, sends: Sequence[Launch], *, own: int) -> Iterator[Node]:
    """Rows that arrive while those before them are multiplied, a rank's own first."""
    for number, send in enumerate(sends):
        if number >= own:
            yield Wait((number - own,))
        if number < len(sends) - own:
            yield send
        yield from work


def _reduced(
    work: Block, sends: Sequence[Launch], *, own: int, sums: bool
) -> Iterator[Node]:
    """Sums that leave while the next are made; a rank's own rows, which stay, last."""
    for number, send in enumerate(sends):
        if sums and number >= own:
            yield Wait((number - own,))
        yield from work
        if number < len(sends) - own:
            yield send
    yield Wait(tuple(send.token for send in sends))


def slice_of(matmul: Kernel, count: int, *, shorter: bool = False) -> Kernel:
    """A kernel of one part; of a matmul, of the longer side that is not summed.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> whole = Matmul(1, 4096, 1024, 512, "bf16", "bf16", "bf16")
        >>> kernel = Kernel("dot", Work("matmul", 1e9, 800, 400, (whole,)))
        >>> slice_of(kernel, 4).work.matmuls[0].m, slice_of(kernel, 4).work.flops
        (1024, 250000000.0)
        >>> slice_of(kernel, 4, shorter=True).work.matmuls[0].n
        256
    """
    work = matmul.work
    return Kernel(
        f"{matmul.name}, a slice",
        dataclasses.replace(
            work,
            flops=work.flops / count,
            bytes_read=work.bytes_read // count,
            bytes_written=work.bytes_written // count,
            executed=None if work.executed is None else work.executed / count,
            strided=work.strided // count,
            matmuls=tuple(_part_of_side(one, count, shorter) for one in work.matmuls),
        ),
    )


def _part_of_side(matmul: Matmul, count: int, shorter: bool) -> Matmul:
    if (matmul.m >= matmul.n) != shorter:
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
