"""Shapes of values with named fields: objects, named tuples and Spark's structs.

All of them are written as the tuple of their fields, so that an attrs class, a dataclass, a
NamedTuple and a struct with the same fields read one another's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from forebay_state_api.codecs.plain import dump_typed
from forebay_state_api.codecs.record_makers import Maker, TupleMaker
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    UnreadableError,
    another_class,
    tuple_function,
)
from forebay_state_api.errors import StateMigrationError


@attrs.frozen
class Field:
    """One field of a record."""

    name: str
    shape: TypeShape
    default: Function | None = None
    """Partly built record (``None`` for tuples) → value of the field in data that lack it."""
    may_be_unset: bool = False
    """Whether the constructor may leave it unset; reading it may raise `AttributeError`."""
    aliases: tuple[str, ...] = ()
    """Former names of the field."""

    @property
    def description(self) -> dict[str, Any]:
        """Name, type, and whether there is a default."""
        has_default = self.default is not None
        return {"name": self.name, "type": self.shape.description, "default": has_default}

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, former names, and the default's bytes where it is a constant."""
        declaration = {**self.description, "type": self.shape.declaration}
        if self.aliases:
            declaration["aliases"] = list(self.aliases)
        constant = self._constant()
        return declaration if constant is None else {**declaration, "constant": constant}

    def _constant(self) -> bytes | None:
        """Return the packed default; ``None`` if it depends on the record or on the call."""
        if self.default is None:
            return None
        try:
            one, other = self._packed_default(), self._packed_default()
        except Exception:  # noqa: BLE001 - a user's factory, without the record it may need
            return None
        return one if one == other else None

    def _packed_default(self) -> bytes:
        value, to_plain = self.fill(None), self.shape.to_plain
        return dump_typed(value if to_plain is None else to_plain(value))

    def fill(self, record: Any) -> Any:
        """Return the default in its stored form."""
        try:
            return self.shape.convert(None if self.default is None else self.default(record))
        except MisfitError as fault:
            raise StateMigrationError(
                f"the default of the added field {self.name!r} is {fault.problem}"
            ) from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise StateMigrationError(
                f"the default of the added field {self.name!r} cannot be made: {what}"
            ) from error


class RecordShape(TypeShape):
    """Instances of exactly one class with named fields."""

    def __init__(
        self,
        cls: type,
        fields: Sequence[Field],
        *,
        kind: Literal["attrs", "dataclass", "namedtuple", "struct"],
        maker: Maker,
        frozen: bool,
    ) -> None:
        """Describe ``cls``, whose instances ``maker`` builds; ``frozen``: no field can be set."""
        self.description = {
            "type": "record",
            "kind": kind,
            "name": cls.__qualname__,
            "fields": [field.description for field in fields],
        }
        self.classes = frozenset({cls}).union(*[field.shape.classes for field in fields])
        self._cls: Any = cls
        self._fields = fields
        self._maker = maker
        self._is_tuple = isinstance(maker, TupleMaker)
        self._derive([field.shape for field in fields], frozen=frozen)

    def _derive(self, shapes: Sequence[TypeShape], *, frozen: bool) -> None:
        """Combine the functions of the fields."""
        parts = [self._maker.part("v", i) for i in range(len(shapes))]
        items = [f"v[{i}]" for i in range(len(shapes))]
        self._from_items = self._maker.rebuild([None] * len(items), items)
        copies = [shape.copy for shape in shapes]
        if not frozen or any(copies):
            self.copy = self._maker.rebuild(copies, parts)
        plain = [shape.to_plain for shape in shapes]
        if not self._is_tuple or any(plain):
            self.to_plain = tuple_function(plain, parts)
        addresses = [shape.address for shape in shapes]
        if not self._is_tuple or any(addresses):
            self.address = tuple_function(addresses, parts)
            self.original = self._maker.rebuild([shape.original for shape in shapes], items)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the fields' declarations."""
        return {**self.description, "fields": [field.declaration for field in self._fields]}

    def test(self, subject: str, code: Code) -> str:
        """Look at the class and at each field."""
        tests = [f"type({subject}) is {code.bind(self._cls)}"]
        for i, field in enumerate(self._fields):
            if field.may_be_unset:
                tests.append(f"hasattr({subject}, {field.name!r})")
            tests.append(field.shape.test(self._maker.part(subject, i), code))
        return " and ".join(tests)

    def convert(self, value: Any) -> Any:
        """Return a record of the converted fields; ``value`` itself if nothing has to change."""
        given = self._taken_apart(value)
        pairs = zip(self._fields, given, strict=True)
        converted = [_converted(field, part) for field, part in pairs]
        same = all(map(_is_same, converted, given))
        if same and self.copy is None and type(value) is self._cls:
            return value
        return self._from_items(converted)

    def _taken_apart(self, value: Any) -> Sequence[Any]:
        """Return the fields of ``value`` in the order of the declaration, or raise."""
        if type(value) is not self._cls:
            raise MisfitError("", another_class(value, self._cls))
        if self._is_tuple:
            return tuple(value)
        return [_attribute(value, field.name) for field in self._fields]

    def reader(self, stored: Description) -> Function | None:
        """Accept records that have all fields without a default, in any order."""
        self.check_type(stored)
        positions = positions_of(self._fields, stored)
        readers = [field_reader(field, stored, positions) for field in self._fields]
        subjects = [f"v[{positions[f.name]}]" if f.name in positions else "o" for f in self._fields]
        return self._maker.rebuild(readers, subjects)


def positions_of(fields: Sequence[Field], stored: Description) -> dict[str, int]:
    """Return the position of each declared field in stored data, by its own or a former name."""
    named = {field["name"]: i for i, field in enumerate(stored["fields"])}
    renamed = {
        field.name: next((name for name in field.aliases if name in named), None)
        for field in fields
        if field.name not in named
    }
    claimed = {name for name in renamed.values() if name is not None}
    own = {name: i for name, i in named.items() if name not in claimed}
    return own | {new: named[old] for new, old in renamed.items() if old is not None}


def field_reader(field: Field, stored: Description, positions: dict[str, int]) -> Function | None:
    """Return the reader of one field; the default if ``positions`` does not contain it."""
    if field.name not in positions:
        if field.default is not None:
            return field.fill
        raise UnreadableError(
            f"the field {field.name!r} is not in the stored state and has no default"
        )
    try:
        return field.shape.reader(stored["fields"][positions[field.name]]["type"])
    except UnreadableError as error:
        raise UnreadableError(f"field {field.name!r}: {error}") from None


def _converted(field: Field, value: Any) -> Any:
    try:
        return field.shape.convert(value)
    except MisfitError as fault:
        raise fault.below(f".{field.name}") from None


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        raise MisfitError(f".{name}", "not set") from None


def _is_same(one: Any, other: Any) -> bool:
    return one is other
