"""The fields that a start drops, adds and renames, at any depth, as reading then shows."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import attrs
import pytest

from forebay_engine.codecs.field_changes import field_changes
from forebay_state_api import Alias, MigratedFrom
from forebay_state_api.codecs import codec_for


@attrs.frozen
class Part:
    x: int
    y: int = 0


@attrs.frozen
class Other:
    x: int
    z: int = 0


@attrs.frozen
class Renamed:
    x: int
    z: Annotated[int, Alias("y")] = 0


@attrs.frozen
class Whole:
    part: Part
    n: int = 0


@attrs.frozen
class Whole2:
    part: Other
    m: int = 0


@attrs.frozen
class Swapped:
    """``z`` is what was ``x``, and there is a new ``x``."""

    z: Annotated[int, Alias("x")]
    x: int = 0


def changes(stored: Any, declared: Any) -> list[tuple[Any, ...]]:
    old, new = codec_for(stored, what="s"), codec_for(declared, what="s")
    return [attrs.astuple(one) for one in field_changes(old.description, new.declaration)]


class Both(enum.Enum):
    RED = 1
    GREEN = 2


class Red(enum.Enum):
    RED = 1


DROPS_Y = [("y", "dropped", None), ("z", "added", None)]
BELOW = [("[].y", "dropped", None), ("[].z", "added", None)]


@pytest.mark.parametrize(
    ("stored", "declared", "expected"),
    [
        (Part, Part, []),
        (int, float, []),
        (Red, Both, []),
        (Both, Red, [("", "narrowed", "GREEN")]),
        (list[Both], list[Red], [("[]", "narrowed", "GREEN")]),
        (Part, Part | None, []),
        (Part, Other, DROPS_Y),
        (Part | None, Other | None, DROPS_Y),
        (Part, Other | None, DROPS_Y),
        (Part, Renamed, [("z", "renamed", "y")]),
        (Part, Swapped, [("y", "dropped", None), ("z", "renamed", "x"), ("x", "added", None)]),
        (list[Part], list[Other], BELOW),
        (tuple[Part, ...], tuple[Other, ...], BELOW),
        (tuple[int, Part], tuple[int, Other], BELOW),
        (
            dict[str, list[Part]],
            dict[str, list[Other]],
            [("[]" + one[0], *one[1:]) for one in BELOW],
        ),
        (
            Whole,
            Whole2,
            [
                ("n", "dropped", None),
                ("part.y", "dropped", None),
                ("part.z", "added", None),
                ("m", "added", None),
            ],
        ),
        ("a int, b int", "a int, c int", [("b", "dropped", None), ("c", "added", None)]),
        (Part, Annotated[Other, MigratedFrom(Part, lambda part: Other(part.x))], []),
        (int, Annotated[Other, MigratedFrom(int, Other)], []),
        (Part, Annotated[Other, MigratedFrom(int, Other)], DROPS_Y),
    ],
    ids=lambda value: str(value).replace(__name__, "")[:60],
)
def test_changes_of_fields(stored: Any, declared: Any, expected: list[Any]) -> None:
    assert changes(stored, declared) == expected
