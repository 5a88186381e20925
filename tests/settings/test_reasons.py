"""A reason says nothing that its figures do not."""

import pytest

from lagom_jax.settings.reasons import Change, reason


def why(communication, computation, step, *, exposed, region=""):
    change = Change(communication, computation, step, 0.0, exposed, 1e-3)
    return reason(change, region, changed=True)


def test_compute_stands_still_only_where_it_did():
    assert "since compute stands still" in why(-2e-3, 1e-3, -1e-3, exposed=2e-3)
    hidden = why(-2e-3, 1e-3, 1e-3, exposed=0.0)
    assert "though compute never stood still" in hidden


def test_both_longer_is_a_gain_only_where_the_step_is_shorter():
    gain = why(2e-3, 1e-3, -3e-3, exposed=5e-3, region="exposed")
    assert gain.endswith("and yet the step is shorter by 3.00 ms")
    assert why(2e-3, 1e-3, 0.0, exposed=5e-3).endswith("the step no shorter")


@pytest.mark.parametrize(("region", "sought"), [("exposed", True), ("", False)])
def test_only_who_looked_says_that_nothing_was_found(region, sought):
    change = Change(0.0, 0.0, 0.0, 5e-6, 1e-3, 0.0)
    told = reason(change, region, changed=False)
    assert told.startswith("left alone: ")
    assert told.endswith("no setting could win more than 5.00 us")
    assert ("nothing found was worth a change" in told) is sought


def test_small_times_have_small_units():
    assert "for 59.9 ns of" in why(-4.59e-6, 59.9e-9, -4.59e-6, exposed=1e-3)
