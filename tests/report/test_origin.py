"""Names that JAX really wrote, and what is left of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.report.origin import short_origin

LOOP = "jit(train)/shard_map/transpose(jvp())/while/body/closed_call/checkpoint"
NAMES = {
    "": "",
    "jit(train)/shard_map/jvp(table)/all_gather": "table",
    f"{LOOP}/rematted_computation/forward.up/all_gather": "forward.up, recomputed",
    f"{LOOP}/(attention.key/reduce_scatter:attention.out/reduce_scatter)": (
        "attention.key +1, backward"
    ),
    "jit(step)/jvp()/while/body/closed_call/dot_general": "dot_general",
    "jit(f)/(transpose(jvp(head))/reduce_scatter:transpose(jvp(norm.scale))/reduce_scatter)": (
        "head +1, backward"
    ),
    "jit(train_step)/jit(main)/jvp(Transformer)/layers_3/attn/dot_general": (
        "layers_3/attn"
    ),
    "jit(step)/jit(dynamic_index_in_dim)/dynamic_slice": "dynamic_slice",
}


@pytest.mark.parametrize(("name", "short"), NAMES.items())
def test_names(name, short):
    assert short_origin(name) == short


@given(st.text(alphabet="ab/():.jvp", max_size=40))
def test_any_text_gives_something_not_longer(name):
    assert len(short_origin(name)) <= len(name) + len(", recomputed")
