"""Sealed objects tell whether they are whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.errors import CorruptStateError
from forebay_state_api.sealed import TornObjectError, seal, unseal

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_what_is_sealed_is_unsealed(payload):
    assert unseal(seal(payload)) == payload


@given(st.dictionaries(st.text(), PLAIN), st.data())
def test_every_truncation_is_torn(payload, data):
    sealed = seal(payload)
    length = data.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(TornObjectError, match="the manifest is truncated"):
        unseal(sealed[:length], "the manifest")


def test_every_altered_byte_is_found():
    sealed = seal({"a": [1, 2, 3], "b": "text"})
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(CorruptStateError):
            unseal(bytes(altered))


def test_an_appended_byte_is_found():
    with pytest.raises(CorruptStateError, match="altered"):
        unseal(seal({}) + b"x")


def test_another_format_is_named():
    sealed = bytearray(seal({}))
    sealed[4] = 9
    with pytest.raises(CorruptStateError, match="format 9; this release reads format 1"):
        unseal(bytes(sealed))
