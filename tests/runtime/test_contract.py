"""What people expect of a jitted function, expected of a tuned one."""

import functools
import inspect
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lagom_jax
from lagom_jax.runtime.options import OptionError


def plainly(function):
    return function


def switched_off(function):
    return lagom_jax.tune(function, mode="off")


def on_this_machine(function):
    return lagom_jax.tune(function)


def with_a_plan(function):
    return lagom_jax.tune(function, cluster="h100:1x1", strict=True)


def measured(function):
    return lagom_jax.tune(function, cluster="h100:1x1", verify="measure", strict=True)


WAYS = (plainly, switched_off, on_this_machine, with_a_plan, measured)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def wrap(request, plans):
    """Wraps a jitted function, or leaves it as it is."""
    return request.param


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.times = 0

    def __call__(self, x, scale=2.0):
        self.times += 1
        return jnp.sin(x) * scale


def test_the_same_values(wrap):
    x = jnp.linspace(0.0, 1.0, 7)
    step = wrap(jax.jit(lambda x: {"a": jnp.tanh(x) @ x, "b": (x, None)}))
    expected = jax.jit(lambda x: {"a": jnp.tanh(x) @ x, "b": (x, None)})(x)
    for _ in range(3):
        found = step(x)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(map(np.array_equal, *map(jax.tree.leaves, (found, expected))))


def test_as_many_traces(wrap):
    count = Traced()
    step = wrap(jax.jit(count))
    for size in (3, 3, 4, 4, 3, 4):
        step(jnp.ones(size))
    assert count.times == 2
    step(jnp.ones(3, jnp.bfloat16))
    assert count.times == 3


def test_other_shapes_types_and_trees(wrap):
    step = wrap(jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree)))
    for tree in (1, 2.5, True, jnp.ones(3), np.ones(4), {"a": jnp.ones(2), "b": 1}):
        expected = jax.tree.map(lambda x: x + 1, tree)
        for _ in range(2):
            assert jax.tree.all(jax.tree.map(np.array_equal, step(tree), expected))


def test_numbers_are_not_one_type(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    for value in (1, 1.0, np.float32(1), np.int8(1), jnp.int8(1), True):
        found, expected = step(value), jax.jit(lambda x: x + 1)(value)
        assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)


def test_static_arguments(wrap):
    @functools.partial(jax.jit, static_argnums=1, static_argnames=("kind", "power"))
    def jitted(x, kind, *, power=1):
        assert isinstance(kind, str)
        return (x if kind == "same" else -x) ** power

    step = wrap(jitted)
    for _ in range(2):
        assert step(3.0, "same") == 3.0
        assert step(3.0, "other") == -3.0
        assert step(3.0, "other", power=2) == 9.0
        assert step(3.0, kind="same", power=3) == 27.0
        assert step(3.0, "same", power=1) == 3.0


def test_static_arguments_that_are_equal_and_not_the_same(wrap):
    step = wrap(jax.jit(lambda x, n: x + (1 if n is True else 2), static_argnums=1))
    assert [float(step(0.0, n)) for n in (True, 1, 1.0, True)] == [1, 2, 2, 1]


def test_defaults_and_keywords(wrap):
    def function(x, y=2.0, *, z=3.0):
        return x + 10 * y + 100 * z

    step = wrap(jax.jit(function))
    assert step(1.0) == 321.0
    assert step(1.0, 4.0) == step(1.0, y=4.0) == step(y=4.0, x=1.0) == 341.0
    assert step(1.0, z=0.0) == 21.0


def test_donation(wrap):
    def function(state, batch):
        return state + batch, batch.sum()

    step, jitted = (
        wrap(jax.jit(function, donate_argnums=0)),
        jax.jit(function, donate_argnums=0),
    )
    for _ in range(4):
        state, other = jnp.ones(8), jnp.ones(8)
        batch = jnp.full(8, 2.0)
        found, _ = step(state, batch)
        jitted(other, batch)
        assert state.is_deleted() == other.is_deleted()
        assert not batch.is_deleted()
        np.testing.assert_array_equal(found, 3.0)


def test_a_donated_state_goes_round(wrap):
    step = wrap(jax.jit(lambda state, x: state + x, donate_argnums=0))
    state = jnp.zeros(4)
    for _ in range(30):
        state = step(state, 1.0)
    np.testing.assert_array_equal(state, 30.0)


def test_inside_jit_grad_vmap_scan_and_others(wrap):
    step = wrap(jax.jit(lambda x: x**3))
    assert step(2.0) == 8.0
    assert jax.jit(lambda x: step(x) + 1)(2.0) == 9.0
    assert jax.grad(lambda x: step(x) * 1.0)(2.0) == 12.0
    assert jax.grad(step)(2.0) == 12.0
    np.testing.assert_array_equal(jax.vmap(step)(jnp.arange(3.0)), [0, 1, 8])
    _, stacked = jax.lax.scan(lambda c, x: (c, step(x)), 0.0, jnp.arange(3.0))
    np.testing.assert_array_equal(stacked, [0, 1, 8])
    assert jax.eval_shape(step, jnp.ones(3)).shape == (3,)
    assert jax.jvp(step, (2.0,), (1.0,)) == (8.0, 12.0)
    assert jax.checkpoint(step)(2.0) == 8.0
    assert jax.make_jaxpr(step)(2.0).out_avals[0].shape == ()
    assert step(2.0) == 8.0


def test_before_any_call_inside_another(wrap):
    step = wrap(jax.jit(lambda x: x**3))
    assert jax.jit(lambda x: step(x) + 1)(2.0) == 9.0
    assert step(2.0) == 8.0


def test_without_jit(wrap):
    step = wrap(jax.jit(lambda x: x * 2))
    step(1.0)
    with jax.disable_jit():
        assert step(2.0) == 4.0
        assert step(jnp.ones(2)).shape == (2,)
    assert step(3.0) == 6.0


def test_another_precision_is_another_program(wrap):
    count = Traced()
    step = wrap(jax.jit(count))
    step(1.0)
    with jax.enable_x64(True):
        assert step(np.float64(1)).dtype == jnp.float64
    assert step(np.float32(1)).dtype == jnp.float32


def test_the_errors_of_the_step_itself(wrap):
    class OwnError(Exception):
        pass

    def function(x):
        if x.ndim == 2:
            raise OwnError("two axes")
        return x

    step = wrap(jax.jit(function))
    step(jnp.ones(2))
    for _ in range(2):
        with pytest.raises(OwnError, match="two axes"):
            step(jnp.ones((2, 2)))
    step(jnp.ones(2))


@pytest.mark.parametrize(
    "call",
    [
        lambda step: step(),
        lambda step: step("text"),
        lambda step: step(object()),
        lambda step: step(jnp.ones(2), jnp.ones(3)),
        lambda step: step(jnp.ones(2), nobody=1),
        lambda step: step(jnp.ones(2), n=[1]),
    ],
)
def test_the_errors_of_wrong_calls(wrap, call):
    def function(x, y=1.0, *, n=1):
        return x + y

    jitted = jax.jit(function, static_argnames="n")
    step = wrap(jax.jit(function, static_argnames="n"))
    with pytest.raises((TypeError, ValueError)) as expected:
        call(jitted)
    with pytest.raises(expected.type) as found:
        call(step)
    assert (
        str(found.value).split("\n")[0][:60] == str(expected.value).split("\n")[0][:60]
    )


def test_a_deleted_argument(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    x = jnp.ones(3)
    step(x)
    x.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(x)


def test_shardings(wrap):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    step = wrap(jax.jit(lambda x: (x * 2, x.sum())))
    x = jnp.arange(16.0)
    for _ in range(2):
        for place in (spread, whole):
            doubled, total = step(jax.device_put(x, place))
            np.testing.assert_array_equal(doubled, x * 2)
            assert total == 120.0
            assert doubled.sharding.is_equivalent_to(place, 1)


def test_threads(wrap, plans):
    count = Traced()
    step = wrap(jax.jit(count))
    found = []

    def call(size):
        found.append(step(jnp.ones(size)).shape == (size,))

    threads = [threading.Thread(target=call, args=(3 + n % 2,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 12
    assert plans.made <= 2


def test_a_method(wrap):
    class Model:
        def __init__(self, factor):
            self.factor = factor

        step = wrap(jax.jit(lambda self, x: x * self.factor, static_argnums=0))

    model, other = Model(3), Model(4)
    assert model.step(2.0) == Model.step(model, 2.0) == 6.0
    assert other.step(2.0) == 8.0


def test_a_decorator_keeps_the_name():
    @lagom_jax.tune
    def step(x: int, *, n: int = 1):
        """Says what it does."""
        return x + n

    @lagom_jax.tune(mode="off")
    def other(x):
        return x

    assert step.__name__ == "step"
    assert step.__doc__ == "Says what it does."
    assert list(inspect.signature(step).parameters) == ["x", "n"]
    assert step(1) == 2
    assert other(1) == 1
    assert "step" in repr(step)
    assert "off" in repr(other)


def test_the_stages(wrap):
    step = wrap(jax.jit(lambda x: x * 2))
    x = jnp.ones(3)
    for _ in range(2):
        assert step.eval_shape(x).shape == (3,)
        assert step.trace(x).jaxpr.out_avals[0].shape == (3,)
        assert step.lower(x).compile()(x).tolist() == [2, 2, 2]
        step(x)
    step.clear_cache()
    assert step(x).tolist() == [2, 2, 2]
    assert step.lower(jnp.ones(4)).compile()(jnp.ones(4)).shape == (4,)


def test_all_caches_cleared(wrap):
    step = wrap(jax.jit(lambda x: x * 2))
    for _ in range(3):
        assert step(jnp.ones(3)).tolist() == [2, 2, 2]
        jax.clear_caches()


def test_effects_come_once_a_step(wrap):
    seen = []

    def function(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())
        return x

    step = wrap(jax.jit(function))
    for n in range(3):
        jax.block_until_ready(step(jnp.full(2, float(n))))
    jax.effects_barrier()
    assert seen == [0.0, 2.0, 4.0]


def test_constants_that_were_closed_over(wrap):
    weights = jnp.arange(3.0)
    step = wrap(jax.jit(lambda x: x + weights))
    for _ in range(2):
        assert step(1.0).tolist() == [1, 2, 3]


def test_own_compiler_options_stay(plans):
    own = {"xla_gpu_enable_pipelined_all_gather": False}
    step = lagom_jax.tune(
        jax.jit(lambda x: x + 1, compiler_options=own), cluster="h100:1x1"
    )
    assert step(1.0) == 2.0


def test_flax(plans):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model, x):
        return model(x).sum()

    tuned = lagom_jax.tune(step, cluster="h100:1x1", strict=True)
    x = jnp.ones((4, 2))
    assert [tuned(model, x) for _ in range(3)] == [step(model, x)] * 3
    assert tuned(model, jnp.ones((5, 2))) == step(model, jnp.ones((5, 2)))


def test_a_lowered_step(plans):
    lowered = jax.jit(lambda x: x + 1).trace(jnp.ones(3))
    lowered = lowered.lower(lowering_platforms=("cpu",))
    step = lagom_jax.tune(lowered)
    assert step(jnp.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(TypeError):
        step(jnp.ones(4))


def test_a_compiled_step_is_refused():
    with pytest.raises(OptionError, match=r"give lagom_jax\.tune"):
        lagom_jax.tune(jax.jit(lambda x: x).lower(1.0).compile())
    with pytest.raises(OptionError, match="takes a function"):
        lagom_jax.tune(3)
