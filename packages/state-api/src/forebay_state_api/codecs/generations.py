"""Read data older than several declarations as if each of them had rewritten it.

A state begins a new *generation* when a restart declares it with different types; stored data
record their generation. Each generation keeps its `TypeShape.declaration` as plain data, which is
enough to drop, rename, fill and widen the fields of older data, without the classes that no longer
exist. So a field that one generation dropped does not come back with the next, on any backend,
whether or not the data were rewritten in between.

Two kinds of steps need the job: a `MigratedFrom`, and an added field whose default depends on the
record or differs from call to call. Data from before such a step are read by the current
declaration, as if there were no generation in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import attrs

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.described_shapes import SHAPES, Part, ScalarOfClass, Shapes
from forebay_state_api.codecs.plain import load_typed
from forebay_state_api.codecs.record_makers import TupleMaker
from forebay_state_api.codecs.records import Field, field_reader, positions_of
from forebay_state_api.codecs.type_shapes import (
    Description,
    Function,
    MigrationNeededError,
    TypeShape,
    UnreadableError,
)

_TUPLES: Final = TupleMaker(tuple)


def read_through(
    stored: Description, later: Sequence[Description], declared: ValueCodec
) -> ValueCodec:
    """Return ``declared``, changed to unpack data packed under ``stored``.

    ``later`` are the declarations of all generations since then, the last one of the type that is
    declared now. Raises `UnreadableError`.
    """
    steps: list[Function] = []
    for declaration in later:
        shape = shape_of(declaration)
        if stored == shape.description:
            continue
        try:
            step = shape.reader(stored)
        except UnreadableError as error:
            _check_migrated(stored, declared, error)
            break
        if step is not None:
            steps.append(step)
        stored = shape.description
    if not steps and stored == declared.description:
        return declared
    return declared.reading(stored, reduce(_composed, steps) if steps else None)


def _composed(first: Function, then: Function) -> Function:
    return lambda value: then(first(value))


def _check_migrated(stored: Description, declared: ValueCodec, error: UnreadableError) -> None:
    """Refuse data for which an earlier generation had a function and the job no longer has one."""
    if not isinstance(error, _FunctionNeededError):
        return
    try:
        shape_of(declared.declaration).reader(stored)
    except UnreadableError:  # readable by a function, or not at all: the reader will raise
        return
    raise UnreadableError(f"{error}, which is not declared any more")


class _FunctionNeededError(MigrationNeededError):
    """An earlier generation read these data through a `MigratedFrom`."""


def shape_of(declaration: Description) -> TypeShape:
    """Return a shape that reads older plain data as plain data of the declared type."""
    bare = {name: value for name, value in declaration.items() if name != "migrated"}
    shape = _SHAPES.get(declaration["type"], _Unknown)(bare, shape_of)
    migrated = declaration.get("migrated", ())
    return _Migrated(shape, migrated) if migrated else shape


class _Plain(TypeShape):
    """Plain data of a type that was once declared; it is never turned into values."""

    def convert(self, value: Any) -> Any:
        """Return ``value``."""
        return value


class _Migrated(_Plain):
    """A type, with the types that a function migrated to it."""

    def __init__(self, of: TypeShape, migrated: Sequence[Description]) -> None:
        self.description = of.description
        self._of = of
        self._migrated = migrated

    def reader(self, stored: Description) -> Function | None:
        """Read data that need no function."""
        if stored != self.description and stored in self._migrated:
            raise self._needed(stored)
        try:
            return self._of.reader(stored)
        except UnreadableError:
            raise self._needed(stored) from None

    def _needed(self, stored: Description) -> _FunctionNeededError:
        types = f"{describe_type(stored)} to {describe_type(self.description)}"
        return _FunctionNeededError(f"a MigratedFrom was declared from {types}")


@attrs.frozen
class _PlainField(Field):
    """A field whose default is plain data."""

    def fill(self, record: Any) -> Any:
        """Return the default."""
        assert self.default is not None
        return self.default(record)


class _Record(_Plain):
    """The tuple of a record's fields."""

    def __init__(self, declaration: Description, part: Part) -> None:
        self._fields = [_field(one, part) for one in declaration["fields"]]
        self._declared = [one["default"] for one in declaration["fields"]]
        pairs = zip(self._fields, self._declared, strict=True)
        fields = [{**one.description, "default": has} for one, has in pairs]
        self.description = {**declaration, "fields": fields}

    def reader(self, stored: Description) -> Function | None:
        """Read the fields as the record's own shape does."""
        self.check_type(stored)
        positions = positions_of(self._fields, stored)
        for one, has_default in zip(self._fields, self._declared, strict=True):
            if has_default and one.default is None and one.name not in positions:
                raise MigrationNeededError(
                    f"the default of the field {one.name!r} is made by a function"
                )
        readers = [field_reader(one, stored, positions) for one in self._fields]
        return _TUPLES.rebuild(
            readers,
            [f"v[{positions[f.name]}]" if f.name in positions else "o" for f in self._fields],
        )


def _field(declaration: Description, part: Part) -> _PlainField:
    constant = declaration.get("constant")
    # A mutable default must be a new object each time.
    default = None if constant is None else lambda _: load_typed(constant)
    aliases = tuple(declaration.get("aliases", ()))
    return _PlainField(declaration["name"], part(declaration["type"]), default, aliases=aliases)


class _Codec(ScalarOfClass):
    """Bytes that one of the job's codecs encoded."""

    def reader(self, stored: Description) -> Function | None:
        """Accept data of a codec with this id: the restart has checked that it can read them."""
        self.check_type(stored)
        if stored["id"] != self.description["id"]:
            raise self.unreadable_error(stored)
        return None


class _Unknown(_Plain):
    """A type of a newer release."""

    def __init__(self, declaration: Description, _: Part) -> None:
        self.description = {**declaration}

    def reader(self, stored: Description) -> Function | None:
        """Refuse everything else."""
        raise UnreadableError(
            f"{describe_type(stored)} was read as {describe_type(self.description)} by a newer "
            "release of Forebay"
        )


_SHAPES: Final[Shapes] = {
    **SHAPES,
    "record": _Record,
    "codec": lambda one, _: _Codec(bytes, one),
}
