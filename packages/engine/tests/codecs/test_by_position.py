"""Stored values that are read by position: records and lists stay tuples."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from forebay_engine.codecs.stored_codec import stored_codec
from forebay_state_api.codecs import codec_for, resolve
from forebay_state_api.errors import IncompatibleTypeError


class Point(NamedTuple):
    x: int
    tags: list[str]


class Moved(NamedTuple):
    tags: list[str]
    x: float
    y: int = 7


CASES: list[tuple[Any, Any, Any]] = [
    (Point, Point(1, ["a"]), (1, ("a",))),
    (list[Point], [Point(1, [])], ((1, ()),)),
    (Point | None, None, None),
    (tuple[Point, int], (Point(1, ["a"]), 2), ((1, ("a",)), 2)),
    (dict[str, list[int]], {"a": [1]}, {"a": (1,)}),
    ("a bigint, b array<string>", (1, ["x"]), (1, ("x",))),
]


@pytest.mark.parametrize(("declared", "value", "stored"), CASES)
def test_records_and_lists_are_tuples(declared: Any, value: Any, stored: Any) -> None:
    codec = codec_for(declared, what="it")
    by_position = stored_codec(codec.description, what="it", by_position=True)
    (read,) = by_position.unpack(codec.pack([codec.admit(value)]))
    assert repr(read) == repr(stored)


def test_an_older_record_is_read_by_name() -> None:
    old, new = codec_for(Point, what="it"), codec_for(Moved, what="it")
    declared = stored_codec(new.description, what="it", by_position=True)
    with pytest.raises(IncompatibleTypeError, match="'y'"):  # its default is the job's
        resolve(old.description, declared)
    later = [old.declaration, new.declaration]
    (read,) = resolve(old.description, declared, later).unpack(old.pack([Point(1, ["a"])]))
    assert tuple(read) == (["a"], 1.0, 7)
    fewer = stored_codec(codec_for(Fewer, what="it").description, what="it", by_position=True)
    (read,) = resolve(old.description, fewer).unpack(old.pack([Point(1, ["a"])]))
    assert tuple(read) == (("a",),)


class Fewer(NamedTuple):
    tags: list[str]
