"""Converts Arrow batches to segments: the function's rows, each with the slice it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from forebay_engine.execution.rows import row_class
from forebay_spark_runtime.arrow.rows_in import SLICE_ROWS, RowReader, UnreadableValueError
from forebay_spark_runtime.arrow.spark_objects import DeclaredType
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_state_api.calls.policies import Rate
from forebay_state_api.errors import ConfigurationError, FunctionError

SEGMENT_BYTES: Final = 4 << 20
"""The approximate size limit of a segment: it has fewer rows if they are large."""


@attrs.frozen(kw_only=True)
class InputLayout:
    """The columns of the batches: the input's columns, then the partition."""

    names: tuple[str, ...]
    """The user's names of the input columns."""
    shown: tuple[int, ...]
    """Positions of the columns that the function gets."""
    key: tuple[int, ...] | Callable[[Any], Any] | None
    """Positions of the key columns, or a function of the row."""
    declared: tuple[DeclaredType, ...] = ()
    """The types of input columns with user-defined types; empty if there are none."""


class Segmenter:
    """Cuts batches into segments, and counts the rows. Used by one thread."""

    def __init__(self, layout: InputLayout, name: str) -> None:
        """Take the layout of the batches, and the operator's ``name`` for errors."""
        self._layout = layout
        self._name = name
        self._rows = 0
        self._readers: tuple[RowReader, RowReader] | None = None

    def segments(self, batch: Any) -> Iterator[RowSegment]:
        """Yield the segments of a batch.

        Raises `ConfigurationError` for a value that Python cannot represent, and `FunctionError` if
        the key function fails.
        """
        width = len(self._layout.names)
        data = batch.select(list(range(width)))
        per_row = max(batch.nbytes // max(batch.num_rows, 1), 1)
        size = max(1, min(SLICE_ROWS, SEGMENT_BYTES // per_row))
        for start in range(0, batch.num_rows, size):
            yield self._segment(data.slice(start, size), min(size, batch.num_rows - start))

    def _segment(self, data: Any, count: int) -> RowSegment:
        rows = self._read(data, self._layout.shown, 0, count)
        keys = self._keys(data, rows)
        first, self._rows = self._rows, self._rows + count
        return RowSegment(first, rows, data, keys)

    def _keys(self, data: Any, rows: list[Any]) -> list[Any] | None:
        key = self._layout.key
        if key is None:
            return None
        if isinstance(key, tuple):
            return self._read(data, key, 1, len(rows))
        return [self._key(key, row) for row in rows]

    def _key(self, key: Callable[[Any], Any], row: Any) -> Any:
        try:
            found = key(row)
            hash(found)
        except Exception as error:
            raise FunctionError(
                f"{self._name}: key= raised {type(error).__name__}: {error} for {row!r}"
            ) from error
        return found

    def _read(self, data: Any, positions: Sequence[int], which: int, count: int) -> list[Any]:
        if not positions:
            return [row_class(())._make(())] * count
        if self._readers is None:
            by_key = self._layout.key if isinstance(self._layout.key, tuple) else ()
            self._readers = (
                self._reader(data, self._layout.shown),
                self._reader(data, by_key),
            )
        columns = [data.column(position) for position in positions]
        try:
            return list(self._readers[which].rows(columns))
        except UnreadableValueError as error:
            row = self._rows + error.position
            raise ConfigurationError(
                f"{self._name}: row {row} of the partition cannot be read: {error}, or leave it "
                "out of columns="
            ) from error

    def _reader(self, data: Any, positions: Sequence[int]) -> RowReader:
        names = [self._layout.names[position] for position in positions]
        kinds = [data.column(position).type for position in positions]
        declared = self._layout.declared
        return RowReader(names, kinds, [declared[at] for at in positions] if declared else ())


def origin_of(batch: Any) -> int:
    """Return the partition in which the rows were before a union or coalesce moved them."""
    (origin,) = batch.column(batch.num_columns - 1).slice(0, 1).to_pylist()
    return int(origin)


def partition_of(batch: Any, task_partition: int) -> str:
    """Return the partition's name in idempotency keys, from the batch's last column."""
    origin = origin_of(batch)
    return str(origin) if origin == task_partition else f"{task_partition}.{origin}"


def check_partition(partition: int, rate: Rate | None, name: str) -> None:
    """Raise `ConfigurationError` if a total rate is split over fewer partitions than there are."""
    if rate is not None and rate.partitions is not None and partition >= rate.partitions:
        raise ConfigurationError(
            f"{name}: Rate.partitions is {rate.partitions}, and there is a partition {partition}: "
            "the total would be exceeded. Pass the number of partitions that there are"
        )
