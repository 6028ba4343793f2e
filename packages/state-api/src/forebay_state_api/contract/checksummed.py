"""Sealed objects: small payloads of plain data that can tell whether they are whole.

Layout: magic (4 bytes), format version (1), length of the body (8, little-endian), the body in
msgpack, and the XXH3-128 of everything before it (16). A shorter object was not written to its
end and counts as no object; one whose checksum does not fit was altered.
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

_MAGIC: Final = b"FBAY"
_FORMAT: Final = 1
_HEAD: Final = struct.Struct("<4sBQ")
_CHECKSUM_BYTES: Final = 16

T = TypeVar("T")


class TornObjectError(CorruptStateError):
    """The object ends early: its writer did not finish. The protocol treats it as absent."""


def seal(payload: Mapping[str, Any]) -> bytes:
    """Encode plain data (what msgpack holds); `unseal` gives it back, tuples as lists."""
    body = cast("bytes", msgpack.packb(payload, use_bin_type=True))
    content = _HEAD.pack(_MAGIC, _FORMAT, len(body)) + body
    return content + xxhash.xxh3_128_digest(content)


def unseal(data: bytes, name: str = "object") -> dict[str, Any]:
    """Decode what `seal` made; ``name`` appears in the messages.

    Raises `TornObjectError` for a truncated object, `CorruptStateError` for an altered one.
    """
    end = _checked_end(data, name)
    content = data[:end]
    if xxhash.xxh3_128_digest(content) != data[end:]:
        msg = f"{name} was altered: its checksum does not fit its content"
        raise CorruptStateError(msg)
    payload: Any = None
    with contextlib.suppress(ValueError):  # no msgpack: no mapping either
        payload = msgpack.unpackb(content[_HEAD.size :], raw=False, strict_map_key=False)
    if not isinstance(payload, dict):
        msg = f"{name} is not what was written there: it holds no mapping"
        raise CorruptStateError(msg)
    return payload


def read_sealed(data: bytes, name: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Return what ``read`` makes of a sealed payload.

    Raises `CorruptStateError` that begins with ``name`` for an object that is truncated or altered,
    and for the payload of an object of another kind.
    """
    try:
        return read(unseal(data, name))
    except TornObjectError as torn:
        raise CorruptStateError(str(torn)) from torn
    except ForebayError:
        raise
    except Exception as error:
        msg = f"{name} is not what was written there: {type(error).__name__}: {error}"
        raise CorruptStateError(msg) from error


def known_fields(cls: type[attrs.AttrsInstance], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``cls`` in ``payload``, without those that a newer release added."""
    names = {field.name for field in attrs.fields(cls)}
    return {name: value for name, value in payload.items() if name in names}


def _checked_end(data: bytes, name: str) -> int:
    """Where the checksum begins, if the object has the length that its head announces."""
    if len(data) < _HEAD.size:
        msg = f"{name} is truncated to {len(data)} bytes"
        raise TornObjectError(msg)
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        msg = f"{name} was altered, or is no object of Forebay: it does not begin with its magic"
        raise CorruptStateError(msg)
    if version != _FORMAT:
        msg = f"{name} has format {version}; this release reads format {_FORMAT}"
        raise CorruptStateError(msg)
    whole = _HEAD.size + length + _CHECKSUM_BYTES
    if len(data) < whole:
        msg = f"{name} is truncated: {len(data)} of {whole} bytes"
        raise TornObjectError(msg)
    if len(data) > whole:
        msg = f"{name} was altered: {len(data)} bytes where its head announces {whole}"
        raise CorruptStateError(msg)
    return int(whole - _CHECKSUM_BYTES)
