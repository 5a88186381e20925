"""The forms that put a step behind by some model, by seconds that are made up."""

from lagom_jax.plan import Form, SiteForm
from lagom_jax.planner.places_behind import places_behind

ONE, TWO, THREE = (SiteForm(f"a.py:{n}", "all_gather", Form("ring")) for n in (1, 2, 3))


def test_the_model_that_loses_most_says_which_goes_first():
    saved = {ONE: (9.0, 1.0), TWO: (-1.0, 4.0), THREE: (0.0, 3.5)}
    assert places_behind([-5.0, 3.0], saved) == (TWO,)
    assert places_behind([-5.0, 5.0], saved) == (TWO, THREE)
    assert places_behind([6.0, 5.0], saved) == (ONE, TWO)


def test_a_form_that_costs_no_model_anything_stays():
    assert places_behind([1.0, 1.0], {ONE: (-1.0, -1.0)}) == ()
    assert places_behind([1.0], {}) == ()
    assert places_behind([], {ONE: ()}) == ()
