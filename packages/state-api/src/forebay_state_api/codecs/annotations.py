"""Convert the types that descriptors take, and annotations, to shapes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin

from forebay_state_api.codecs.classes import class_shape
from forebay_state_api.codecs.codec import Codec, CodecShape
from forebay_state_api.codecs.containers import DictShape, ListShape, TupleOfShape, TupleShape
from forebay_state_api.codecs.evolution import MigratedFrom, MigratingShape
from forebay_state_api.codecs.plain import SCALARS
from forebay_state_api.codecs.scalars import OptionalShape, scalar_shape
from forebay_state_api.codecs.spark_types import shape_of_ddl, shape_of_json
from forebay_state_api.codecs.type_shapes import TypeShape, UnsupportedTypeError
from forebay_state_api.codecs.untyped import AnyShape

_Classes = tuple[type, ...]


def whole(type_info: Any) -> TypeShape:
    """Return the shape of a descriptor's complete ``type_info``. Raises `UnsupportedTypeError`."""
    if isinstance(type_info, str):
        return shape_of_ddl(type_info)
    return AnyShape() if type_info is None else _shape(type_info, ())


def _shape(annotation: Any, within: _Classes) -> TypeShape:
    """Return the shape of a part; here ``None`` is the value. ``within``: enclosing classes."""
    if isinstance(annotation, Codec):
        return CodecShape(annotation)
    if isinstance(annotation, NewType):
        return _shape(annotation.__supertype__, within)
    if annotation is Any or annotation is object:
        return AnyShape()
    if annotation is None:
        return scalar_shape(type(None))
    origin = get_origin(annotation)
    if origin is not None:
        return _generic(annotation, origin, within)
    return _class(annotation, within)


def _spark(data_type: Any) -> TypeShape:
    if isinstance(data_type, type):
        raise UnsupportedTypeError(
            f"{data_type.__name__} is a class: pass an instance, {data_type.__name__}(...)"
        )
    return shape_of_json(data_type.jsonValue())


def _class(annotation: Any, within: _Classes) -> TypeShape:
    if hasattr(annotation, "jsonValue"):
        return _spark(annotation)
    if not isinstance(annotation, type):
        raise _unsupported_error(annotation)
    if annotation in _KNOWN:
        return _KNOWN[annotation]()
    if annotation in SCALARS:
        return scalar_shape(annotation)
    if annotation in within:
        raise UnsupportedTypeError(f"{annotation.__qualname__} contains itself")
    shape = class_shape(annotation, lambda part: _shape(part, (*within, annotation)))
    if shape is None:
        raise _unsupported_error(annotation)
    return shape


def _generic(annotation: Any, origin: Any, within: _Classes) -> TypeShape:
    arguments = get_args(annotation)
    if origin is Annotated:
        codecs = [m for m in annotation.__metadata__ if isinstance(m, Codec)]
        shape = _shape(codecs[-1] if codecs else arguments[0], within)
        ways = [m for m in annotation.__metadata__ if isinstance(m, MigratedFrom)]
        return MigratingShape(shape, [(whole(m.stored_type), m) for m in ways]) if ways else shape
    if origin is Union or origin is types.UnionType:
        return _union(annotation, within)
    if origin is list:
        return ListShape(_shape(arguments[0], within))
    if origin is dict:
        return DictShape(_shape(arguments[0], within), _shape(arguments[1], within))
    if origin is tuple:
        return _tuple(arguments, within)
    raise _unsupported_error(annotation)


def _union(annotation: Any, within: _Classes) -> TypeShape:
    others = [part for part in get_args(annotation) if part is not type(None)]
    if len(others) != 1:
        raise UnsupportedTypeError(f"of unions only 'T | None' is supported, not {annotation!r}")
    inner = _shape(others[0], within)
    return inner if isinstance(inner, AnyShape) else OptionalShape(inner)


def _tuple(arguments: tuple[Any, ...], within: _Classes) -> TypeShape:
    if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004 - tuple[T, ...]
        return TupleOfShape(_shape(arguments[0], within))
    return TupleShape([_shape(part, within) for part in arguments])


def _unsupported_error(annotation: Any) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"{annotation!r} is not a type that state can hold")


_KNOWN: Final[dict[type, Callable[[], TypeShape]]] = {
    list: lambda: ListShape(AnyShape()),
    dict: lambda: DictShape(AnyShape(), AnyShape()),
    tuple: lambda: TupleOfShape(AnyShape()),
}
