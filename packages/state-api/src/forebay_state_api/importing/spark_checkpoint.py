"""Read the checkpoint of a stopped query from its files: its next batch, times and watermark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class StoppedQuery:
    """The point from which a stopped query goes on."""

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
        metadata = _json(checkpoint, "metadata", _text(checkpoint, "metadata"))
        next_batch = max(_batches(checkpoint, "commits"), default=-1) + 1
        parent_ms = None if next_batch == 0 else _time_of(checkpoint, next_batch - 1)
        return cls(query_id=str(metadata["id"]), next_batch=next_batch, parent_ms=parent_ms)


def watermark_ms_after(checkpoint: ObjectStorage, batch: int) -> int:
    """Return Spark's watermark after a committed batch, in ms since the epoch; 0 without one.

    Raises `ConfigurationError` if the batch is not committed.
    """
    name = f"commits/{batch}"
    lines = _text(checkpoint, name).splitlines()
    if len(lines) < 2:  # noqa: PLR2004 - the version, the metadata
        raise _unreadable(checkpoint, name)
    return int(_json(checkpoint, name, lines[1]).get("nextBatchWatermarkMs", 0))


def _batches(checkpoint: ObjectStorage, folder: str) -> list[int]:
    names = (info.name.rpartition("/")[2] for info in checkpoint.list(folder))
    return [int(name) for name in names if name.isdecimal()]


def _time_of(checkpoint: ObjectStorage, batch: int) -> int:
    """Return a batch's time: the second line of its offsets is JSON with ``batchTimestampMs``."""
    name = f"offsets/{batch}"
    lines = _text(checkpoint, name).splitlines()
    if len(lines) < 2:  # noqa: PLR2004 - the version, the metadata
        raise _unreadable(checkpoint, name)
    return int(_json(checkpoint, name, lines[1])["batchTimestampMs"])


def _text(checkpoint: ObjectStorage, name: str) -> str:
    try:
        return checkpoint.get(name).decode()
    except (ObjectNotFoundError, UnicodeDecodeError) as error:
        raise _unreadable(checkpoint, name) from error


def _json(checkpoint: ObjectStorage, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(checkpoint, name) from error


def _unreadable(checkpoint: ObjectStorage, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{checkpoint.url} is not the checkpoint of a stream: {name} is missing or not Spark's. "
        "Pass the query's checkpointLocation"
    )
