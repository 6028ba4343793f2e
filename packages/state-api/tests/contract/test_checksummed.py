"""Sealed objects show whether they are whole."""

import struct

import msgpack
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_state_api.contract.checksummed import TornObjectError, read_sealed, seal, unseal
from forebay_state_api.errors import CorruptStateError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=8,
)


@pytest.mark.long
@settings(max_examples=settings().max_examples // 2)
@given(st.dictionaries(st.text(), PLAIN))
def test_what_is_sealed_is_unsealed(payload):
    assert unseal(seal(payload)) == payload


@pytest.mark.long
@settings(max_examples=settings().max_examples // 2)
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


def test_what_holds_no_mapping_is_named():
    for body in (b"\xc1", msgpack.packb([1]), b""):
        content = struct.pack("<4sBQ", b"FBAY", 1, len(body)) + body
        with pytest.raises(CorruptStateError, match="the pin is damaged"):
            unseal(content + xxhash.xxh3_128_digest(content), "the pin")


def test_a_payload_of_another_kind_is_named():
    with pytest.raises(CorruptStateError, match=r"the pin is damaged.*KeyError") as found:
        read_sealed(seal({"since": 1}), "the pin", lambda payload: payload["files"])
    assert type(found.value) is CorruptStateError
    with pytest.raises(CorruptStateError, match="the pin is truncated to 0 bytes") as empty:
        read_sealed(b"", "the pin", dict)
    assert type(empty.value) is CorruptStateError
