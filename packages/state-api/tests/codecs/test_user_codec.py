"""User codecs."""

from __future__ import annotations

import json
from typing import Annotated

import attrs
import pytest

from forebay_state_api.codecs import Codec, codec_for, describe_type, raw_codec, resolve
from forebay_state_api.errors import IncompatibleTypeError


class JsonCodec(Codec[set]):
    id = "tests.json-set"
    version = 1

    def encode(self, value):
        if not isinstance(value, set):
            raise TypeError("expected a set")
        return json.dumps(sorted(value)).encode()

    def decode(self, data):
        return set(json.loads(data))

    def describe(self):
        return "set of JSON values"

    def compatible_with(self, stored_description):
        return stored_description.startswith("set")


class NewerCodec(JsonCodec):
    version = 2

    def describe(self):
        return "set v2"


class OtherCodec(JsonCodec):
    id = "tests.other"


class StrictCodec(JsonCodec):
    def describe(self):
        return "set, strict"

    def compatible_with(self, stored_description):
        return False


class FrozenCodec(JsonCodec):
    immutable = True

    def decode(self, data):
        raise AssertionError("no copy is needed")


class TextCodec(JsonCodec):
    def encode(self, value):
        return "text"


def test_values_go_through_the_codec():
    codec = codec_for(JsonCodec(), what="x")
    given = {1, 2}
    stored = codec.admit(given)
    assert stored == given
    assert stored is not given
    assert codec.hand_out(stored) is not stored
    assert codec.unpack(codec.pack([stored, set()])) == [stored, set()]
    assert codec.unpack_one(codec.pack_one(stored)) == stored
    assert codec.original(codec.address(stored)) == stored
    assert codec.classes == {JsonCodec}


def test_immutable_values_are_checked_but_not_copied():
    codec = codec_for(FrozenCodec(), what="x")
    given = {1}
    assert codec.admit(given) is given
    assert codec.hand_out is None
    with pytest.raises(TypeError, match="expected a set"):
        codec.admit([1])


def test_the_description_carries_identity_version_and_text():
    codec = codec_for(JsonCodec(), what="x")
    assert codec.description == {
        "type": "codec",
        "id": "tests.json-set",
        "version": 1,
        "text": "set of JSON values",
    }
    rendered = "set of JSON values (codec tests.json-set, version 1)"
    assert describe_type(codec.description) == rendered


def test_encode_must_return_bytes():
    with pytest.raises(TypeError, match=r"TextCodec\.encode must return bytes, not str"):
        codec_for(TextCodec(), what="x").admit({1})


def test_a_codec_decides_which_versions_it_reads():
    old = codec_for(JsonCodec(), what="x")
    new = codec_for(NewerCodec(), what="x")
    assert resolve(old.description, new).unpack(old.pack([{1}])) == [{1}]
    for refusing in (StrictCodec(), OtherCodec()):
        with pytest.raises(IncompatibleTypeError, match=refusing.id):
            resolve(old.description, codec_for(refusing, what="x"))
    with pytest.raises(IncompatibleTypeError):
        resolve({"type": "int"}, new)


def test_undeclared_state_needs_no_codec():
    codec = codec_for(JsonCodec(), what="x")
    packed = codec.pack([{1}])
    raw = raw_codec(codec.description)
    assert raw.pack(raw.unpack(packed)) == packed


@attrs.define
class Holder:
    names: Annotated[set[str], JsonCodec()]


def test_a_codec_serves_within_other_types_by_annotation():
    codec = codec_for(dict[str, Holder], what="x")
    value = {"a": Holder({"x"})}
    stored = codec.admit(value)
    value["a"].names.add("y")
    assert codec.unpack(codec.pack([stored])) == [{"a": Holder({"x"})}]
    with pytest.raises(TypeError, match="expected a set"):
        codec.admit({"a": Holder(["x"])})
