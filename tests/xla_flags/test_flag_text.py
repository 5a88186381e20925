"""The text of XLA_FLAGS: what is joined is split again."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xla_flags import FlagError, join, split

NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(st.lists(st.tuples(NAMES, TEXTS), max_size=5))
def test_what_is_joined_is_split_again(settings):
    assert split(join(settings)) == (tuple(settings), "")


@given(st.text())
def test_any_text_is_split_or_refused(text):
    try:
        pairs, rest = split(text)
    except FlagError:
        return
    assert text.endswith(rest)
    assert split(join(pairs)) == (pairs, "")


def test_one_dash_is_refused():
    with pytest.raises(FlagError, match="two dashes"):
        split("-xla_gpu_autotune_level=1")


@pytest.mark.parametrize("name", ["", "a b", "a=b", "ä"])
def test_a_name_that_xla_would_cut_is_refused(name):
    with pytest.raises(FlagError, match="no name of a flag"):
        join([(name, "1")])
