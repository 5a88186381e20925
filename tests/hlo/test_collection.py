"""Python's search for garbage is paused while much is read, and goes on as it was."""

import gc

import pytest

from lagom_jax.hlo.read import collection_paused


def test_it_goes_on_where_what_was_done_fails():
    with pytest.raises(ValueError, match="unreadable"), collection_paused():
        raise ValueError("unreadable")
    assert gc.isenabled()


def test_the_end_of_an_inner_pause_does_not_end_the_outer_one():
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_for_a_user_who_turned_it_off():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
