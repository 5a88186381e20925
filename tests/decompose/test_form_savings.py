"""Prices of forms, beside the schedules that XLA makes of them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.decompose import Form
from lagom_jax.decompose.cutting_advice import form_savings, sites_to_cut
from lagom_jax.decompose.form_savings import FormPrices, seconds_saved
from lagom_jax.decompose.site_forms import places_of
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel
from lagom_jax.scheduled import compile_scheduled

OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,
    **{
        f"xla_gpu_{kind}_combine_threshold_bytes": 0
        for kind in ("all_gather", "all_reduce", "reduce_scatter")
    },
}
MODEL = CostModel.of(Cluster.parse("h100:1x8"))
PRICES = FormPrices(MODEL, MODEL.contention())
TWO, FOUR = (Form("chunks", slices=count) for count in (2, 4))
ROWS, WIDTH, HIDDEN = 16384, 4096, 14336


def given(mesh, *specs):
    shapes = ((ROWS, WIDTH), *[(WIDTH, HIDDEN)] * 2, (HIDDEN, WIDTH))
    return [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]


def gated():
    """Rows that are gathered, multiplied three times and scattered; with gradients."""
    mesh = AbstractMesh((8,), ("t",))
    ins = (P("t"), P(None, "t"), P(None, "t"), P("t"))

    def layer(x, gate, up, down):
        rows = lax.all_gather(x, "t", tiled=True)
        made = jax.nn.silu(rows @ gate) * (rows @ up) @ down
        return x + lax.psum_scatter(made, "t", tiled=True)

    def step(*args):
        y, back = jax.vjp(jax.checkpoint(layer), *args)
        return back(jnp.tanh(y))

    f = jax.shard_map(step, mesh=mesh, in_specs=ins, out_specs=ins)
    return jax.jit(f), given(mesh, *ins)


def looked_at(step, args):
    compiled = compile_scheduled(
        step, *args, cluster="h100:1x8", compiler_options=OPTIONS
    )
    program = build_program(compiled.module)
    return program, replay(program, MODEL, MODEL.contention())


@pytest.fixture(scope="module")
def as_written():
    step, args = gated()
    program, timeline = looked_at(step, args)
    return step, args, sites_to_cut(program, timeline), timeline


def first(matmuls, kind, when="forward"):
    """The collective of a kind in a pass, with what is beside it."""
    return next(
        (site, matmuls[site])
        for place in places_of(matmuls)
        for site in place.sites
        if site.kind == kind and place.when == when
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
@pytest.mark.parametrize("form", [TWO, FOUR], ids=lambda form: form.label)
def test_a_form_saves_what_its_schedule_does(as_written, kind, form):
    """Priced on the plain program, then compiled, in the order that XLA gives it."""
    step, args, matmuls, timeline = as_written
    site, _ = first(matmuls, kind)
    priced = form_savings(matmuls, timeline, PRICES)[site][form]
    name = kind.replace("-", "_")

    def chosen(place):
        return form if place.kind == name and not place.backward else None

    cut = decompose.with_forms(step, chosen)
    saved = timeline.step_seconds - looked_at(cut, args)[1].step_seconds
    exposed = timeline.collectives()[site].exposed_seconds
    assert 0 < priced < exposed
    assert saved > 0
    # The pieces of a gather's own rows are copied, which is not priced.
    assert abs(priced - saved) < 0.3 * exposed


@pytest.mark.slow
def test_matmuls_that_share_a_collective_are_all_beside_it(as_written):
    *_, matmuls, _ = as_written
    _, gather = first(matmuls, "all-gather")
    assert [one.work.matmuls[0].k for one in gather.matmuls] == [WIDTH] * 2
    assert (gather.whole_rows, gather.joined_bytes) == (False, 0.0)
    # The gradients of weights sum over rows, and need what the others make.
    _, again = first(matmuls, "all-gather", "backward")
    assert len(again.matmuls) == 2
    assert again.whole_rows
    assert again.late_sums


@pytest.mark.slow
def test_a_matmul_beside_a_message_is_slower_than_alone(as_written):
    *_, matmuls, _ = as_written
    # Two matmuls share it, and last longer than it does: it is they that count.
    site, beside = first(matmuls, "all-gather")
    exposed = MODEL.collective(site).seconds
    kept, slowed = (
        seconds_saved(FOUR, site, beside, exposed, by)
        for by in (FormPrices(MODEL), PRICES)
    )
    assert slowed < kept


@pytest.mark.slow
def test_what_hides_a_part_hides_as_much_of_the_last_chunk(as_written):
    *_, matmuls, _ = as_written
    site, beside = first(matmuls, "reduce-scatter")
    exposed = MODEL.collective(site).seconds
    whole, half = (
        seconds_saved(FOUR, site, beside, seconds, FormPrices(MODEL))
        for seconds in (exposed, exposed / 2)
    )
    assert half > whole - exposed / 2


EXAMPLES = 8


def turned_between(site, program):
    """Kernels of a program that transpose as much as a collective gathers."""
    return [
        kernel
        for kernel, _, _ in program.tasks()
        if isinstance(kernel, Kernel)
        and kernel.work.kind == "transpose"
        and kernel.work.bytes_written >= site.bytes
    ]


@pytest.mark.slow
def test_rows_in_the_order_of_ranks_are_not_transposed():
    """Examples stand before rows, as in most models with sequence parallelism."""
    mesh = AbstractMesh((8,), ("t",))
    ins = (P(None, "t"), P(None, "t"), P(None, "t"), P("t"))

    def layer(x, gate, up, down):
        rows = lax.all_gather(x, "t", axis=1, tiled=True)
        made = jax.nn.silu(rows @ gate) * (rows @ up) @ down
        return lax.psum_scatter(made, "t", scatter_dimension=1, tiled=True)

    def step(*args):
        y, back = jax.vjp(jax.checkpoint(layer), *args)
        return back(jnp.tanh(y))

    f = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=ins, out_specs=ins))
    _, *weights = given(mesh, *ins)
    x = jax.ShapeDtypeStruct(
        (EXAMPLES, ROWS // EXAMPLES, WIDTH),
        jnp.bfloat16,
        sharding=NamedSharding(mesh, ins[0]),
    )
    program, timeline = looked_at(f, (x, *weights))
    matmuls = sites_to_cut(program, timeline)
    savings = form_savings(matmuls, timeline, PRICES)
    sites = [site for site in matmuls if matmuls[site].turned]
    assert len(sites) == len(matmuls) == 5
    assert turned_between(sites[0], program)
    whole = Form("whole")
    cut = decompose.with_forms(f, lambda site: whole)
    other, faster = looked_at(cut, (x, *weights))
    assert not turned_between(sites[0], other)
    assert len([*other.collectives()]) == len(sites)
    saved = timeline.step_seconds - faster.step_seconds
    priced = sum(savings[site][whole] for site in sites)
    assert saved > 0.04 * timeline.step_seconds
    # XLA's kernels of gates take and make rows in either order, which is not priced.
    assert abs(priced - saved) < 0.5 * saved
    # In chunks nothing is transposed, either.
    chunks, _ = looked_at(
        decompose.with_forms(
            f, lambda site: FOUR if site.kind == "all_gather" else whole
        ),
        (x, *weights),
    )
    assert len(turned_between(sites[0], chunks)) < len(
        turned_between(sites[0], program)
    )


@pytest.mark.slow
def test_a_result_smaller_than_what_it_is_made_of_stays_in_its_order():
    """To put that into the order of ranks would move more than the result has."""
    mesh = AbstractMesh((8,), ("t",))

    def step(rows, weight):
        return lax.psum_scatter(rows @ weight, "t", scatter_dimension=1, tiled=True)

    ins = P(None, None, "t"), P("t")
    f = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=ins, out_specs=P(None, "t")))
    narrow = HIDDEN // 16
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(
            ((EXAMPLES, ROWS // EXAMPLES, HIDDEN), (HIDDEN, narrow)), ins, strict=True
        )
    ]
    program, timeline = looked_at(f, args)
    ((site, beside),) = sites_to_cut(program, timeline).items()
    whole = Form("whole")
    other, _ = looked_at(decompose.with_forms(f, lambda site: whole), args)
    assert turned_between(site, program)
    assert turned_between(site, other)
    assert not beside.turned


@pytest.mark.slow
def test_what_the_partitioner_makes_is_cut_at_its_matmul():
    """One sum of two layers' matmuls, named by the line, in two and in slices."""
    mesh = AbstractMesh((8,), ("t",), axis_types=(AxisType.Auto,))
    ins = (P(), P(None, "t"), P(None, "t"), P("t"))

    def step(x, gate, up, down):
        wide = jax.nn.silu(x @ gate) * (x @ up)
        wide = lax.with_sharding_constraint(wide, NamedSharding(mesh, P(None, "t")))
        return x + wide @ down

    f, args = jax.jit(step, out_shardings=NamedSharding(mesh, P())), given(mesh, *ins)
    program, timeline = looked_at(f, args)
    (place,) = places_of(sites_to_cut(program, timeline))
    line = f"test_form_savings.py:{step.__code__.co_firstlineno + 3}"
    assert (place.kind, place.lines[0]) == ("dot_general", line)
    for cut in (
        decompose.with_forms(f, {(line, "dot_general"): TWO}),
        decompose.sliced(f, sites=[line]),
    ):
        other, faster = looked_at(cut, args)
        sums = [site.bytes for site, _, _ in other.collectives()]
        assert sums == [ROWS * WIDTH] * 2
        assert len(cut.sites) == 1
        assert faster.step_seconds < timeline.step_seconds
