"""Codecs made from other codecs: of a value that may be ``None``, of a value with a time."""

from __future__ import annotations

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.containers import TupleShape
from forebay_state_api.codecs.scalars import OptionalShape, ScalarShape
from forebay_state_api.codecs.untyped import AnyShape


def optional_codec(codec: ValueCodec) -> ValueCodec:
    """Return the codec of ``T | None``; a codec that takes ``None`` anyway is returned itself."""
    shape = codec._shape  # noqa: SLF001 - codecs are one module to the outside
    if isinstance(shape, (AnyShape, OptionalShape)):
        return codec
    return ValueCodec.of(OptionalShape(shape))


def stamped_codec(codec: ValueCodec) -> ValueCodec:
    """Return the codec of ``(last access in µs, T)``, what a state with TTL stores."""
    shape = codec._shape  # noqa: SLF001 - codecs are one module to the outside
    return ValueCodec.of(TupleShape([ScalarShape(int), shape]))
