"""Read data stored under an older declaration, or under one that no longer exists."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.generations import read_through
from forebay_state_api.codecs.plain import RAW, dump_typed, load_raw
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    TypeShape,
    UnreadableError,
)
from forebay_state_api.codecs.untyped import AnyShape
from forebay_state_api.errors import IncompatibleTypeError

_log = logging.getLogger(__name__)


def resolve(
    stored: Mapping[str, Any], declared: ValueCodec, later: Sequence[Mapping[str, Any]] = ()
) -> ValueCodec:
    """Return a codec that packs as ``declared`` does and unpacks data written as ``stored``.

    Compatible: fields with defaults added, fields removed or reordered, fields renamed with an
    `Alias`, classes renamed, ``int`` → ``float``, ``T`` → ``T | None``, ``tuple[T, T]`` →
    ``tuple[T, ...]``, members of an enumeration added or removed, types that a `MigratedFrom`
    migrates, data that a `Codec` reports it can read; all of them at any depth. Everything else
    raises `IncompatibleTypeError`. Equal types give ``declared`` itself. ``later`` are the
    declarations since the data were written (`ValueCodec.declaration`), the last one of the
    declared type.
    """
    if stored == declared.description and not later:
        return declared
    old, new = describe_type(stored), describe_type(declared.description)
    try:
        codec = read_through(stored, later, declared)
    except UnreadableError as error:
        raise IncompatibleTypeError(old, new, str(error)) from error
    _log.debug("state stored as %s is read as %s", old, new)
    return codec


def raw_codec(description: Mapping[str, Any]) -> ValueCodec:
    """Return a codec for state that is no longer declared; values pass through unchanged.

    The values of `ValueCodec.unpack` and `ValueCodec.pack` are then plain data; all that is
    guaranteed is that they have the same bytes as the original values.
    """
    if description["type"] == "any":
        return ValueCodec.of(AnyShape())
    return ValueCodec.of(_RawShape(description))


class _RawShape(TypeShape):
    """Plain data of a type that is not declared."""

    layout = RAW

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = dict(description)
        self.address = dump_typed
        self.original = load_raw

    def test(self, subject: str, code: Code) -> str:  # noqa: ARG002 - nothing to test
        return "True"

    def convert(self, value: Any) -> Any:
        return value

    def reader(self, stored: Description) -> Function | None:
        if stored != self.description:
            raise UnreadableError(
                f"only {describe_type(self.description)} itself can be read as it is"
            )
        return None
