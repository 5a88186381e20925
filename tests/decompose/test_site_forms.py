"""The form of each place, from savings that are made by hand."""

import pytest

from lagom_jax.decompose.form_savings import forms_of
from lagom_jax.decompose.site_forms import by_all, forms_by_place
from lagom_jax.errors import DecomposeError
from lagom_jax.plan import Form, SiteForm

from ..cost.programs import collective

RING, TWO = Form("ring"), Form("chunks", slices=2)


def at(*lines, kind="all-gather", op_name="jit(f)/jvp(shard_map)/shard_map/x"):
    source = f"/home/me/{lines[0]}"
    return collective("c", kind=kind, source=source, callers=lines[1:], op_name=op_name)


AGAIN = "jit(f)/transpose(jvp(shard_map))/shard_map/x"


@pytest.fixture
def savings():
    """Two layers that gather at one line of a module, and one scatters there, too."""
    shared = "layout.py:3"
    return {
        at(shared, "mlp.py:1"): {RING: (2.0, 1.0), TWO: (1.0, 1.0)},
        at(shared, "attention.py:1"): {RING: (-1.0, -1.0), TWO: (1.0, 1.0)},
        at(shared, "mlp.py:1", kind="reduce-scatter"): {RING: (3.0, -1.0)},
        at("head.py:9"): {RING: (-1.0, 5.0)},
    }


def test_each_place_has_what_saves_most_by_the_likeliest_model(savings):
    assert forms_by_place(savings) == (
        SiteForm("attention.py:1", "all_gather", TWO),
        SiteForm("layout.py:3", "reduce_scatter", RING),
        SiteForm("mlp.py:1", "all_gather", RING),
    )


def test_or_what_by_no_model_takes_more(savings):
    assert forms_by_place(savings, by_all) == (
        SiteForm("attention.py:1", "all_gather", TWO),
        SiteForm("mlp.py:1", "all_gather", RING),
    )
    assert forms_by_place(savings, by_all, lambda form: form == TWO) == (
        SiteForm("layout.py:3", "all_gather", TWO),
    )


def test_a_layer_that_runs_again_may_have_another_form_there():
    """Its pass is named only where the line alone does not say which."""
    passes = {
        at("a.py:1"): {RING: (2.0,), TWO: (1.0,)},
        at("a.py:1", op_name=AGAIN): {RING: (-1.0,), TWO: (-1.0,)},
    }
    (found,) = forms_by_place(passes)
    assert found == SiteForm("a.py:1", "all_gather", RING, "forward")
    assert found.code == '("a.py:1", "all_gather", "forward"): Form("ring")'
    again = {**passes, at("a.py:1", op_name=AGAIN): {RING: (9.0,), TWO: (2.0,)}}
    assert forms_by_place(again) == (SiteForm("a.py:1", "all_gather", RING),)


def test_what_the_partitioner_made_is_named_by_its_matmul():
    named = {"op_name": "jit(f)/jvp()/while/body/dot_general"}
    for kind in ("all-gather", "all-reduce", "reduce-scatter"):
        made = {at("a.py:1", kind=kind, **named): {TWO: (2.0,)}}
        assert forms_by_place(made) == (SiteForm("a.py:1", "dot_general", TWO),)
        own = collective("c", kind=kind)
        assert set(forms_of(at("a.py:1", kind=kind, **named))) <= set(forms_of(own))
        assert {f.kind for f in forms_of(at("a.py:1", kind=kind, **named))} == {
            "chunks"
        }


def test_what_one_place_gains_another_with_the_same_lines_may_lose():
    """A line in a loop and in its repetition is one place."""
    both = {at("a.py:1"): {RING: (2.0,)}, at("a.py:1"): {RING: (-3.0,)}}
    assert len(both) == 2
    assert forms_by_place(both) == ()
    assert forms_by_place({at("a.py:1"): {RING: (2.0,)}}) == (
        SiteForm("a.py:1", "all_gather", RING),
    )


def test_names_of_single_places_hold_whatever_the_others_have():
    """So that one form can be tried beside those of the rest."""
    shared, whole = "layout.py:3", Form("whole")
    places = {
        at(shared, "mlp.py:1"): {whole: (1.0,), TWO: (2.0,)},
        at(shared, "attention.py:1"): {whole: (1.0,)},
        at(shared, "mlp.py:1", op_name=AGAIN): {whole: (1.0,)},
    }

    def uncut(form):
        return form == whole

    assert forms_by_place(places, allowed=uncut) == (
        SiteForm(shared, "all_gather", whole),
    )
    base = forms_by_place(places, allowed=uncut, by_pass=True)
    best = forms_by_place(places, by_pass=True)
    assert [one.key for one in base] == [one.key for one in best]
    assert [(one.line, one.when) for one in base] == [
        ("attention.py:1", "forward"),
        ("layout.py:3", "backward"),
        ("mlp.py:1", "forward"),
    ]


@pytest.mark.parametrize(
    "given", [{"slices": 2}, {"keep_gathered": False}, {"whole_weights": False}]
)
def test_a_whole_collective_takes_nothing_that_is_about_cuts(given):
    with pytest.raises(DecomposeError, match="whole"):
        Form("whole", **given)
