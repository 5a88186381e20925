"""Frames between the two processes."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.compile import wire

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.binary()


@given(st.dictionaries(st.text(), VALUES | st.floats(allow_nan=False)), st.binary())
def test_types_survive(header, payload):
    assert wire.unpack(io.BytesIO(wire.pack(header, payload))) == (header, payload)


@given(st.binary(), st.data())
def test_a_cut_frame_is_an_ended_stream(payload, data):
    frame = wire.pack({"a": 1}, payload)
    kept = data.draw(st.integers(0, len(frame) - 1))
    assert wire.unpack(io.BytesIO(frame[:kept])) is None


def test_several_frames_in_a_row():
    stream = io.BytesIO(wire.pack({"n": 1}, b"x") + wire.pack({"n": 2}))
    assert wire.unpack(stream) == ({"n": 1}, b"x")
    assert wire.unpack(stream) == ({"n": 2}, b"")
    assert wire.unpack(stream) is None


def test_what_is_no_json_is_named():
    with pytest.raises(TypeError, match="set does not fit"):
        wire.pack({"a": {1}})
