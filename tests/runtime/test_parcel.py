"""What is unpacked is what was packed, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.runtime.parcel import ParcelError, pack, unpack


@given(st.binary(max_size=300), st.booleans())
def test_there_and_back(content, result):
    assert unpack(pack(content, result=result)) == (content, result)


@given(st.binary(max_size=300), st.booleans(), st.data())
def test_no_changed_bit_is_overlooked(content, result, data):
    parcel = bytearray(pack(content, result=result))
    at = data.draw(st.integers(0, len(parcel) - 1))
    parcel[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ParcelError):
        unpack(bytes(parcel))


@given(st.binary(max_size=300), st.data())
def test_no_cut_is_overlooked(content, data):
    parcel = pack(content)
    with pytest.raises(ParcelError):
        unpack(parcel[: data.draw(st.integers(0, len(parcel) - 1))])
    with pytest.raises(ParcelError):
        unpack(parcel + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage):
    with pytest.raises(ParcelError):
        unpack(garbage)


def test_json_gets_smaller():
    assert len(pack(b'{"algorithm": "ring", "channels": 8}' * 1000)) < 1000
