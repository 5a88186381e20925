"""Settings: what NCCL can run, and the text that stands for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.plan.setting import (
    ALGORITHMS,
    CHUNK_GRAIN,
    PROTOCOLS,
    Setting,
    SettingError,
    largest_chunk,
)


@st.composite
def settings(draw):
    algorithm = draw(st.sampled_from(ALGORITHMS))
    simple_only = algorithm in ("nvls", "nvls_tree")
    protocol = "simple" if simple_only else draw(st.sampled_from(PROTOCOLS))
    chunk = st.integers(CHUNK_GRAIN[protocol], largest_chunk(algorithm, protocol))
    threads = 32 * draw(st.integers(5, 16))
    return Setting(algorithm, protocol, draw(st.integers(1, 64)), threads, draw(chunk))


@given(settings())
def test_text_and_back(setting):
    assert Setting.parse(str(setting)) == setting


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ring/simple/24/544", "write ALGORITHM"),
        ("ring/simple/24/544/x", "write ALGORITHM"),
        ("rings/simple/24/544/4096", "known are ring, tree"),
        ("ring/fast/24/544/4096", "known are ll, ll128"),
        ("nvls/ll/16/512/4096", "simple only"),
        ("ring/simple/0/544/4096", "1 to 64"),
        ("ring/simple/65/544/4096", "1 to 64"),
        ("ring/simple/24/100/4096", "warps of 32"),
        ("ring/ll/24/640/4096", "64 to 512"),
        ("ring/ll128/24/96/4096", "160 to 640"),
        ("ring/simple/24/544/100", "512 to 2097152"),
        ("tree/simple/24/544/2097152", "512 to 524288"),
        ("ring/ll/24/512/65536", "16 to 32768"),
    ],
)
def test_what_nccl_cannot_run_is_refused(text, complaint):
    with pytest.raises(SettingError, match=complaint):
        Setting.parse(text)
