"""Orders as data: what is no order is said clearly."""

import json

import pytest

from lagom_jax.compile import ScheduleEdit
from lagom_jax.errors import StepError


def test_an_order_survives_json():
    edit = ScheduleEdit("ab12", {3: (2, 0, 1), 0: (0,), 11: ()})
    assert ScheduleEdit.from_json(json.loads(json.dumps(edit.to_json()))) == edit
    assert list(edit.to_json()["sequences"]) == ["0", "3", "11"]


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
    return {"fingerprint": "ab", "sequences": sequences, "aside": {}, **more}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the order is list"),
        ({"sequences": {}}, "no fingerprint"),
        ({"fingerprint": 1, "sequences": {}}, "fingerprint of the order is int"),
        ({"fingerprint": "ab", "sequences": []}, "sequences of the order is list"),
        (json_of({"x": []}), "'x', not a number"),
        (json_of({"-1": []}), "'-1', not a number"),
        (json_of({"0": "01"}), "sequences of the order, 0: not a list"),
        (json_of({"0": [0.0]}), "whole numbers"),
        (json_of({"0": [False]}), "whole numbers"),
        (json_of({"0": [1]}), "0 is missing"),
        ({"fingerprint": "ab", "sequences": {}}, "the order has no aside"),
        (json_of({}, aside=[]), "aside of the order is list"),
        (json_of({}, aside={"x": []}), "aside of the order has 'x', not a number"),
        (json_of({}, aside={"0": 1}), "aside of the order, 0: not a list"),
    ],
)
def test_json_that_is_no_order(data, message):
    with pytest.raises(StepError, match=message):
        ScheduleEdit.from_json(data)
