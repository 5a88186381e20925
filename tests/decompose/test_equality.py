"""Sliced collective matmuls equal their plain forms, forward and gradient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decompose.on_devices import Devices
from tests.depth import examples

EXACT = {"float32": 2e-5, "bfloat16": 2e-2}
TRANSFORMS = ("scan", "remat", "vmap over rows", "vmap over weights")


@pytest.fixture(scope="module")
def devices():
    running = Devices()
    yield running
    running.close()


def assert_equal(found, dtype="float32"):
    assert "error" not in found, found
    assert set(found) == {"y", "dx", "dw", "db"}
    assert max(found.values()) < EXACT[dtype], found


FORMS = [
    {"kind": "ring"},
    {"kind": "ring", "slices": 3, "sums_in_matmul": True, "whole_weights": False},
    {"kind": "ring", "slices": 2, "both_ways": True},
    {"kind": "ring", "keep_gathered": False, "wide_sums": False},
    {"kind": "direct", "slices": 2},
    {"kind": "chunks", "slices": 2, "whole_weights": False},
    {"kind": "chunks"},
]


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce", "weight"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_equals_the_plain_one(devices, kind, form):
    # 5 rows for each of 4 ranks: no number of slices above divides them.
    found = devices.answer(kind=kind, form=form, ranks=4, shape=[20, 8], outputs=12)
    assert_equal(found)


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce"])
@pytest.mark.parametrize(
    "form",
    [
        {"kind": "whole"},
        {"kind": "chunks", "slices": 3},
        {"kind": "chunks", "slices": 2, "keep_gathered": False},
        {"kind": "chunks", "slices": 2, "whole_weights": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_rows_behind_examples(devices, kind, form, activation):
    """Chunks are then in the order of ranks; features and outputs both ways."""
    for features, outputs in ((4, 24), (24, 4)):
        found = devices.answer(
            kind=kind,
            form=form,
            ranks=4,
            shape=[3, 20, features],
            dimension=1,
            outputs=outputs,
            activation=activation,
        )
        assert_equal(found)


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_transformations(devices, kind, transform):
    found = devices.answer(
        kind=kind, ranks=4, shape=[8, 8], outputs=8, transform=transform
    )
    assert_equal(found)


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce", "weight"])
def test_where_jax_does_not_check_what_varies(devices, kind):
    found = devices.answer(kind=kind, ranks=2, shape=[8, 4], outputs=4, checked=False)
    assert_equal(found)


@pytest.mark.parametrize("ranks", [1, 3, 16])
def test_other_numbers_of_ranks(devices, ranks):
    for kind in ("gather", "scatter"):
        shape = [2 * ranks, 3 * ranks]
        found = devices.answer(kind=kind, ranks=ranks, shape=shape, outputs=ranks)
        assert_equal(found)


def forms():
    return st.one_of(
        st.fixed_dictionaries(
            {
                "kind": st.just("ring"),
                "slices": st.integers(1, 4),
                "both_ways": st.booleans(),
                "keep_gathered": st.booleans(),
                "wide_sums": st.booleans(),
                "whole_weights": st.booleans(),
                "sums_in_matmul": st.booleans(),
            }
        ),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["direct", "chunks"]),
                "slices": st.integers(1, 4),
                "wide_sums": st.booleans(),
                "whole_weights": st.booleans(),
            }
        ),
        st.just({"kind": "whole"}),
    )


@pytest.mark.slow
@examples(by_day=12, by_night=60)
@given(data=st.data())
def test_any_shapes(devices, data):
    """Also where another axis cuts the batch, and under jax's transformations."""
    ranks = data.draw(st.sampled_from([2, 4, 8]))
    kind = data.draw(st.sampled_from(["gather", "scatter", "reduce", "weight"]))
    dtype = data.draw(st.sampled_from(sorted(EXACT)))
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    outer = data.draw(st.sampled_from([1, 2])) if batch else 1
    if outer > 1:
        batch[0] *= outer
    dimension = data.draw(st.integers(min(outer - 1, len(batch)), len(batch)))
    transforms = [None, *TRANSFORMS]
    if dtype == "bfloat16":
        # XLA has no such kernel for CPUs: some sums of products of bfloat16 in float32.
        transforms.remove("vmap over weights")
    shape = [*batch]
    shape.insert(dimension, ranks * data.draw(st.integers(1, 5)))
    shape.append(ranks * data.draw(st.integers(1, 3)))
    found = devices.answer(
        kind=kind,
        dtype=dtype,
        ranks=ranks,
        outer=outer,
        shape=shape,
        dimension=dimension,
        outputs=ranks * data.draw(st.integers(1, 3)),
        form=data.draw(forms()),
        activation=data.draw(st.sampled_from([None, "tanh"])),
        transform=data.draw(st.sampled_from(transforms)),
        checked=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 9)),
    )
    assert_equal(found, dtype)


def test_what_ranks_add_up_is_rounded_less_in_float32(devices):
    found = devices.answer(ask="nearer", ranks=8, shape=[64, 256])
    assert found["wide"] < 0.8 * found["short"], found


def test_an_axis_that_is_not_there(devices):
    found = devices.answer(kind="gather", ranks=2, shape=[4, 4], outputs=4, axis="tp")
    assert "no axis 'tp' here" in found["error"]
    assert "jax.shard_map" in found["error"]


def test_rows_that_do_not_divide(devices):
    found = devices.answer(ask="uneven", ranks=4, rows=6)
    assert "6 rows do not divide over the 4 ranks" in found["error"]
    assert "pad them to 8" in found["error"]
