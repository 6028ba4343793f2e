"""The methods that the contract itself implements for backends."""

from __future__ import annotations

import attrs
import pytest

from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)


def test_whole_cells_replace_what_was_there_and_leave_out_what_does_not_exist():
    points = Changes.whole(Shape.POINT, "w", [("a", 1, None), ("b", 2, ABSENT), ("c", 3, 0)])
    assert points == Changes(points={"w": PointChanges(["a", "c"], [1, 3], [None, 0])})
    elements = [1, 2]
    lists = Changes.whole(Shape.LIST, None, [("a", 1, elements), ("b", 2, [])])
    elements.append(3)
    assert lists == Changes(lists={None: {"a": ListChange(1, True, [1, 2])}})
    maps = Changes.whole(Shape.MAP, None, [("a", 1, [("x", None)]), ("b", 2, {})])
    assert maps == Changes(maps={None: {"a": MapChange(1, True, {"x": None})}})


@pytest.mark.parametrize(
    ("shape", "kind", "says"),
    [
        (Shape.POINT, "value", None),
        (Shape.POINT, "reducing", None),
        (Shape.LIST, "list", None),
        (Shape.MAP, "map", None),
        (Shape.LIST, "queue", "list"),
        (Shape.MAP, "set", "map"),
        (Shape.POINT, "list", "point"),
    ],
)
def test_a_description_says_the_shape_where_the_kind_does_not(shape, kind, says):
    codec = codec_for(int, what="v")
    spec = TableSpec(name="s", shape=shape, kind=kind, key=codec, value=codec)
    assert spec.description().get("shape") == says
    assert Shape.of(spec.description()) is shape


def test_the_codec_of_pairs_is_made_once():
    """A backend may ask for it with each value."""
    spec = TableSpec(
        name="s",
        shape=Shape.POINT,
        kind="value",
        key=codec_for(str, what="a key"),
        value=codec_for(int, what="a value"),
        ttl=True,
    )
    assert spec.stored is spec.stored
    assert spec.stored.unpack_one(spec.stored.pack_one((1, 2))) == (1, 2)
    assert attrs.evolve(spec, ttl=False).stored is spec.value
