"""Rings made of the gathers and scatters that a function has of its own."""

import contextlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.decompose import DecomposeError
from lagom_jax.plan import NoFormError, SiteForm
from tests.decompose.on_devices import Devices

RINGS = {"way": "tp-sp", "change": "rings"}
LEFT = 1  # The sum of the losses.


@pytest.fixture(scope="module")
def devices():
    running = Devices()
    yield running
    running.close()


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("scan", [False, True])
def test_a_step_with_its_gradients(devices, remat, scan):
    found = devices.answer(ask="rewritten", **RINGS, remat=remat, scan=scan)
    assert found["error"] < 2e-5
    # Gathers of both passes and scatters of both; three messages each.
    assert found["after"] == LEFT
    once = 1 if scan else 2
    assert found["permutes"] == 3 * once * (5 if remat else 4)


@pytest.mark.parametrize("options", [{"slices": 3}, {"both_ways": True}], ids=str)
@pytest.mark.parametrize("checked", [False, True])
def test_in_shorter_types_and_finer(devices, options, checked):
    found = devices.answer(
        ask="rewritten",
        **RINGS,
        remat=False,
        scan=True,
        options=options,
        dtype="bfloat16",
        checked=checked,
    )
    assert found["error"] < 2e-2
    assert found["after"] == LEFT


def test_only_the_sites_that_were_asked_for(devices):
    some = devices.answer(
        ask="rewritten", **RINGS, remat=False, scan=True, options={"sites": []}
    )
    assert "no ring can be made" in some["error"]


SHORT = {"wide_sums": False, "sums_in_matmul": True, "whole_weights": False}
GATHERS, SCATTERS = "all_gather", "reduce_scatter"


@pytest.mark.parametrize(
    ("forms", "permutes", "collectives"),
    [
        # Three messages for each of the layer's four collectives.
        ({GATHERS: SHORT, SCATTERS: SHORT}, 12, 0),
        ({GATHERS: {"kind": "chunks", "slices": 2}, SCATTERS: SHORT}, 6, 4),
        (
            {
                GATHERS: {"kind": "direct", "whole_weights": False},
                SCATTERS: {"kind": "chunks", "slices": 4, "whole_weights": False},
            },
            6,
            8,
        ),
        ({SCATTERS: {"kind": "chunks", "slices": 3, "whole_weights": False}}, 0, 8),
    ],
    ids=["rings", "both", "direct", "scatters"],
)
@pytest.mark.parametrize("remat", [False, True])
def test_every_collective_has_its_own_form(
    devices, forms, permutes, collectives, remat
):
    found = devices.answer(
        ask="rewritten",
        way="tp-sp",
        change="forms",
        options={"forms": forms},
        remat=remat,
        scan=True,
    )
    assert found["error"] < 2e-5
    again = GATHERS in forms and remat
    if not again:
        assert found["permutes"] == permutes
        assert found["after"] == LEFT + collectives + (remat and GATHERS not in forms)
    assert len(found["sites"]) == (4 if GATHERS in forms else 2) + again


def test_gradients_of_weights_run_between_messages(devices):
    """The weights of both sides of a layer: each of three by slices, none whole."""
    counts = [
        devices.answer(
            ask="rewritten",
            way="tp-sp",
            change="forms",
            options={"forms": {GATHERS: form, SCATTERS: form}},
            remat=False,
            scan=True,
        )["matmuls"]
        for form in (SHORT, {**SHORT, "whole_weights": True})
    ]
    (before, fine), (_, whole) = counts
    ranks, weights = 4, 3
    assert before == weights * 3
    assert whole == ranks * 2 * weights + weights
    assert fine == ranks * 3 * weights


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_rows_in_the_order_of_ranks(devices, remat, checked):
    """Gathers and scatters of both passes, those for a weight's gradient as well."""
    forms = {GATHERS: {"kind": "whole"}, SCATTERS: {"kind": "whole"}}
    found = devices.answer(
        ask="rewritten",
        way="tp-sp",
        change="forms",
        options={"forms": forms},
        remat=remat,
        scan=True,
        checked=checked,
        # Wide enough that operands of scatters are smaller than their results.
        sizes=(2, 20, 24, 12),
    )
    assert found["error"] < 2e-5
    assert (found["after"], found["permutes"]) == (found["before"], 0)
    assert len(found["sites"]) == 4 + remat


@pytest.mark.parametrize("remat", [False, True])
def test_sums_over_ranks_can_be_in_chunks(devices, remat):
    found = devices.answer(
        ask="rewritten",
        way="tp",
        change="forms",
        options={"forms": {"psum_invariant": {"kind": "chunks", "slices": 2}}},
        remat=remat,
        scan=True,
    )
    assert found["error"] < 2e-5
    assert found["after"] > found["before"]


def test_the_wrapper_writes_what_a_plan_names(devices):
    found = devices.answer(ask="wrapped", way="tp-sp", remat=False, scan=True)
    assert found["error"] < 2e-5
    assert found["forms"] == 4
    assert found["permutes"] == 12


def test_the_innermost_call_that_is_named_decides():
    def gathered(x, w):
        return lax.all_gather(x, "t", tiled=True) @ w

    def f(x, w):
        return gathered(x, w), gathered(x, 2 * w)

    step = mapped(f, (P("t"), P(None, "t")), (P(None, "t"), P(None, "t")))
    first = f.__code__.co_firstlineno
    inner, outer = (f"test_rings.py:{first + n}" for n in (-2, 1))

    def permutes(forms):
        cut = decompose.with_forms(step, forms)
        jaxpr = str(jax.make_jaxpr(cut)(*shapes((8, 4), (4, 8))))
        assert len(cut.sites) == jaxpr.count("ppermute[") / 3
        return jaxpr.count("ppermute[")

    ring = decompose.Form("ring")
    assert permutes({inner: ring}) == 6
    assert permutes({outer: ring}) == 6
    assert permutes({inner: ring, (outer, "all_gather"): decompose.PLAIN}) == 6
    with pytest.raises(DecomposeError, match=r"all_gather at test_rings\.py"):
        permutes({(outer, "reduce_scatter"): ring})
    with pytest.raises(DecomposeError, match=r"all_gather at test_rings\.py"):
        permutes({inner: decompose.PLAIN, outer: ring})


def shapes(*sizes):
    return [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]


def mapped(f, ins, out, **how):
    # The newest jax makes other axes where none are named.
    mesh = AbstractMesh((4,), ("t",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, **how)


def test_the_place_of_a_slice_is_worked_out_for_that_one_alone(monkeypatch):
    """With twice the ranks there is twice as much to trace, and not four times."""
    asked = []
    usual = lax.axis_index

    def counted(name):
        asked.append(name)
        return usual(name)

    monkeypatch.setattr(lax, "axis_index", counted)

    def times(ranks):
        f = jax.shard_map(
            lambda x, w: decompose.matmul_reduce_scatter(x, w, "t"),
            mesh=AbstractMesh((ranks,), ("t",), axis_types=(AxisType.Auto,)),
            in_specs=(P(None, "t"), P("t", None)),
            out_specs=P("t", None),
        )
        asked.clear()
        jax.make_jaxpr(lambda x, w: jax.vjp(f, x, w))(*shapes((64, 64), (64, 64)))
        return len(asked)

    assert 0 < times(16) <= 2 * times(8)


def test_sums_without_rows_to_cut_stay_whole():
    """Also beside one that has rows: nothing of a scalar can be summed first."""

    def layer(x, w):
        alone = lax.psum(jnp.vdot(x, x), "t")
        batched = lax.psum(jnp.einsum("bi,bi->b", x, x), "t")
        return lax.psum(x @ w, "t"), alone, batched

    step = mapped(layer, (P(None, "t"), P("t", None)), (P(), P(), P()))
    cut = decompose.with_forms(step, lambda site: decompose.Form("chunks", slices=2))
    jaxpr = str(jax.make_jaxpr(cut)(*shapes((4, 8), (8, 4))))
    # Two chunks of the product, and the two others whole.
    assert len(re.findall(r"psum\w*\[", jaxpr)) == 4
    assert len(cut.sites) == 1


def test_what_is_needed_whole_is_put_together_once():
    def f(x, w):
        full = lax.all_gather(x, "t", tiled=True)
        return full @ w, full.sum(0, keepdims=True), full * 2

    step = mapped(f, (P("t"), P(None, "t")), (P(None, "t"), P("t"), P("t")))
    text = str(jax.make_jaxpr(decompose.rings(step))(*shapes((8, 4), (4, 8))))
    assert (text.count("all_gather["), text.count("ppermute[")) == (0, 3)


@pytest.mark.parametrize(
    "f",
    [
        # Summed over the ranks' rows, no slice is of use before all are there.
        lambda x, w: lax.all_gather(x, "t", axis=1, tiled=True) @ w,
        # Not in blocks.
        lambda x, w: (lax.all_gather(x, "t") @ w[:4]).sum(0),
        lambda x, w: jnp.tanh(lax.all_gather(x, "t", tiled=True)) + w[0, 0],
    ],
    ids=["summed", "stacked", "no matmul"],
)
def test_what_no_ring_can_do_is_left_and_said(f):
    step = mapped(f, (P(None, "t"), P()), P("t"))
    with pytest.raises(DecomposeError, match=r"no ring can be made"):
        jax.make_jaxpr(decompose.rings(step))(*shapes((4, 16), (16, 8)))


RING = decompose.Form("ring")
TWO = decompose.Form("chunks", slices=2)
ROWS, COLUMNS = P("t"), P(None, "t")


def left_of(f, ins, out, form, *sizes):
    """What cannot have a form, of a function that is asked for it everywhere."""
    step = mapped(f, ins, out, check_vma=False)
    cut = decompose.with_forms(step, lambda site: form)
    with contextlib.suppress(NoFormError):
        jax.make_jaxpr(cut)(*shapes(*sizes))
    return cut.left


def first_whole(x, w):
    full = lax.all_gather(x, "t", tiled=True)
    return jnp.tanh(full), full @ w


@pytest.mark.parametrize(
    ("why", "form", "f", "ins"),
    [
        (
            "summed over",
            RING,
            lambda x, w: lax.all_gather(x, "t", axis=1, tiled=True) @ w,
            (COLUMNS, P()),
        ),
        (
            "not in blocks",
            RING,
            lambda x, w: (lax.all_gather(x, "t") @ w[:4]).sum(0),
            (COLUMNS, P()),
        ),
        (
            "no matmul",
            RING,
            lambda x, w: jnp.tanh(lax.all_gather(x, "t", tiled=True)) + w[0, 0],
            (COLUMNS, P()),
        ),
        ("needed whole", RING, first_whole, (ROWS, COLUMNS)),
        ("not in chunks", RING, lambda x, w: lax.psum(x @ w, "t"), (COLUMNS, ROWS)),
        ("no rows", TWO, lambda x, w: lax.psum(jnp.vdot(x, x), "t"), (COLUMNS, ROWS)),
        (
            "no matmul",
            TWO,
            lambda x, w: lax.psum_scatter(jnp.tanh(x @ w), "t", tiled=True),
            (COLUMNS, ROWS),
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_left_as_it_is_says_which_and_why(why, form, f, ins):
    (left,) = left_of(f, ins, P(), form, (16, 16), (16, 16))
    assert (left.why, left.form, left.partly) == (why, form, False)
    assert left.line.startswith("test_rings.py:")
    if why == "summed over":
        assert left.at == left.line
    assert f"{left.kind} at {left.line}" in left.words


@pytest.mark.parametrize("gathered", [RING, TWO, decompose.Form("whole")], ids=str)
def test_a_matmul_of_rows_that_have_arrived_can_still_be_scattered(gathered):
    """As a weight's gradient is that comes after what it is the gradient of."""

    def f(x, w):
        rows = lax.all_gather(x, "t", axis=1, tiled=True)
        made = jnp.einsum("bnk,bnm->km", rows, jnp.tanh(rows @ w))
        return lax.psum_scatter(made, "t", tiled=True)

    step = mapped(f, (P(None, "t"), COLUMNS), ROWS)
    cut = decompose.with_forms(
        step, lambda site: gathered if site.kind == "all_gather" else TWO
    )
    jax.make_jaxpr(cut)(*shapes((2, 16, 16), (16, 64)))
    assert [site.kind for site in cut.sites] == ["all_gather", "reduce_scatter"]
    assert cut.left == ()


def test_a_name_whose_collectives_cannot_have_its_form_is_refused(caplog):
    def f(x, w):
        kept = lax.all_gather(x, "t", tiled=True) @ w
        return kept, lax.all_gather(x, "t", tiled=True).T @ kept

    step = mapped(f, (ROWS, COLUMNS), (COLUMNS, COLUMNS), check_vma=False)
    first = f.__code__.co_firstlineno
    good, bad, none = ((f"test_rings.py:{first + n}", "all_gather") for n in (1, 2, 3))
    named = {good: RING, bad: RING, none: RING}
    given = shapes((16, 16), (16, 64))

    def traced(cut):
        jax.make_jaxpr(cut)(*given)
        return {(one.line, one.kind): one.why for one in cut.left}

    with pytest.raises(NoFormError, match="Leave it out") as told:
        traced(decompose.with_forms(step, named))
    assert [(one.line, one.why) for one in told.value.left] == [
        (bad[0], "no matmul"),
        (none[0], "no collective"),
    ]
    # A plan's transformation leaves them out, and says so as data.
    forms = [SiteForm(*place, form) for place, form in named.items()]
    cut = decompose.transformed(step, "with_forms", 1, False, forms)
    assert set(traced(cut)) == {bad, none}
    assert [site.line for site in cut.sites] == [good[0]]
    assert not caplog.records
    # Whoever asks with a function is told in the log.
    asked = decompose.with_forms(step, lambda site: RING)
    assert set(traced(asked)) == {bad}
    assert bad[0] in caplog.text
    # Nobody asked for all of them by name.
    caplog.clear()
    assert set(traced(decompose.rings(step))) == {bad}
    assert not caplog.records
    assert traced(decompose.rings(step, sites=[good[0]])) == {}
    with pytest.raises(NoFormError):
        traced(decompose.rings(step, sites=[bad[0]]))
