"""Feeds slices of Arrow batches to a batch function's subtask, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
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
    """Passes slices to one subtask, and reads the state of the next one ahead."""

    def __init__(self, batch_input: BatchInput, layout: KeyedInputLayout) -> None:
        """``batch_input`` checks keys, and counts rows and event times."""
        self._input = batch_input
        self._layout = layout
        self._following: Any = None
        """The slice after the one that was yielded last, if its state is to be read ahead."""
        self._given: tuple[Rows, list[Any], Any] | None = None
        """The same slice, as the subtask takes it."""

    def of(self, batches: Iterator[Any], limit: int | None, *, ahead: bool) -> Iterator[Any]:
        """Yield the slices of batches, for `feed`; the rows of a broadcast input are one.

        :param limit: the bytes of a slice, about; ``None`` makes one slice.
        :param ahead: whether the next slice is known when one is fed, so that its state is read
            ahead. Then two are in memory.
        """
        keyed = batches
        if self._layout.broadcast_order is not None:
            first = next(batches, None)
            if first is not None and self._is_broadcast(first):
                yield first
            elif first is not None:
                keyed = chain((first,), batches)
        slices = slices_of(keyed, limit)
        yield from self._with_next(slices) if ahead else slices

    def _with_next(self, slices: Iterator[Any]) -> Iterator[Any]:
        one = next(slices, None)
        while one is not None:
            self._following = next(slices, None)
            following = self._following
            yield one
            one = following

    def feed(self, batch: Any, subtask: Subtask) -> None:
        """Process a slice.

        Raises `ConfigurationError` for a null or NaN key, and for one that Python cannot represent.
        """
        if self._is_broadcast(batch):
            self._input.feed(batch, subtask)
            return
        given, self._given = self._given or self._read(batch, subtask), None
        following, self._following = self._following, None
        if following is not None:
            self._given = self._read(following, subtask)
            if len(self._given[0]):
                subtask.read_ahead(*self._given)
        if len(given[0]):
            subtask.process_slice(*given)

    def _is_broadcast(self, batch: Any) -> bool:
        return self._layout.broadcast_order is not None and bool(batch.column(0).null_count)

    def _read(self, batch: Any, subtask: Subtask) -> tuple[Rows, list[Any], Any]:
        """Return the rows of a slice that the function gets, their keys and key groups."""
        batch = self._input.admitted(batch, subtask)
        late = self._input.event_times.is_late(batch, subtask)
        two = len(self._layout.keys) > 1
        rows, keys = self._two(batch, late) if two else self._one(batch, late)
        return rows, keys, group_numbers(batch)

    def _one(self, batch: Any, late: Any) -> tuple[Rows, list[Any]]:
        names = self._layout.names[0]
        single = self._layout.single
        columns = batch.columns[: len(names)] if single else batch.column(0).flatten()
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
