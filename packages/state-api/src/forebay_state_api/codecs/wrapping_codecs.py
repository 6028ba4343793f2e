"""Codecs derived from other codecs: of optional values, of values with a time, of timers."""

from __future__ import annotations

import attrs

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.containers import TupleShape, by_position
from forebay_state_api.codecs.scalars import OptionalShape, ScalarShape


def optional_codec(codec: ValueCodec) -> ValueCodec:
    """Return the codec of ``T | None``; ``codec`` itself if it already takes ``None``."""
    shape = codec.shape
    if shape.description["type"] in ("any", "optional"):
        return codec
    return ValueCodec.of(OptionalShape(shape), codec.what)


def stamped_codec(codec: ValueCodec) -> ValueCodec:
    """Return the codec of ``(last access in µs, T)``, the stored form of a state with TTL.

    It reads values written under every declaration that ``codec`` reads.
    """
    shape = codec.shape
    pairs = ValueCodec.of(TupleShape([ScalarShape(int), shape]), codec.what)
    read = by_position([None, codec._read])  # noqa: SLF001 - codecs are one module to the outside
    return attrs.evolve(pairs, read=read)


def timer_codec(codec: ValueCodec) -> ValueCodec:
    """Return the codec of ``(time in µs, T, bytes)``: a timer, its key and its packed namespace.

    It reads values written under every declaration that ``codec`` reads.
    """
    shape = codec.shape
    parts = TupleShape([ScalarShape(int), shape, ScalarShape(bytes)])
    read = by_position([None, codec._read, None])  # noqa: SLF001 - codecs are one module to the outside
    return attrs.evolve(ValueCodec.of(parts, codec.what), read=read)
