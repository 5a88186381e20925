"""Rings made of the gathers and scatters that a function has of its own."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.decompose import DecomposeError
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


def shapes(*sizes):
    return [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]


def mapped(f, ins, out):
    # The newest jax makes other axes where none are named.
    mesh = AbstractMesh((4,), ("t",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out)


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
    with pytest.raises(DecomposeError, match=r"decompose\.sliced"):
        jax.make_jaxpr(decompose.rings(step))(*shapes((4, 16), (16, 8)))
