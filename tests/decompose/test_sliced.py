"""Functions in slices give what they gave, with all that was around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax import decompose
from lagom_jax.decompose import half_batch_loops, half_batches, sliced, with_forms
from lagom_jax.decompose.flat_program import carried_by
from lagom_jax.errors import LagomError
from lagom_jax.plan import NoFormError
from tests.decompose.on_devices import Devices
from tests.depth import examples

X = np.random.default_rng(0).normal(size=(8, 6, 16)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def devices():
    running = Devices()
    yield running
    running.close()


def layer(x, w):
    h = jax.nn.silu(x @ w)
    return x + (h / (1 + jnp.abs(h).mean(-1, keepdims=True))) @ w.T


def loss(w, x):
    y, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, jnp.stack([w, 2 * w]))
    return jnp.square(y).mean()


@pytest.mark.parametrize("slices", [1, 2, 4])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: layer(x, w),
        lambda x, w: jax.value_and_grad(loss)(w, x),
        lambda x, w: jax.grad(jax.checkpoint(loss))(w, x),
        lambda x, w: jax.vmap(layer, (0, None))(x, w),
    ],
    ids=["layer", "scan and gradient", "remat", "vmap"],
)
def test_results_stay(f, slices):
    expected = jax.jit(f)(X, W)
    for run in (
        sliced(f, slices=slices),
        sliced(jax.jit(f), slices=slices),
        sliced(f, slices=slices, whole_sums=False),
    ):
        found = jax.jit(run)(X, W) if not hasattr(run, "lower") else run(X, W)
        for one, two in zip(
            jax.tree.leaves(expected), jax.tree.leaves(found), strict=True
        ):
            np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("slices", [2, 4])
def test_loops_on_half_batches(remat, slices):
    """Forward and backward, with what is summed over the batch; the rest stays."""

    def normed(x, weights):
        scale, w = weights
        return layer(
            x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True)) * scale, w
        )

    def step(weights, x):
        def loss(weights):
            one = jax.checkpoint(normed) if remat else normed
            y, _ = jax.lax.scan(lambda x, w: (one(x, w), None), x, weights)
            return jnp.square(y @ W).mean()

        return jax.value_and_grad(loss)(weights)

    weights = (np.stack([W[0], W[1]]) + 1, np.stack([W, 2 * W]))
    cut = half_batch_loops(jax.jit(step), slices=slices)
    expected = jax.tree.leaves(jax.jit(step)(weights, X))
    for one, two in zip(expected, jax.tree.leaves(cut(weights, X)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    before, after = (
        str(f.trace(weights, X).jaxpr).count("dot_general[")
        for f in (jax.jit(step), cut)
    )
    # The matmul behind the loop, and the one for its gradient, are not cut.
    assert after == slices * (before - 2) + 2
    assert {site.line.partition(":")[0] for site in cut.sites} == {"test_sliced.py"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda x, w: (x @ w - x.mean(0), None), "mixes examples: .* test_sliced.py:"),
        (lambda x, w: (jnp.cumsum(x @ w, 0), None), "mixes examples: cumsum at"),
        (lambda x, w: (x + 1, None), "no jax.lax.scan with matmuls"),
    ],
)
def test_loops_that_cannot_run_on_half_batches(body, named):
    def f(x):
        return jax.lax.scan(body, x, np.stack([W, W]))[0]

    with pytest.raises(LagomError, match=named):
        half_batch_loops(f)(X)


def test_a_batch_of_loops_has_to_divide():
    def f(x):
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, np.stack([W, W]))[0]

    with pytest.raises(LagomError, match="a batch of 8 cannot be cut in 3 equal"):
        half_batch_loops(f, slices=3)(X)


def test_a_gradient_can_be_taken_of_it():
    expected = jax.grad(loss)(W, X)
    found = jax.grad(sliced(loss, slices=2))(W, X)
    np.testing.assert_allclose(expected, found, rtol=2e-5, atol=1e-6)


def matmuls(f, *args):
    text = str(jax.make_jaxpr(f)(*args))
    return text.count("dot_general[")


def test_weight_gradients_stay_whole():
    step = jax.value_and_grad(lambda w, x: jnp.square(jnp.tanh(x @ w)).mean(), (0, 1))
    # Forward, the activation's gradient, and the weight's.
    assert matmuls(step, W, X) == 3
    assert matmuls(sliced(step, slices=2), W, X) == 5
    assert matmuls(sliced(step, slices=2, whole_sums=False), W, X) == 6


def test_only_the_named_lines_are_cut():
    def f(x, w):
        y = x @ w
        return jnp.tanh(y) @ w

    place = f"{__file__.rsplit('/', 1)[1]}:{f.__code__.co_firstlineno + 1}"
    chosen = sliced(f, sites=[place])
    chosen(X, W)
    assert [site.line for site in chosen.sites] == [place]
    assert sliced(f, sites=lambda site: site.kind == "dot_general")(X, W) is not None


def line_of(f, number=1):
    """A line of a function, as sites have it."""
    return f"{__file__.rsplit('/', 1)[1]}:{f.__code__.co_firstlineno + number}"


def two_matmuls(w, x):
    y = jnp.tanh(x @ w)
    return jnp.square(jnp.tanh(y @ w.T)).mean()


@pytest.mark.parametrize("whole_sums", [True, False])
@pytest.mark.parametrize(
    ("number", "counts"),
    # A matmul forward, the activation's gradient, the weight's: of the line that is
    # cut, the last is whole where sums are; of the other line all are.
    [(1, {True: 2 + 2 + 1, False: 2 + 2 + 2}), (2, {True: 2 + 2 + 1, False: 2 * 3})],
)
def test_what_is_not_chosen_runs_whole(number, counts, whole_sums):
    step = jax.value_and_grad(two_matmuls, (0, 1))
    place = line_of(two_matmuls, number)
    for sites in ([place], lambda site: site.line == place):
        cut = sliced(step, whole_sums=whole_sums, sites=sites)
        assert matmuls(cut, W, X) == counts[whole_sums] + 3
        assert {site.line for site in cut.sites} == {place}
        expected = jax.tree.leaves(step(W, X))
        for one, two in zip(expected, jax.tree.leaves(cut(W, X)), strict=True):
            np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)


def test_what_is_not_chosen_runs_whole_in_loops_and_rematerialised():
    def body(x, w):
        y = jnp.sin(x @ w)
        return jnp.tanh(y @ w.T), None

    def step(w, x):
        return jax.lax.scan(jax.checkpoint(body), x, jnp.stack([w, 2 * w]))[0]

    cut = sliced(step, sites=[line_of(body)])
    assert matmuls(step, W, X) == 2
    assert matmuls(cut, W, X) == 3
    np.testing.assert_allclose(step(W, X), cut(W, X), rtol=2e-5, atol=1e-6)


def test_a_line_that_leads_to_nothing_is_an_error_that_says_what_to_change():
    step, there = jax.grad(two_matmuls), line_of(two_matmuls)
    with pytest.raises(
        NoFormError, match=r"a.py:3 as chunks, 2 slices.*there are"
    ) as e:
        sliced(step, sites=[there, "a.py:3"])(W, X)
    assert [(one.line, one.why) for one in e.value.left] == [("a.py:3", "no site")]

    def apart(x, w):
        y = jnp.tanh(x @ w)
        return y, jnp.tanh(w.T @ jnp.sort(w, 0))

    lines = [line_of(apart), line_of(apart, 2)]
    with pytest.raises(
        NoFormError, match="it has no part in the dimension that is cut"
    ):
        sliced(apart, sites=lines)(X, W)


@pytest.mark.parametrize("kind", ["dot_general", None])
def test_a_form_of_a_matmul_that_is_left_to_the_partitioner(kind):
    """Only those at the line; of the longest dimension that is no last one."""
    step, place = jax.grad(two_matmuls, (0, 1)), line_of(two_matmuls, 2)
    named = {(place, kind) if kind else place: decompose.Form("chunks", slices=2)}
    cut = with_forms(step, named)
    assert matmuls(cut, W, X) == matmuls(step, W, X) + 3
    for one, two in zip(step(W, X), cut(W, X), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)
    assert (len(cut.sites), cut.left) == (3, ())


def test_a_matmul_that_is_left_to_the_partitioner_cannot_be_sent_around():
    place = line_of(two_matmuls)
    with pytest.raises(NoFormError, match="can be in chunks, and not sent around"):
        with_forms(two_matmuls, {place: decompose.Form("ring")})(W, X)
    with pytest.raises(NoFormError, match="no rows to cut"):
        with_forms(two_matmuls, {place: decompose.Form("chunks", slices=5)})(W, X)
    sums = {(place, "psum"): decompose.Form("chunks", slices=2)}
    with pytest.raises(NoFormError, match=r"dot_general at test_.*no such collective"):
        with_forms(two_matmuls, sums)(W, X)


@pytest.mark.slow
@examples(by_day=8, by_night=40)
@given(data=st.data())
def test_any_step_that_is_left_to_the_partitioner(devices, data):
    """Results stay whatever is cut; each slice has a collective of its own."""
    slices = data.draw(st.sampled_from([2, 3]))
    way = data.draw(st.sampled_from(["sliced", "sums in slices", "forms"]))
    ranks, outer = data.draw(st.sampled_from([(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)]))
    found = devices.answer(
        ask="partitioned",
        ranks=ranks,
        outer=outer,
        way=way,
        slices=slices,
        chosen=data.draw(st.sampled_from(["widened", "narrowed"])),
        scan=data.draw(st.booleans()),
        remat=data.draw(st.booleans()),
        sizes=[
            outer * slices * data.draw(st.integers(1, 2)),
            slices * data.draw(st.integers(1, 3)),
            slices * 2 * data.draw(st.integers(1, 3)),
            ranks * slices * data.draw(st.integers(1, 2)),
        ],
        seed=data.draw(st.integers(0, 9)),
    )
    assert found["error"] < 1e-4, found
    assert found["lines"] == 1


@pytest.mark.parametrize("way", ["sliced", "forms"])
def test_a_chosen_line_has_a_collective_for_each_slice(devices, way):
    """The sum after the second matmul of a layer, forward; the rest is as it was."""
    case = {"ask": "partitioned", "way": way, "slices": 2, "chosen": "narrowed"}
    found = devices.answer(**case, forward=True, ranks=4)
    assert found["error"] < 2e-5
    assert (found["before"], found["after"]) == (2, 4)
    other = devices.answer(**case | {"chosen": "widened"}, forward=True, ranks=4)
    assert (other["before"], other["after"]) == (2, 2)


def test_nothing_to_cut_says_what_there_is():
    with pytest.raises(LagomError, match=r"nothing could be cut in 2 slices.*test_sli"):
        sliced(lambda x, w: x @ w, sites=lambda site: False)(X, W)
    with pytest.raises(LagomError, match="there is nothing to cut"):
        sliced(lambda x: jnp.tanh(x))(X)
    with pytest.raises(LagomError, match="slices must be 1 or more"):
        sliced(layer, slices=0)


def test_static_arguments_and_donation_are_kept():
    def f(x, w, power, *, scale):
        return x * 0 + (x @ w) ** power * scale

    jitted = jax.jit(f, static_argnums=2, static_argnames="scale", donate_argnums=0)
    expected = jitted(jnp.asarray(X), W, 2, scale=3.0)
    cut = sliced(jitted)
    x = jnp.asarray(X)
    found = cut(x, W, 2, scale=3.0)
    np.testing.assert_allclose(expected, found, rtol=2e-5)
    assert x.is_deleted()
    assert cut.lower(jnp.asarray(X), W, 2, scale=3.0).args_info[0][0].donated


def test_a_loop_keeps_what_it_carries_in_slices():
    def f(x, w):
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0]

    closed = jax.make_jaxpr(sliced(f))(X, np.stack([W, W]))
    (loop,) = (e for e in closed.eqns if e.primitive.name == "scan")
    assert carried_by(loop.params)[1] == 2


@pytest.mark.parametrize("way", ["tp", "tp-sp"])
def test_collectives_of_shards_are_cut(devices, way):
    found = devices.answer(
        ask="rewritten", way=way, change="sliced", remat=False, scan=False
    )
    assert found["error"] < 2e-5
    # But for the sum of the losses.
    alone = way == "tp-sp"
    assert found["after"] - alone == 2 * (found["before"] - alone) > 0


@pytest.mark.slow
@examples(by_day=5, by_night=30)
@given(data=st.data())
def test_any_layers(devices, data):
    """Whatever is made of layers whose collectives are their own, results stay."""
    ranks = data.draw(st.sampled_from([2, 4, 8]))
    way = data.draw(st.sampled_from(["tp", "tp-sp"]))
    changes = ["sliced", "half batches", *(["rings"] if way == "tp-sp" else [])]
    change = data.draw(st.sampled_from(changes))
    slices = data.draw(st.integers(2, 3))
    options = {"slices": slices}
    if change == "sliced":
        options["whole_sums"] = data.draw(st.booleans())
    if change == "rings":
        options["both_ways"] = data.draw(st.booleans())
    # Half batches have to be equal; other slices need not.
    equal = slices if change == "half batches" else 1
    batch = equal * data.draw(st.integers(3 if equal == 1 else 1, 4))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    found = devices.answer(
        ask="rewritten",
        ranks=ranks,
        way=way,
        change=change,
        options=options,
        remat=data.draw(st.booleans()),
        scan=change == "half batches" or data.draw(st.booleans()),
        sizes=[
            batch,
            ranks * data.draw(st.integers(1, 3)),
            4 * data.draw(st.integers(1, 2)),
            ranks * data.draw(st.integers(1, 3)),
        ],
        dtype=dtype,
        checked=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 9)),
    )
    assert found["error"] < {"float32": 1e-4, "bfloat16": 3e-2}[dtype], found
    assert found["sites"]


def test_half_batches():
    expected = layer(X, W)
    for found in (
        half_batches(layer)(X, W),
        half_batches(layer, slices=3)(X, W),
        half_batches(lambda w, x: layer(x, w), in_axes=(None, 1))(W, X),
    ):
        np.testing.assert_allclose(expected, found, rtol=2e-5, atol=1e-5)
    gradient = jax.grad(lambda w: half_batches(layer)(X, w).sum())(W)
    np.testing.assert_allclose(
        jax.grad(lambda w: layer(X, w).sum())(W), gradient, rtol=1e-4, atol=1e-4
    )


def test_half_batches_of_a_scans_body():
    def body(x, w):
        return layer(x, w), jnp.square(x).sum((1, 2))

    expected = jax.lax.scan(body, X, np.stack([W, W]))
    found = jax.lax.scan(half_batches(body), X, np.stack([W, W]))
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mixing", "named"),
    [
        (lambda x, w: x - x.mean(0), "reduce_sum"),
        (lambda x, w: jnp.square(x).sum(), "reduce_sum"),
        (lambda x, w: jnp.einsum("bsd,csd->bc", x, x), "dot_general"),
        (lambda x, w: x[::-1], "rev"),
        (lambda x, w: jnp.cumsum(x, 0), "cumsum"),
        (lambda x, w: x.reshape(-1, 12, 16) @ w, "reshape"),
        (lambda x, w: jnp.sort(x, 0), "sort"),
    ],
)
def test_examples_that_mix_are_refused(mixing, named):
    with pytest.raises(LagomError, match=f"mixes examples: {named}.*test_sliced.py:"):
        half_batches(mixing)(X, W)


def test_half_batches_says_what_is_wrong():
    with pytest.raises(LagomError, match="a batch of 8 cannot be cut in 9"):
        half_batches(layer, slices=9)(X, W)
    with pytest.raises(LagomError, match="in_axes has 1 entries for 2"):
        half_batches(layer, in_axes=(0,))(X, W)
    with pytest.raises(LagomError, match="batches of 8, 16"):
        half_batches(layer, in_axes=0)(X, W)
    with pytest.raises(LagomError, match="take sizes from its arguments"):
        half_batches(lambda x: x.reshape(8, -1))(X)


def test_forms_that_cannot_be():
    for wrong in ({"kind": "tree"}, {"slices": 0}, {"kind": "direct", "both_ways": 1}):
        with pytest.raises(LagomError):
            decompose.Form(**wrong)
