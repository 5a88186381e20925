"""Orders as data: what is no order is said clearly."""

import json

import pytest

from lagom_jax.errors import StepError
from lagom_jax.plan import ScheduleEdit
from lagom_jax.typed_json import FormError, plain, typed


def test_an_order_survives_json():
    edit = ScheduleEdit("ab12", {3: (2, 0, 1), 0: (0,), 11: ()})
    assert typed(ScheduleEdit, json.loads(json.dumps(plain(edit)))) == edit
    assert list(plain(edit)["sequences"]) == ["0", "3", "11"]


def test_what_keeps_everything():
    assert ScheduleEdit("ab12", {}).keeps_everything
    assert ScheduleEdit("ab12", {0: (), 4: (0, 1)}).keeps_everything
    assert not ScheduleEdit("ab12", {0: (0, 1), 4: (1, 0)}).keeps_everything


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ({0: (0, 0)}, "sequence 0 of the order is no permutation of 2.*1 is missing"),
        ({7: (1, 2)}, "sequence 7 .* 0 is missing"),
        ({0: (0, -1)}, "1 is missing"),
        ({-1: (0,)}, "computation -1"),
    ],
)
def test_what_is_no_permutation(sequences, message):
    with pytest.raises(StepError, match=message):
        ScheduleEdit("ab12", sequences)


def json_of(sequences, **more):
    return {"fingerprint": "ab", "sequences": sequences, "second_stream": {}, **more}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "is no object"),
        ({"sequences": {}, "second_stream": {}}, "fingerprint: missing"),
        (json_of({}, fingerprint=1), "fingerprint: 1 is not a text"),
        (json_of([]), "sequences: .* is no object"),
        (json_of({"x": []}), "sequences.x: the key is no whole number"),
        (json_of({"-1": []}), "sequences.-1: the key is no whole number"),
        (json_of({"00": []}), "sequences.00: the key is no whole number"),
        (json_of({"0": "01"}), "sequences.0: '01' is no list"),
        (json_of({"0": [0.0]}), r"sequences.0\[0\]: 0.0 is not a whole number"),
        (json_of({"0": [False]}), r"sequences.0\[0\]: False is not a whole number"),
        (json_of({"0": [1]}), "0 is missing"),
        ({"fingerprint": "ab", "sequences": {}}, "second_stream: missing"),
        (json_of({}, second_stream=[]), "second_stream: .* is no object"),
        (json_of({}, second_stream={"0": 1}), "second_stream.0: 1 is no list"),
    ],
)
def test_json_that_is_no_order(data, message):
    with pytest.raises(FormError, match=message):
        typed(ScheduleEdit, data)
