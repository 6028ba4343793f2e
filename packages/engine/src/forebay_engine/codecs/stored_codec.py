"""`stored_codec`: read stored values as plain Python values, without the classes of the job.

Records of any class become NamedTuples with the same fields, members of enumerations their names,
and values of a job's own `Codec` the bytes that it encoded; all other types are as they were
declared. Values are packed to the same bytes, so such a codec also writes them. A codec that is
only read by position leaves records, and lists inside of values, as the tuples that are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay_state_api.codecs import ValueCodec, describe_type
from forebay_state_api.codecs.containers import ListShape
from forebay_state_api.codecs.described_shapes import SHAPES, Part, ScalarOfClass, Shapes
from forebay_state_api.codecs.records import Field
from forebay_state_api.codecs.structs import StructShape
from forebay_state_api.codecs.type_shapes import Description, Function, TypeShape, UnreadableError
from forebay_state_api.errors import StateMigrationError


def stored_codec(
    description: Mapping[str, Any], *, what: str, by_position: bool = False
) -> ValueCodec:
    """Return the codec of plain values of a stored type.

    ``description`` is a `ValueCodec.description`, ``what`` names the thing in errors. With
    ``by_position`` records and lists are read as tuples, which is several times faster; such a
    codec is for reading only. Raises `StateMigrationError` for a type of a newer release.
    """
    shapes = _BY_POSITION if by_position else _SHAPES
    return ValueCodec.of(_shape_of(description, what, shapes), what)


def _shape_of(description: Description, what: str, shapes: Shapes) -> TypeShape:
    make = shapes.get(description["type"])
    if make is None:
        raise StateMigrationError(
            f"{what}: {describe_type(description)} is a type of a newer release of Forebay; read "
            "it with the release that wrote it, or a newer one"
        )
    return make(description, lambda part: _shape_of(part, what, shapes))


class _Record(StructShape):
    """A record of any class: a NamedTuple of its fields."""

    def __init__(self, description: Description, part: Part) -> None:
        super().__init__([Field(one["name"], part(one["type"])) for one in description["fields"]])
        self.description = dict(description)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description; rules for older data are in the stored generations."""
        return self.description


class _Positions(_Record):
    """A record of any class: the tuple of its fields."""

    def reader(self, stored: Description) -> Function | None:
        """Accept what a record accepts; leave tuples of its own type as they are."""
        read = super().reader(stored)
        return None if stored == self.description else read


class _Elements(ListShape):
    """A list: the tuple of its elements."""

    def reader(self, stored: Description) -> Function | None:
        """Accept what a list accepts; leave tuples of its own elements as they are."""
        read = super().reader(stored)
        return None if self._element.reader(stored["element"]) is None else read


class _Encoded(ScalarOfClass):
    """The bytes that a codec of the job's own has encoded."""

    def reader(self, stored: Description) -> None:
        """Accept bytes of the codec's own version; only the codec converts older ones."""
        if stored != self.description:
            raise UnreadableError(
                f"{describe_type(stored)} cannot be read without the job's codec, which is now "
                f"{describe_type(self.description)}"
            )


_SHAPES: Final[Shapes] = {
    **SHAPES,
    "record": _Record,
    "codec": lambda one, _: _Encoded(bytes, one),
}
_BY_POSITION: Final[Shapes] = {
    **_SHAPES,
    "list": lambda one, part: _Elements(part(one["element"])),
    "record": _Positions,
}
