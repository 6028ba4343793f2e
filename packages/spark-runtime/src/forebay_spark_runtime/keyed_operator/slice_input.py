"""Feeds slices of Arrow batches to a batch function's subtask, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.keys import key_type
from forebay_engine.columns.rows import Rows
from forebay_spark_runtime.keyed_operator.batch_input import (
    BatchInput,
    KeyedInputLayout,
    group_numbers,
)

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask


def slices_of(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    """Yield batches put together to slices of about ``limit`` bytes; ``None`` makes one slice."""
    held: list[Any] = []
    size = 0
    for batch in batches:
        if limit is not None and held and size + batch.nbytes > limit:
            yield _joined(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class SliceInput:
    """Passes slices to one subtask."""

    def __init__(self, batch_input: BatchInput, layout: KeyedInputLayout) -> None:
        """``batch_input`` checks keys, and counts rows and event times."""
        self._input = batch_input
        self._layout = layout

    def feed(self, batch: Any, subtask: Subtask) -> None:
        """Process a slice.

        Raises `ConfigurationError` for a null or NaN key, and for one that Python cannot represent.
        """
        batch = self._input.admitted(batch, subtask)
        if not batch.num_rows:
            return
        late = self._input.event_times.is_late(batch, subtask)
        rows, keys = self._one(batch, late) if self._layout.single else self._two(batch, late)
        names = [self._layout.names[0][at] for at in self._layout.keys[0]]
        subtask.process_slice(rows, keys, names, group_numbers(batch))

    def _one(self, batch: Any, late: Any) -> tuple[Rows, list[Any]]:
        names = self._layout.names[0]
        columns = batch.columns[: len(names)]
        rows = Rows(dict(zip(names, columns, strict=True)), batch.num_rows, late=late)
        return rows, [columns[at] for at in self._layout.keys[0]]

    def _two(self, batch: Any, late: Any) -> tuple[Rows, list[Any]]:
        sides = [
            dict(zip(names, batch.column(side).flatten(), strict=True))
            for side, names in enumerate(self._layout.names)
        ]
        is_second = batch.column(0).is_null()
        rows = Rows({}, batch.num_rows, sides=sides, is_second=is_second, late=late)
        pairs = zip(*self._layout.keys, strict=True)
        keys = [
            _one_of([[*columns.values()][at] for columns, at in zip(sides, pair, strict=True)])
            for pair in pairs
        ]
        return rows, keys


def _one_of(columns: Sequence[Any]) -> Any:
    """Return a key column of two inputs, each null in the rows of the other one."""
    kinds = [column.type for column in columns]
    if pa.types.is_decimal(kinds[0]):
        scale = max(kind.scale for kind in kinds)
        wide = pa.decimal128(38, scale)
        return pc.coalesce(*[column.cast(wide) for column in columns])
    return pc.coalesce(*[column.cast(key_type(column.type)) for column in columns])
