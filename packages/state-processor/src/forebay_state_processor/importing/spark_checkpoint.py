"""Read the checkpoint of a stopped query from its files: its next batch, times and watermark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class StoppedQuery:
    """The point from which a stopped query continues."""

    query_id: str
    next_batch: int
    """The first batch that Spark has not committed; it opens the version of this number."""
    parent_ms: int | None
    """The time of the batch before it, ms since the epoch; ``None`` for the first batch."""

    @classmethod
    def read(cls, checkpoint: ObjectStorage) -> StoppedQuery:
        """Read the folders ``commits`` and ``offsets``, and ``metadata``.

        Raises `ConfigurationError` if this is not the checkpoint of a stream.
        """
        metadata = _object(checkpoint, "metadata", _text(checkpoint, "metadata"))
        query_id = _field(checkpoint, "metadata", metadata.get("id"), str)
        next_batch = max(_batches(checkpoint, "commits"), default=-1) + 1
        parent_ms = None if next_batch == 0 else _time_of(checkpoint, next_batch - 1)
        return cls(query_id=query_id, next_batch=next_batch, parent_ms=parent_ms)


def watermark_ms_after(checkpoint: ObjectStorage, batch: int) -> int:
    """Return Spark's watermark after a committed batch, in ms since the epoch; 0 without one.

    Raises `ConfigurationError` if the batch is not committed.
    """
    name = f"commits/{batch}"
    lines = _text(checkpoint, name).splitlines()
    if len(lines) < 2:  # noqa: PLR2004 - the version, the metadata
        raise _unreadable_error(checkpoint, name)
    found = _object(checkpoint, name, lines[1])
    return _field(checkpoint, name, found.get("nextBatchWatermarkMs", 0), int)


def _batches(checkpoint: ObjectStorage, folder: str) -> list[int]:
    names = (info.name.rpartition("/")[2] for info in checkpoint.list(folder))
    return [int(name) for name in names if name.isdecimal()]


def _time_of(checkpoint: ObjectStorage, batch: int) -> int:
    """Return a batch's time: the second line of its offsets is JSON with ``batchTimestampMs``."""
    name = f"offsets/{batch}"
    lines = _text(checkpoint, name).splitlines()
    if len(lines) < 2:  # noqa: PLR2004 - the version, the metadata
        raise _unreadable_error(checkpoint, name)
    found = _object(checkpoint, name, lines[1])
    return _field(checkpoint, name, found.get("batchTimestampMs"), int)


def _text(checkpoint: ObjectStorage, name: str) -> str:
    try:
        return checkpoint.get(name).decode()
    except (ObjectNotFoundError, UnicodeDecodeError) as error:
        raise _unreadable_error(checkpoint, name) from error


def _object(checkpoint: ObjectStorage, name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable_error(checkpoint, name) from error
    return _field(checkpoint, name, found, dict)


def _field(checkpoint: ObjectStorage, name: str, value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise _unreadable_error(checkpoint, name)
    return value


def _unreadable_error(checkpoint: ObjectStorage, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{checkpoint.url} is not the checkpoint of a stream: {name} is missing or not Spark's. "
        "Pass the query's checkpointLocation"
    )
