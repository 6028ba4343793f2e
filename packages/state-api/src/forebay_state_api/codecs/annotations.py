"""Python types and annotations as shapes."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin

from forebay_state_api.codecs._shape import Shape
from forebay_state_api.codecs.codec import Codec, CodecShape
from forebay_state_api.codecs.containers import DictShape, ListShape, TupleOfShape, TupleShape
from forebay_state_api.codecs.plain import SCALARS
from forebay_state_api.codecs.scalars import FloatShape, OptionalShape, ScalarShape
from forebay_state_api.codecs.untyped import AnyShape


class UnsupportedTypeError(Exception):
    """There is no shape for a type; the text names the type and says why."""


def shape_of(annotation: Any) -> Shape:
    """Return the shape of a Python type or annotation. Raises `UnsupportedTypeError`."""
    if annotation is None or annotation is Any or annotation is object:
        return AnyShape()
    return shape_within(annotation)


def shape_within(annotation: Any) -> Shape:
    """Return the shape of an annotation's part, where ``None`` means the value ``None``."""
    if isinstance(annotation, Codec):
        return CodecShape(annotation)
    if isinstance(annotation, NewType):
        return shape_within(annotation.__supertype__)
    origin = get_origin(annotation)
    if origin is not None:
        return _generic(annotation, origin)
    return _plain_class(annotation)


def _plain_class(annotation: Any) -> Shape:
    if annotation is None:
        return ScalarShape(type(None))
    if annotation is float:
        return FloatShape()
    bare = _BARE.get(annotation) if isinstance(annotation, type) else None
    if bare is not None:
        return bare()
    if annotation is Any or annotation is object:
        return AnyShape()
    if isinstance(annotation, type) and annotation in SCALARS:
        return ScalarShape(annotation)
    raise UnsupportedTypeError(f"{annotation!r} is not a type that state can hold")


def _generic(annotation: Any, origin: Any) -> Shape:
    arguments = get_args(annotation)
    if origin is Annotated:
        codecs = [m for m in annotation.__metadata__ if isinstance(m, Codec)]
        return shape_within(codecs[-1] if codecs else arguments[0])
    if origin is Union or origin is types.UnionType:
        return _union(annotation, arguments)
    if origin is list:
        return ListShape(shape_within(arguments[0]))
    if origin is dict:
        return DictShape(shape_within(arguments[0]), shape_within(arguments[1]))
    if origin is tuple:
        return _tuple(arguments)
    raise UnsupportedTypeError(f"{annotation!r} is not a type that state can hold")


def _union(annotation: Any, arguments: tuple[Any, ...]) -> Shape:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1:
        raise UnsupportedTypeError(f"of unions only 'T | None' is supported, not {annotation!r}")
    inner = shape_within(others[0])
    return inner if isinstance(inner, AnyShape) else OptionalShape(inner)


def _tuple(arguments: tuple[Any, ...]) -> Shape:
    if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004 - tuple[T, ...]
        return TupleOfShape(shape_within(arguments[0]))
    return TupleShape([shape_within(argument) for argument in arguments])


_BARE: Final[dict[type, Callable[[], Shape]]] = {
    list: lambda: ListShape(AnyShape()),
    dict: lambda: DictShape(AnyShape(), AnyShape()),
    tuple: lambda: TupleOfShape(AnyShape()),
}
