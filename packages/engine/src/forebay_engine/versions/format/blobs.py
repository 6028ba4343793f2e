"""Bytes of operator state: small ones are in the manifest, large ones in files that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import xxhash

from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

INLINE_BYTES: Final = 16_384
"""The largest state, in bytes, that is stored in the manifest and covered by its checksum."""


@attrs.frozen
class FileBlob:
    """Bytes in a separate file."""

    name: str
    size: int
    digest: bytes
    """XXH3-128 of the bytes."""


Blob = bytes | FileBlob


def stored_blob(blob: Blob) -> bytes | list[Any]:
    """Return the blob as plain data for a manifest."""
    return blob if isinstance(blob, bytes) else [blob.name, blob.size, blob.digest]


def loaded_blob(stored: bytes | Sequence[Any]) -> Blob:
    """Decode the result of `stored_blob`."""
    return stored if isinstance(stored, bytes) else FileBlob(*stored)


def put_blob(storage: ObjectStorage, name: str, data: bytes) -> Blob:
    """Make ``data`` durable: inline if it is small, else as file ``name`` (one request)."""
    if len(data) <= INLINE_BYTES:
        return data
    storage.put(name, data)
    return FileBlob(name, len(data), xxhash.xxh3_128_digest(data))


def read_blob(storage: ObjectStorage, blob: Blob, what: str) -> bytes:
    """Return the bytes, verified; ``what`` names state and version in a `CorruptStateError`."""
    if isinstance(blob, bytes):
        return blob
    place = f"file {blob.name} in {storage.url}, {what}"
    try:
        data = storage.get(blob.name)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"{place}, is missing") from error
    if len(data) != blob.size:
        raise CorruptStateError(f"{place}, has {len(data)} bytes instead of {blob.size}")
    if xxhash.xxh3_128_digest(data) != blob.digest:
        raise CorruptStateError(f"{place}, was altered: its checksum does not match")
    return data
