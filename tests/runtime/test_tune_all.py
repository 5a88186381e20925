"""Trainers that call jax.jit somewhere inside."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import lagom_jax
from lagom_jax.runtime.options import OptionError


def test_what_matches_a_name_is_taken_and_nothing_else():
    with lagom_jax.tune_all("train_*", mode="off") as taken:

        @jax.jit
        def train_step(x):
            return 2 * x

        @jax.jit
        def eval_step(x):
            return 3 * x

        assert float(train_step(1.0)) == 2.0
        assert float(eval_step(1.0)) == 3.0
        assert taken.functions == ("train_step",)
    assert float(train_step(2.0)) == 4.0


def test_afterwards_jit_is_jaxs_own():
    before = jax.jit
    with lagom_jax.tune_all(mode="off"):
        assert jax.jit is not before
    assert jax.jit is before


def test_without_names_those_of_enough_work_are_taken():
    with lagom_jax.tune_all(flops=1e6, mode="off") as taken:

        @jax.jit
        def product(x):
            return x @ x

        product(jnp.ones((8, 8)))
        assert taken.functions == ()
        product(jnp.ones((100, 100)))
        assert taken.functions == ("product",)


def test_arguments_of_jit_are_kept():
    with lagom_jax.tune_all("*", mode="off"):
        step = jax.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0)
        x = jnp.ones(3)
        assert step(x, 2).tolist() == [2, 2, 2]
        assert x.is_deleted()
        assert step.lower(jnp.ones(3), 2).as_text().count("multiply") == 1

        @jax.jit(static_argnames="n")
        def other(x, n):
            return x + n

        assert float(other(1.0, n=2)) == 3.0


def test_inside_of_another_function_it_is_part_of_it():
    with lagom_jax.tune_all("*", mode="off") as taken:
        inner = jax.jit(lambda x: x + 1)
        outer = jax.jit(lambda x: inner(x) * 2)
        assert float(jax.grad(lambda x: outer(x))(1.0)) == 2.0
        assert taken.functions == ()


def test_a_library_that_jits_by_itself():
    with lagom_jax.tune_all("train", mode="off") as taken:

        @nnx.jit
        def train(model, x):
            return model(x).sum()

        model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        train(model, jnp.ones((2, 4)))
        assert any("train" in name for name in taken.functions)


def test_wrong_options_are_refused_before_anything_is_changed():
    before = jax.jit
    with pytest.raises(OptionError):
        lagom_jax.tune_all(mode="sometimes")
    assert jax.jit is before


class WithoutPrivateNames:
    """A jitted function of a jax that has no `_cache_size`."""

    def __init__(self, jitted):
        self.__name__, self.__wrapped__ = jitted.__name__, jitted.__wrapped__
        self.trace, self.lower = jitted.trace, jitted.lower
        self._jitted = jitted

    def __call__(self, *args):
        return self._jitted(*args)


def test_without_the_private_name_the_first_call_decides():
    with lagom_jax.tune_all(flops=1e6, mode="off") as taken:
        step, other = jax.jit(lambda x: x @ x), jax.jit(lambda x: x @ x)
        for one in (step, other):
            one._jitted = one.__wrapped__ = WithoutPrivateNames(one._jitted)
        small, large = jnp.ones((8, 8)), jnp.ones((100, 100))
        assert step(small).shape == (8, 8)
        assert step(large).shape == (100, 100)
        assert taken.functions == ()
        assert other(large).shape == (100, 100)
        assert len(taken.functions) == 1
