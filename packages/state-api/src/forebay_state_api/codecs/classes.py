"""Shapes of attrs classes, dataclasses, NamedTuples and enumerations."""

from __future__ import annotations

import dataclasses
import enum
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from forebay_state_api.codecs.enums import EnumShape, FlagShape
from forebay_state_api.codecs.evolution import Alias
from forebay_state_api.codecs.plain import SCALARS
from forebay_state_api.codecs.record_makers import ObjectMaker, TupleMaker, is_frozen_attrs
from forebay_state_api.codecs.records import Field, RecordShape
from forebay_state_api.codecs.type_shapes import Function, TypeShape, UnsupportedTypeError

_TYPING: Final = ("Any", "Optional", "Union", "Annotated", "ClassVar")

ShapeOf = Callable[[Any], TypeShape]


def class_shape(cls: type, shape_of: ShapeOf) -> TypeShape | None:
    """Return the shape of a class with fields or members; ``None`` for any other class.

    ``shape_of`` returns the shape of a field's annotation. Raises `UnsupportedTypeError`.
    """
    if issubclass(cls, enum.Enum):
        return _enum_shape(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_shape(cls, shape_of)
    if attrs.has(cls):
        return _attrs_shape(cls, shape_of)
    if dataclasses.is_dataclass(cls):
        return _dataclass_shape(cls, shape_of)
    return None


def _enum_shape(cls: type[enum.Enum]) -> TypeShape:
    if not cls.__members__:
        raise UnsupportedTypeError(f"{cls.__qualname__} has no members")
    return FlagShape(cls) if issubclass(cls, enum.Flag) else EnumShape(cls)


def _named_tuple_shape(cls: type[Any], shape_of: ShapeOf) -> TypeShape:
    hints = _hints(cls)
    fields = [
        Field(
            name,
            _field_shape(cls, name, hints, shape_of),
            _constant(cls._field_defaults, name),
            aliases=_aliases(hints, name),
        )
        for name in cls._fields
    ]
    return RecordShape(cls, fields, kind="namedtuple", maker=TupleMaker(cls), frozen=True)


def _attrs_shape(cls: type[Any], shape_of: ShapeOf) -> TypeShape:
    # attrs before 24.1 left the types of make_class out of the annotations.
    hints = {a.name: a.type for a in attrs.fields(cls) if a.type is not None} | _hints(cls)
    fields = [
        Field(
            attribute.name,
            _field_shape(cls, attribute.name, hints, shape_of),
            _attrs_default(attribute),
            may_be_unset=not attribute.init and attribute.default is attrs.NOTHING,
            aliases=_aliases(hints, attribute.name),
        )
        for attribute in attrs.fields(cls)
    ]
    hook = "__attrs_post_init__" if hasattr(cls, "__attrs_post_init__") else None
    maker = ObjectMaker(cls, [field.name for field in fields], hook)
    return RecordShape(cls, fields, kind="attrs", maker=maker, frozen=is_frozen_attrs(cls))


def _attrs_default(attribute: attrs.Attribute[Any]) -> Function | None:
    default: Any = attribute.default
    if default is attrs.NOTHING:
        return None
    # For type checkers attrs declares its class Factory as a function.
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        make = lambda _: default  # noqa: E731 - one of three one-line functions
    elif default.takes_self:
        make = default.factory
    else:
        make = lambda _: default.factory()  # noqa: E731 - one of three one-line functions
    return _after_converter(attribute.converter, make)


def _after_converter(converter: Any, make: Function) -> Function:
    """Apply a field's converter to its default, as ``__init__`` does."""
    if converter is None:
        return make
    convert = getattr(converter, "converter", converter)  # an attrs.Converter, or a function
    return lambda record: convert(make(record))


def _dataclass_shape(cls: type[Any], shape_of: ShapeOf) -> TypeShape:
    hints = _hints(cls)
    fields = [
        Field(
            field.name,
            _field_shape(cls, field.name, hints, shape_of),
            _dataclass_default(field),
            may_be_unset=not field.init and _dataclass_default(field) is None,
            aliases=_aliases(hints, field.name),
        )
        for field in dataclasses.fields(cls)
    ]
    hook = "__post_init__" if hasattr(cls, "__post_init__") else None
    if hook is not None and any(_is_init_var(hint) for hint in hints.values()):
        raise UnsupportedTypeError(
            f"{cls.__qualname__}.__post_init__ takes InitVars, which state does not keep"
        )
    frozen = bool(cls.__dataclass_params__.frozen)
    maker = ObjectMaker(cls, [field.name for field in fields], hook)
    return RecordShape(cls, fields, kind="dataclass", maker=maker, frozen=frozen)


def _is_init_var(hint: Any) -> bool:
    return hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar)


def _dataclass_default(field: dataclasses.Field[Any]) -> Function | None:
    # By class, not by identity: a class that was pickled by value has its own copies of MISSING.
    missing = type(dataclasses.MISSING)
    if not isinstance(field.default, missing):
        return lambda _: field.default
    factory: Any = field.default_factory
    return None if isinstance(factory, missing) else lambda _: factory()


def _constant(defaults: Mapping[str, Any], name: str) -> Function | None:
    return (lambda _: defaults[name]) if name in defaults else None


def _field_shape(cls: type, name: str, hints: Mapping[str, Any], shape_of: ShapeOf) -> TypeShape:
    try:
        return shape_of(hints.get(name, Any))
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"field {name!r} of {cls.__qualname__}: {error}") from error


def _aliases(hints: Mapping[str, Any], name: str) -> tuple[str, ...]:
    metadata = getattr(hints.get(name), "__metadata__", ())
    return tuple(old for one in metadata if isinstance(one, Alias) for old in one.names)


def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of ``cls`` and its bases; string annotations are resolved."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        # A class that was pickled by value does not bring its module.
        return _hints_by_value(cls)


def _hints_by_value(cls: type) -> dict[str, Any]:
    """Resolve names from the module here, from the methods of ``cls`` and from the plain kinds."""
    names: dict[str, Any] = {kind.__name__: kind for kind in SCALARS}
    names |= {name: vars(typing)[name] for name in _TYPING}
    for member in vars(cls).values():
        names |= getattr(member, "__globals__", {})
    if cls.__module__ in sys.modules:
        names |= vars(sys.modules[cls.__module__])
    try:
        return typing.get_type_hints(cls, localns=names, include_extras=True)
    except NameError as error:
        raise UnsupportedTypeError(
            f"the annotations of {cls.__qualname__} cannot be resolved here ({error}); define it, "
            "and the classes it refers to, at the top of a module that the workers can import, or "
            "leave out 'from __future__ import annotations' where it is defined"
        ) from error
