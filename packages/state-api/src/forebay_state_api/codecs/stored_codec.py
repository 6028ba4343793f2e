"""`stored_codec`: read stored values as plain Python values, without the classes of the job.

Records of any class become NamedTuples with the same fields, members of enumerations their names,
and values of a job's own `Codec` the bytes that it encoded; all other types are as they were
declared. Values are packed to the same bytes, so such a codec also writes them. A codec that is
only read by position leaves records, and lists inside of values, as the tuples that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.containers import DictShape, ListShape, TupleOfShape, TupleShape
from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.records import Field
from forebay_state_api.codecs.scalars import OptionalShape, ScalarShape, scalar_shape
from forebay_state_api.codecs.structs import StructShape
from forebay_state_api.codecs.type_shapes import Description, Function, TypeShape, UnreadableError
from forebay_state_api.codecs.untyped import AnyShape
from forebay_state_api.errors import StateMigrationError


def stored_codec(
    description: Mapping[str, Any], *, what: str, by_position: bool = False
) -> ValueCodec:
    """Return the codec of plain values of a stored type.

    ``description`` is a `ValueCodec.description`, ``what`` names the thing in errors. With
    ``by_position`` records and lists are read as tuples, which is several times faster; such a
    codec is for reading only. Raises `StateMigrationError` for a type of a newer release.
    """
    shapes = {**_SHAPES, **_BY_POSITION} if by_position else _SHAPES
    return ValueCodec.of(_shape_of(description, what, shapes), what)


def _shape_of(description: Description, what: str, shapes: _Shapes) -> TypeShape:
    make = shapes.get(description["type"])
    if make is None:
        raise StateMigrationError(
            f"{what}: {describe_type(description)} is a type of a newer release of Forebay; read "
            "it with the release that wrote it, or a newer one"
        )
    return make(description, lambda part: _shape_of(part, what, shapes))


_Part = Callable[[Description], TypeShape]
_Shapes = Mapping[str, Callable[[Description, _Part], TypeShape]]


class _Record(StructShape):
    """A record of any class: a NamedTuple of its fields."""

    def __init__(self, description: Description, part: _Part) -> None:
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


class _Name(ScalarShape):
    """The name of a member of an enumeration; flags have names like ``A|B``."""

    def __init__(self, description: Description) -> None:
        super().__init__(str)
        self.description = dict(description)


class _Encoded(ScalarShape):
    """The bytes that a codec of the job's own has encoded."""

    def __init__(self, description: Description) -> None:
        super().__init__(bytes)
        self.description = dict(description)

    def reader(self, stored: Description) -> None:
        """Accept bytes of the codec's own version; only the codec converts older ones."""
        if stored != self.description:
            raise UnreadableError(
                f"{describe_type(stored)} cannot be read without the job's codec, which has gone "
                f"on to {describe_type(self.description)}"
            )


def _scalar(cls: type) -> Callable[[Description, _Part], TypeShape]:
    return lambda _, __: scalar_shape(cls)


_SHAPES: Final[_Shapes] = {
    "none": _scalar(type(None)),
    "bool": _scalar(bool),
    "int": _scalar(int),
    "float": _scalar(float),
    "str": _scalar(str),
    "bytes": _scalar(bytes),
    "date": _scalar(date),
    "datetime": _scalar(datetime),
    "time": _scalar(time),
    "timedelta": _scalar(timedelta),
    "decimal": _scalar(Decimal),
    "uuid": _scalar(UUID),
    "any": lambda _, __: AnyShape(),
    "optional": lambda one, part: OptionalShape(part(one["of"])),
    "list": lambda one, part: ListShape(part(one["element"])),
    "tuple": lambda one, part: TupleShape([part(element) for element in one["elements"]]),
    "tuple_of": lambda one, part: TupleOfShape(part(one["element"])),
    "dict": lambda one, part: DictShape(part(one["key"]), part(one["value"])),
    "record": _Record,
    "enum": lambda one, _: _Name(one),
    "codec": lambda one, _: _Encoded(one),
}
_BY_POSITION: Final[_Shapes] = {
    "list": lambda one, part: _Elements(part(one["element"])),
    "record": _Positions,
}
