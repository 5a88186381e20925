"""Forms that gain beside others, by seconds that are made up."""

from lagom_jax.plan import Form, SiteForm
from lagom_jax.planner.shorter_alone import shorter_alone

WHOLE, TWO = Form("whole"), Form("chunks", slices=2)
PLACES = ("a.py:1", "b.py:2", "c.py:3")


def at(*forms):
    return tuple(
        SiteForm(line, "all_gather", form, "forward")
        for line, form in zip(PLACES, forms, strict=True)
        if form is not None
    )


def chosen(forms, base, gains, usual=10.0):
    """What is kept, and how many were tried, where each form gains by itself."""
    tried = []

    def seconds_of(some):
        tried.append(some)
        return 10.0 - sum(gains[one.line, one.form] for one in some)

    return shorter_alone(forms, base, usual, seconds_of), len(tried)


GAINS = {
    (PLACES[0], WHOLE): 1.0,
    (PLACES[0], TWO): 2.0,
    (PLACES[1], WHOLE): 1.0,
    (PLACES[1], TWO): 0.5,
    (PLACES[2], WHOLE): 1.0,
}


def test_a_place_keeps_what_it_has_where_its_own_form_gains_less():
    found, tried = chosen(at(TWO, TWO, WHOLE), at(WHOLE, WHOLE, WHOLE), GAINS)
    assert found == at(TWO, WHOLE, WHOLE)
    # The base, and what differs from it.
    assert tried == 3


def test_a_base_that_gains_nothing_is_left():
    worse = {**GAINS, (PLACES[2], WHOLE): -9.0}
    found, _ = chosen(at(TWO, TWO, WHOLE), at(WHOLE, WHOLE, WHOLE), worse)
    assert found == at(TWO, TWO, None)


def test_without_a_base_each_is_compiled_alone():
    found, tried = chosen(at(TWO, TWO, None), (), {**GAINS, (PLACES[1], TWO): -1.0})
    assert found == at(TWO, None, None)
    assert tried == 2
    assert chosen(at(TWO, TWO, None), (), GAINS, usual=5.0)[0] == ()
