"""The shape of Spark's structs: NamedTuples made from the fields' names."""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from forebay_state_api.codecs.field_names import (
    as_python,
    one_to_python,
    with_declared_names,
)
from forebay_state_api.codecs.record_makers import TupleMaker
from forebay_state_api.codecs.records import Field, RecordShape
from forebay_state_api.codecs.type_shapes import MisfitError, UnsupportedTypeError, a_class


class StructShape(RecordShape):
    """A struct: read as a NamedTuple; written as a NamedTuple, a tuple, a Row or a dict.

    A plain tuple is taken by position. A value with field names is taken by name, in any order, and
    must have exactly the declared fields.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        """Describe structs of ``fields``. Raises `UnsupportedTypeError` for repeated names."""
        self._names = tuple(field.name for field in fields)
        if len(set(self._names)) != len(self._names):
            raise UnsupportedTypeError(
                f"a struct has two fields of the same name: {', '.join(self._names)}"
            )
        if same := one_to_python(self._names):
            raise UnsupportedTypeError(
                f"a struct has fields that are one name to Python: {', '.join(map(repr, same))}; "
                "rename them"
            )
        cls = struct_class(self._names)
        super().__init__(cls, fields, kind="struct", maker=TupleMaker(cls), frozen=True)

    def _taken_apart(self, value: Any) -> Sequence[Any]:
        if isinstance(value, self._cls):
            return tuple(value)
        if isinstance(value, dict):
            return self._by_name(value)
        if not isinstance(value, tuple):
            raise MisfitError("", f"{a_class(value)}, not a tuple or a dict")
        names = getattr(value, "_fields", None) or getattr(value, "__fields__", None)
        if names is not None:
            return self._by_name(dict(zip(names, value, strict=True)))
        if len(value) != len(self._names):
            raise MisfitError("", f"a tuple of length {len(value)}, not {len(self._names)}")
        return value

    def _by_name(self, given: dict[Any, Any]) -> Sequence[Any]:
        if given.keys() != set(self._names):
            given = with_declared_names(given, self._names)
        missing = [name for name in self._names if name not in given]
        if missing:
            raise MisfitError("", f"without {', '.join(missing)}")
        if len(given) > len(self._names):
            unknown = [str(name) for name in given if name not in self._names]
            raise MisfitError("", f"with {', '.join(unknown)}, which the struct does not have")
        return [given[name] for name in self._names]


@lru_cache(maxsize=256)
def struct_class(names: tuple[str, ...]) -> type[Any]:
    """Return the class of structs with these field names; the same class each time."""
    made: type[Any] = tuple_class("Struct", names)
    return made


def tuple_class(title: str, names: tuple[str, ...]) -> Any:
    """Make a NamedTuple class, called ``title``, with fields of any names.

    ``_fields`` are ``names``, and ``_replace`` takes them. Use ``getattr`` for a field whose name
    is not an identifier, is a keyword or begins with an underscore; use the position for a field
    that would hide a method. Fields whose names Python cannot distinguish are not available as
    attributes.
    """
    spelled = [as_python(name) for name in names]
    fields = [_field_name(position, names, spelled) for position in range(len(names))]
    make: Any = namedtuple  # noqa: PYI024 - the fields are data
    made = make(title, fields)
    if tuple(fields) == names:
        return made
    for position, (name, python) in enumerate(zip(names, spelled, strict=True)):
        attributes = {name, python} if spelled.count(python) == 1 else {name} - {python}
        for attribute in attributes:
            if not hasattr(made, attribute):
                setattr(made, attribute, _field(position))
    made._fields = names
    made._replace = _replaced
    return made


def _field_name(position: int, names: Sequence[str], spelled: Sequence[str]) -> str:
    """Return a name that ``namedtuple`` accepts and no other field has."""
    name = names[position]
    usual = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    if usual and name == spelled[position] and spelled.count(name) == 1:
        return name
    field = f"column{position}"
    while field in spelled:
        field += "x"
    return field


def _field(position: int) -> property:
    return property(lambda one: one[position])


def _replaced(one: Any, /, **values: Any) -> Any:
    """Do what ``_replace`` does, by the names in ``_fields``."""
    values = with_declared_names(values, one._fields)
    unknown = [name for name in values if name not in one._fields]
    if unknown:
        raise ValueError(
            f"there is no field {', '.join(unknown)}; the fields are {', '.join(one._fields)}"
        )
    pairs = zip(one._fields, one, strict=True)
    return one._make(values.get(name, value) for name, value in pairs)
