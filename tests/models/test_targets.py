"""Models on targets for which XLA lacks something."""

import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.errors import CompileError

TRITON = "xla_gpu_enable_triton_gemm"


@pytest.fixture(scope="module")
def lowered():
    step = lagom_models.build("phi-2", devices=16, layers=2)
    return lower(step.function, *step.arguments)


@pytest.mark.slow
def test_matmuls_without_tiles_are_left_to_the_library(lowered):
    """XLA refuses phi-2's matmuls for an A40 if it may not try them on one."""
    compiled = compile_step(lowered, Cluster.parse("a40-nvlink:2x8"))
    assert compiled.options == {TRITON: False}
    assert f"{TRITON}=false" in compiled.notes[0]


@pytest.mark.slow
def test_what_the_user_said_of_them_stands(lowered):
    with pytest.raises(CompileError, match="output tile"):
        compile_step(lowered, Cluster.parse("a40-nvlink:2x8"), {TRITON: True})
