"""What people expect of a jitted function, expected of a tuned one."""

import copy
import functools
import gc
import inspect
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lagom_jax
from lagom_jax.compile import _jax_internals
from lagom_jax.errors import ClusterError, LagomError, PlanError
from lagom_jax.runtime import guard, place, programs, wrapper
from lagom_jax.runtime.options import OptionError
from lagom_jax.runtime.say import LagomWarning
from tests.runtime.planned import OPTION

OLD_PLANS = Path(__file__).parents[1] / "plan" / "old"


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


def test_keys_of_jax_random(wrap):
    def function(key, shape):
        key, now = jax.random.split(key)
        return key, jax.random.normal(now, shape)

    jitted = jax.jit(function, static_argnums=1)
    step, key, other = (
        wrap(jax.jit(function, static_argnums=1)),
        *[jax.random.key(0)] * 2,
    )
    for _ in range(3):
        key, found = step(key, (3,))
        other, expected = jitted(other, (3,))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", "uint2"])
def test_small_types(wrap, name):
    step = wrap(jax.jit(lambda x: x))
    for _ in range(2):
        assert step(jnp.ones(4, name)).dtype == name


def test_nothing_as_an_argument(wrap):
    step = wrap(jax.jit(lambda x=0: x))
    for value in (None, {}, (), [None, {}]):
        assert step(value) == step(value) == value
    assert step() == 0


def test_an_argument_called_self(wrap):
    step = wrap(jax.jit(lambda self, x: self + x))
    for _ in range(2):
        assert step(self=1.0, x=2.0) == 3.0
        assert step.eval_shape(self=1.0, x=2.0).shape == ()
        assert step.lower(self=1.0, x=2.0).as_text()
        assert step.trace(self=1.0, x=2.0).jaxpr.out_avals[0].shape == ()


def test_an_object_with_attributes_of_its_own(wrap):
    class Step:
        def __init__(self):
            self._lock = self._options = self._variants = self._cache = None
            self.lower, self.rate = 7, 3.0

        def __call__(self, x):
            return x * self.rate

    step = wrap(jax.jit(Step()))
    for _ in range(2):
        assert step(2.0) == 6.0
    assert step.rate == 3.0


def test_a_step_that_calls_itself(wrap):
    def function(x, n):
        return x if n == 0 else step(x * 2, n - 1)

    step = wrap(jax.jit(function, static_argnums=1))
    for n in (3, 4, 3, 0):
        assert step(1.0, n) == 2.0**n


def test_tuned_twice(wrap):
    step = wrap(wrap(jax.jit(lambda x: x + 1)))
    for _ in range(3):
        assert step(2.0) == 3.0


def test_lowered_inside_another(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    step(1.0)
    found = []
    jax.eval_shape(lambda x: found.append(step.lower(x)) or x, jnp.ones(3))
    assert found[0].compile()(jnp.ones(3)).tolist() == [2, 2, 2]


def test_a_tracer_that_got_away(wrap):
    found = []
    jax.eval_shape(lambda x: found.append(x) or x, 1.0)
    step = wrap(jax.jit(lambda x: x + 1))
    for _ in range(2):
        with pytest.raises(jax.errors.UnexpectedTracerError):
            step(found[0])


def test_the_name_of_the_program(wrap):
    def step(x, y):
        return x + y

    class Other:
        def __call__(self, x):
            return x

    for function in (step, functools.partial(step, y=2.0), Other()):
        arguments = (1.0, 2.0) if function is step else (1.0,)
        tuned = wrap(jax.jit(function))
        tuned(*arguments)
        found, expected = (
            one.lower(*arguments).as_text() for one in (tuned, jax.jit(function))
        )
        assert found == expected


def test_a_copy(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    step(1.0)
    assert copy.copy(step)(2.0) == copy.deepcopy(step)(2.0) == 3.0


def test_what_was_closed_over_is_freed(wrap):
    class Closed:
        pass

    def make():
        closed = Closed()
        step = wrap(jax.jit(lambda x: x + (closed is not None)))
        step(1.0)
        step(jnp.ones(2))
        return weakref.ref(closed)

    gc.collect()
    gc.disable()
    try:
        assert make()() is None
    finally:
        gc.enable()


def test_arguments_are_not_kept(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    found = []
    for _ in range(3):
        x = jnp.ones(3)
        step(x)
        found.append(weakref.ref(x))
        del x
    assert [one() for one in found] == [None] * 3


def test_calls_leave_nothing_behind(wrap):
    step = wrap(jax.jit(lambda x: x + 1))
    batches = [jnp.ones(3), jnp.ones(4)]
    blocks = []
    for count in (50, 500):
        for _ in range(count):
            for batch in batches:
                step(batch).block_until_ready()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[1] - blocks[0] < 100


def test_shardings(wrap):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    step = wrap(jax.jit(lambda x: (x * 2, x.sum())))
    x = jnp.arange(16.0)
    for _ in range(2):
        for sharding in (spread, whole):
            doubled, total = step(jax.device_put(x, sharding))
            np.testing.assert_array_equal(doubled, x * 2)
            assert total == 120.0
            assert doubled.sharding.is_equivalent_to(sharding, 1)


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


def test_what_is_left_to_jax_stays_so_when_caches_are_cleared():
    step = switched_off(jax.jit(lambda x: x * 2))
    for clear in (lambda: None, step.clear_cache, jax.clear_caches):
        clear()
        assert step(2.0) == 4.0
        assert step._calls is step._jitted


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


def test_values_that_are_no_numbers_are_found(wrap):
    step, ones = wrap(jax.jit(jnp.log, donate_argnums=0)), jnp.ones(3)
    with jax.debug_nans(True):
        for _ in range(2):
            assert step(ones + 0).tolist() == [0, 0, 0]
        with pytest.raises(FloatingPointError, match="encountered in"):
            step(-ones)


def test_a_step_whose_host_callback_calls_another(wrap):
    """While the first one is planned for, or waits for what was begun before."""
    inner, outer = wrap(jax.jit(jnp.sum)), wrap(jax.jit(lambda x: x * 2))
    began = threading.Event()

    def on_the_host(x):
        began.set()
        time.sleep(0.2)
        return np.float32(inner(np.asarray(x)))

    @jax.jit
    def heavy(x):
        return jax.pure_callback(on_the_host, jax.ShapeDtypeStruct((), "float32"), x)

    found = []
    thread = threading.Thread(target=lambda: found.append(float(heavy(jnp.ones(3)))))
    thread.start()
    assert began.wait(60)
    assert outer(jnp.ones(4)).tolist() == [2] * 4
    thread.join(60)
    assert found == [3.0]


def test_constants_that_were_closed_over(wrap):
    weights = jnp.arange(3.0)
    step = wrap(jax.jit(lambda x: x + weights))
    for _ in range(2):
        assert step(1.0).tolist() == [1, 2, 3]


def test_own_compiler_options_stay(plans):
    own = {OPTION: False}
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


def test_what_is_static_for_flax(plans):
    @functools.partial(nnx.jit, static_argnames="n")
    def step(model, x, n=1):
        return model(x).sum() * n

    tuned = lagom_jax.tune(step, cluster="h100:1x1", strict=True)
    model, x = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((4, 2))
    for n in (1, 2, 3, 1):
        assert tuned(model, x, n=n) == step(model, x, n=n)


def test_models_of_flax_that_are_one(plans):
    @nnx.jit
    def step(one, other, x):
        return one(x).sum() - other(x).sum()

    tuned = lagom_jax.tune(step, cluster="h100:1x1", strict=True)
    one, other = (nnx.Linear(2, 3, rngs=nnx.Rngs(n)) for n in range(2))
    x = jnp.ones((4, 2))
    for models in ((one, other), (one, one), (other, one)):
        assert tuned(*models, x) == step(*models, x)


def test_equinox(plans, monkeypatch):
    eqx = pytest.importorskip("equinox")
    # It can be lowered for the devices that are here, and for no others.
    monkeypatch.setattr(_jax_internals, "platforms", lambda lowered: ("cuda",))

    class Model(eqx.Module):
        weights: jax.Array
        activation: object

    models = [Model(jnp.arange(3.0), act) for act in (jnp.tanh, jnp.sin)]
    jitted = eqx.filter_jit(lambda model, x: model.activation(model.weights * x))
    step = lagom_jax.tune(jitted, cluster="h100:1x1", strict=True)
    for x in (2.0, jnp.ones(3), 2.0):
        for model in models:
            np.testing.assert_array_equal(step(model, x), jitted(model, x))
    assert plans.made


def test_a_wrapper_that_lowers_for_the_devices_that_are_here_only(plans):
    class Wrapper:
        jitted = staticmethod(jax.jit(lambda x: x + 1))

        def lower(self, *args):
            return self.jitted.lower(*args)

        def __call__(self, x):
            return self.jitted(x)

    step = lagom_jax.tune(Wrapper(), cluster="h100:1x1")
    with pytest.warns(match="lowered for cpu"):
        assert step(1.0) == 2.0
    assert step(2.0) == 3.0
    assert not plans.made


def test_pmap_is_refused():
    with pytest.raises(OptionError, match=r"that jax\.jit made"):
        lagom_jax.tune(jax.pmap(lambda x: x))
    step = lagom_jax.tune(jax.pmap(lambda x: x + 1), mode="off")
    assert step(jnp.ones((1, 2))).shape == (1, 2)


def test_another_thread_does_not_trace_what_nobody_decided(plans):
    inside, go = threading.Event(), threading.Event()
    sizes = []

    def function(x):
        sizes.append(x.shape)
        if x.shape == (3,):
            inside.set()
            go.wait(10)
        return x

    step = lagom_jax.tune(jax.jit(function), cluster="h100:1x1", strict=True)
    step(jnp.ones(2))
    thread = threading.Thread(target=lambda: step.trace(jnp.ones(3)))
    thread.start()
    assert inside.wait(10)
    sizes.clear()
    other = threading.Thread(target=lambda: step(jnp.ones(4)))
    other.start()
    other.join(5)
    go.set()
    thread.join()
    other.join()
    assert sizes == [(4,)]
    assert len(step.plans) == 2


def test_measured_in_threads(plans, monkeypatch):
    decided = guard.Turns.decided

    def slowly(turns, number, said):
        found = decided(turns, number, said)
        time.sleep(0.002)
        return found

    monkeypatch.setattr(guard.Turns, "decided", slowly)
    step = measured(jax.jit(lambda x: x + 1))
    x = jnp.ones(3)
    step(x)
    failures = []

    def call():
        try:
            for _ in range(60):
                step(x)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # Steps at the same time as another were not measured.
    for _ in range(30):
        step(x)
    assert all(one.variant.settled for one in step._known.values())


def test_a_program_that_cannot_be_built_again(plans, monkeypatch):
    def failing(*_, **__):
        raise PlanError("no memory")

    step = with_a_plan(jax.jit(lambda x: x + 1))
    assert step(1.0) == 2.0
    step.clear_cache()
    monkeypatch.setattr(programs, "build", failing)
    with pytest.warns(LagomWarning, match="no memory"):
        assert step(1.0) == 2.0
    assert step(1.0) == 2.0
    assert not step.plans


@pytest.mark.parametrize(
    ("hidden", "logged"), [(Warning, 1), (UserWarning, 1), (LagomWarning, 0)]
)
def test_a_reason_is_logged_where_all_warnings_are_hidden(caplog, hidden, logged):
    step = lagom_jax.tune(jax.jit(lambda x: x + 1), plan=f"none_{hidden.__name__}.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hidden)
        assert step(1.0) == 2.0
    told = [one for one in caplog.records if "the program as it was" in one.message]
    assert len(told) == logged


def test_the_first_arguments_on_the_host(plans, monkeypatch):
    # As on a machine with GPUs, where one batch happened to be made on the CPU.
    monkeypatch.setattr(place, "any_gpus", lambda: True)
    step = lagom_jax.tune(jax.jit(lambda x: x + 1))
    step(jnp.ones(3))
    assert not step._alone


def test_a_plan_that_is_given_where_there_is_no_gpu():
    jitted, old = jax.jit(lambda x: x + 1), OLD_PLANS / "format_3.json"
    made_for = lagom_jax.plan.load(old).holds_for.cluster
    step = lagom_jax.tune(jitted, plan=old)
    with pytest.warns(LagomWarning, match=f"no NVIDIA GPU; with cluster='{made_for}'"):
        assert step(1.0) == 2.0
    assert step(1.0) == 2.0
    strict = lagom_jax.tune(jitted, plan=old, strict=True)
    with pytest.raises(LagomError, match="no NVIDIA GPU"):
        strict(1.0)
    missing = lagom_jax.tune(jitted, plan="no_such_plan.json", strict=True)
    with pytest.raises(LagomError, match="no_such_plan"):
        missing(1.0)


def test_the_devices_that_the_function_names(plans, monkeypatch):
    seen = []

    def cluster_of(devices):
        seen.append(len(devices))
        raise ClusterError("no GPUs")

    monkeypatch.setattr(place, "on_gpus", lambda devices: True)
    monkeypatch.setattr(place, "cluster_of", cluster_of)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    step = lagom_jax.tune(jax.jit(lambda x: x + 1, in_shardings=spread))
    with pytest.warns(LagomWarning, match="no GPUs"):
        assert step(np.ones(8)).shape == (8,)
    assert seen == [8]


@pytest.mark.parametrize("statics", [False, True])
def test_known_arguments_are_not_looked_at_one_by_one(plans, monkeypatch, statics):
    step = with_a_plan(jax.jit(lambda x, n=1: x["a"] + n, static_argnames="n"))
    train, test = {"a": jnp.ones(3), "b": 0}, {"a": jnp.ones(4), "b": 0}
    calls = [
        functools.partial(step, batch, **kwargs)
        for batch in (train, test)
        for kwargs in ([{}, {"n": 2}] if statics else [{}])
    ]
    for call in calls * 3:
        call()
    monkeypatch.setattr(wrapper, "variant_of", None)
    for call in calls * 3:
        assert call().shape in ((3,), (4,))
    assert plans.made == len(calls)


def test_arguments_that_only_look_known(plans):
    # What jax.stages.Compiled would take, and jax.jit compiles another program for.
    jitted = jax.jit(lambda x, y: x["a"] * y)
    step = with_a_plan(jitted)
    half, ones = jnp.bfloat16(2), jnp.ones(3, jnp.bfloat16)
    strong, weak = jnp.float32(2), 2.0
    committed = jax.device_put(ones, jax.devices()[0])
    for _ in range(3):
        for value in (strong, weak, half, np.float32(2)):
            for x in (ones, committed):
                found, expected = step({"a": x}, value), jitted({"a": x}, value)
                assert found.dtype == expected.dtype
                assert found.weak_type == expected.weak_type
                assert found.committed == expected.committed


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
