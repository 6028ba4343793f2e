"""Sealed objects: small payloads of plain data with a checksum, so that damage is detected.

Layout: magic (4 bytes), format version (1), length of the body (8, little-endian), the body in
msgpack, and the XXH3-128 of everything before it (16). A shorter object is truncated, an object
whose checksum does not match was altered; both are errors that name the object.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import attrs
import msgpack
import xxhash

from forebay_state_api.errors import CorruptStateError, ForebayError

__all__ = ["TornObjectError", "known_fields", "read_sealed", "seal", "typed_fields", "unseal"]

_MAGIC: Final = b"FBAY"
_FORMAT: Final = 1
_HEAD: Final = struct.Struct("<4sBQ")
_CHECKSUM_BYTES: Final = 16

_PLAIN_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "bool": (bool,),
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "Mapping[str, Any]": (dict,),
}
"""The annotation of a field → the types of its values in a payload."""

T = TypeVar("T")


class TornObjectError(CorruptStateError):
    """The object is truncated; one that can be rewritten, as a result, counts as absent."""


def seal(payload: Mapping[str, Any]) -> bytes:
    """Encode plain data (anything msgpack supports); `unseal` returns it, with tuples as lists."""
    body = cast("bytes", msgpack.packb(payload, use_bin_type=True))
    content = _HEAD.pack(_MAGIC, _FORMAT, len(body)) + body
    return content + xxhash.xxh3_128_digest(content)


def unseal(data: bytes, name: str = "object") -> dict[str, Any]:
    """Decode the bytes of `seal`; ``name`` appears in the messages.

    Raises `TornObjectError` for a truncated object, `CorruptStateError` for an altered one.
    """
    end = _checked_end(data, name)
    content = data[:end]
    if xxhash.xxh3_128_digest(content) != data[end:]:
        raise CorruptStateError(f"{name} was altered: its checksum does not match")
    payload: Any = None
    with contextlib.suppress(ValueError):  # not msgpack, so not a mapping either
        payload = msgpack.unpackb(content[_HEAD.size :], raw=False, strict_map_key=False)
    if not isinstance(payload, dict):
        raise CorruptStateError(f"{name} is damaged: its content is not a mapping")
    return payload


def read_sealed(data: bytes, name: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Return ``read(payload)`` for a sealed payload.

    Raises `CorruptStateError`, whose message begins with ``name``, for a truncated or altered
    object, and for the payload of a different kind of object.
    """
    try:
        return read(unseal(data, name))
    except TornObjectError as torn:
        raise CorruptStateError(str(torn)) from torn
    except ForebayError:
        raise
    except Exception as error:
        raise CorruptStateError(f"{name} is damaged: {type(error).__name__}: {error}") from error


def known_fields(cls: type[attrs.AttrsInstance], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``cls`` in ``payload``, without those that a newer release added."""
    names = {field.name for field in attrs.fields(cls)}
    return {name: value for name, value in payload.items() if name in names}


def typed_fields(cls: type[attrs.AttrsInstance], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return `known_fields` of a payload from outside.

    Raises `TypeError` for a value that does not have its field's type, if that is a type of plain
    data.
    """
    fields = known_fields(cls, payload)
    for field in attrs.fields(cls):
        expected = _PLAIN_TYPES.get(str(field.type))
        if expected is None or field.name not in fields:
            continue
        value = fields[field.name]
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise TypeError(f"{field.name} is {type(value).__name__}, not {field.type}")
    return fields


def _checked_end(data: bytes, name: str) -> int:
    """Return where the checksum begins; raise unless the length is the one in the header."""
    if len(data) < _HEAD.size:
        raise TornObjectError(f"{name} is truncated to {len(data)} bytes")
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptStateError(
            f"{name} was altered, or is not Forebay's: it does not begin with the magic bytes"
        )
    if version != _FORMAT:
        raise CorruptStateError(f"{name} has format {version}; this release reads format {_FORMAT}")
    whole = _HEAD.size + length + _CHECKSUM_BYTES
    if len(data) < whole:
        raise TornObjectError(f"{name} is truncated: {len(data)} of {whole} bytes")
    if len(data) > whole:
        raise CorruptStateError(
            f"{name} was altered: it has {len(data)} bytes, and its header records {whole}"
        )
    return int(whole - _CHECKSUM_BYTES)
