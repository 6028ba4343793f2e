"""Reads Arrow batches into a subtask: checks that rows are routed right, and processes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NoReturn, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.execution.identity import SubtaskIdentity
from forebay_engine.execution.subtask import Subtask
from forebay_engine.timers.event_times import EventTimeRules
from forebay_spark_runtime.arrow.keys_in import canonical_column, keys_of_columns
from forebay_spark_runtime.arrow.rows_in import (
    SLICE_ROWS,
    RowReader,
    UnreadableValueError,
    column_reader,
    shown,
)
from forebay_spark_runtime.arrow.spark_objects import DeclaredType
from forebay_spark_runtime.event_time.event_times import EventTimes
from forebay_spark_runtime.keyed_operator.plan import GROUP_BITS, PULSE, TIME_SHIFT, HiddenColumns
from forebay_spark_runtime.worker_process.task_identity import moved_partitions_error
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import subtask_of

T = TypeVar("T")

_SHOWN: Final = 300
_GROUP_MASK: Final = (1 << GROUP_BITS) - 1


@attrs.frozen(kw_only=True)
class KeyedInputLayout:
    """The positions of columns in the batches that the workers get."""

    uid: str
    names: tuple[tuple[str, ...], ...]
    """The user's columns of each input."""
    keys: tuple[tuple[int, ...], ...]
    """For each keyed input, the positions of its key columns among the user's columns."""
    order: tuple[tuple[int, ...], ...] = ()
    """For each keyed input, the positions of the columns that the rows of a micro-batch are sorted
    by."""
    order_types: tuple[Any, ...] = ()
    """With two keyed inputs, the Arrow type to which each of those columns is widened; ``None`` if
    both inputs have it in one type."""
    broadcast_order: tuple[str, ...] | None = None
    """The columns that the rows of a broadcast input are sorted by, which is the second input;
    ``None`` without one."""
    event_times: tuple[tuple[int, int], ...] = ()
    """For each keyed input, the position of its event times among the user's columns and the
    allowed lateness in µs; empty without event time."""
    idle_after_us: int | None = None
    """`EventTimeRules.idle_after_us`."""
    max_ahead_us: int | None = None
    """`EventTimeRules.max_ahead_us`."""
    declared: tuple[tuple[DeclaredType, ...], ...] = ()
    """For each input the types of columns with user-defined types; empty if there are none."""

    @property
    def rules(self) -> EventTimeRules | None:
        """The rules for the event times of the inputs; ``None`` without event time."""
        if not self.event_times:
            return None
        return EventTimeRules(
            lateness_us=[lateness_us for _, lateness_us in self.event_times],
            idle_after_us=self.idle_after_us,
            max_ahead_us=self.max_ahead_us,
        )

    @property
    def single(self) -> bool:
        """Whether there is one input."""
        return len(self.names) == 1


class BatchInput:
    """Feeds the rows of one micro-batch to one subtask."""

    def __init__(self, layout: KeyedInputLayout, task: SubtaskIdentity) -> None:
        self._layout = layout
        self._task = task
        self._readers: list[RowReader] = []
        self._seen = 0
        self._group_rows: Any = None
        positions = [position for position, _ in layout.event_times]
        self.event_times = EventTimes(positions, single=layout.single)

    def now_us(self, batch: Any) -> int:
        """Return the micro-batch's time on a stream, in µs since the epoch.

        ``batch`` is any of its batches; without one, as under Spark Connect, there is no time.
        """
        if batch is None:
            return NO_TIME
        return (int(batch.column(HiddenColumns.TIME_AND_GROUP)[0].as_py()) >> TIME_SHIFT) * 1_000

    def ordered(self, first: Any, rest: Iterator[Any]) -> Iterator[Any]:
        """Return the user's rows of all batches, sorted as a whole if the job has ``order_by``.

        All rows of a broadcast input are in the first batch, which has no other rows. ``first`` is
        ``None`` if there are no batches. Raises `ConfigurationError` for rows of another subtask.
        """
        if first is None:
            return iter(())
        batches = chain.from_iterable(map(self._of_user, chain((first,), rest)))
        if self._layout.broadcast_order is not None:
            broadcast, keyed = _split(batches)
            return chain(broadcast, self._sorted(iter(keyed)))
        return self._sorted(batches)

    def _sorted(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not any(self._layout.order):
            return batches
        given = list(batches)
        if not given:
            return iter(given)
        table = pa.Table.from_batches(given)
        columns = {str(number): column for number, column in enumerate(self._order_columns(table))}
        sorting = [(name, "ascending") for name in columns]
        positions = pc.sort_indices(pa.table(columns), sort_keys=sorting)
        return iter(table.take(positions).to_batches())

    def _order_columns(self, table: Any) -> list[Any]:
        """Return the columns to sort by, each with the values of the row's own input."""
        if self._layout.single:
            return [table.column(position) for position in self._layout.order[0]]
        sides = [
            [pc.struct_field(table.column(side), [position]) for position in positions]
            for side, positions in enumerate(self._layout.order)
        ]
        if len(sides) == 1:
            return sides[0]
        return [
            pc.coalesce(*(own if kind is None else [one.cast(kind) for one in own]))
            for kind, *own in zip(self._layout.order_types, *sides, strict=True)
        ]

    def feed(self, batch: Any, subtask: Subtask) -> None:
        """Process the rows of one Arrow batch.

        Raises `ConfigurationError` for a null or NaN key, and for a value that Python cannot
        represent.
        """
        if not self._readers:
            self._prepare(batch)
        if self._layout.broadcast_order is not None and batch.column(0).null_count:
            self._feed_broadcast(batch, subtask)
            return
        batch = self.admitted(batch, subtask)
        feed = self._feed_one if self._layout.single else self._feed_two
        for start in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(start, SLICE_ROWS)
            feed(part, subtask)
            self._seen += part.num_rows

    def admitted(self, batch: Any, subtask: Subtask) -> Any:
        """Return a batch without the late rows that the function does not get, and count its rows.

        Raises as `feed`.
        """
        self._check_keys(batch)
        late = self.event_times.note(batch, subtask)
        if late is not None and not subtask.processes_late:
            batch = self._left_out(batch, late.fill_null(False), subtask)  # noqa: FBT003 - Arrow's
        self._count_groups(batch)
        return batch

    def _left_out(self, batch: Any, late: Any, subtask: Subtask) -> Any:
        """Hand late rows to the subtask, if they are emitted, and return the other ones."""
        if subtask.emits_late:
            part = batch.filter(late)
            for side in range(len(self._layout.keys)):
                subtask.leave_out(self._rows_of(part, side), side)
        return batch.filter(pc.invert(late))

    def _rows_of(self, batch: Any, side: int) -> Iterator[Any]:
        """Return the rows of one input."""
        if not self._readers:
            self._prepare(batch)
        read = self._readers[side].rows
        if not self._layout.single:
            return self._of_side(batch.column(side), read)
        try:
            return read(batch.columns[: len(self._layout.names[0])])
        except UnreadableValueError as error:
            self._refuse_value(error, error.position)

    def group_rows(self) -> list[int]:
        """Return the rows so far of each key group of the subtask; empty without rows."""
        return [] if self._group_rows is None else self._group_rows.tolist()

    def _count_groups(self, batch: Any) -> None:
        groups = group_numbers(batch) - self._task.range.start
        counts = np.bincount(groups, minlength=len(self._task.range))
        self._group_rows = counts if self._group_rows is None else self._group_rows + counts

    def _prepare(self, batch: Any) -> None:
        kinds = batch.schema.types
        names = self._layout.names
        if self._layout.single:
            arrow = [kinds[: len(names[0])]]
        else:
            arrow = [[field.type for field in kinds[side]] for side in range(len(names))]
        declared = self._layout.declared or [()] * len(names)
        self._readers = [RowReader(*side) for side in zip(names, arrow, declared, strict=True)]

    def _feed_one(self, batch: Any, subtask: Subtask) -> None:
        columns = batch.columns[: len(self._layout.names[0])]
        try:
            rows, keys = self._read(0, columns)
        except UnreadableValueError as error:
            self._refuse_value(error, error.position)
        subtask.process(rows, keys, _groups(batch))

    def _feed_two(self, batch: Any, subtask: Subtask) -> None:
        """Process the rows of two inputs in input order, one run of rows of a side at a time."""
        read = [
            self._of_side(batch.column(side), partial(self._read, side))
            for side in range(len(self._layout.keys))
        ]
        rows, keys = [one[0] for one in read], [iter(one[1]) for one in read]
        groups = _groups(batch)
        is_second = batch.column(0).is_null().to_pylist()
        start = 0
        for end in [*_changes(is_second), len(is_second)]:
            side, number = int(is_second[start]), end - start
            part, its_keys = islice(rows[side], number), list(islice(keys[side], number))
            subtask.process(part, its_keys, groups[start:end], side)
            start = end

    def _read(self, side: int, columns: list[Any]) -> tuple[Iterator[Any], list[Any]]:
        """Return the rows of one input's columns, and their keys; raises `UnreadableValueError`."""
        values = self._readers[side].values(columns)
        keys = keys_of_columns(
            [canonical_column(columns[i], values[i]) for i in self._layout.keys[side]]
        )
        return self._readers[side].rows_of(values), keys

    def _feed_broadcast(self, batch: Any, subtask: Subtask) -> None:
        """Process the rows of a broadcast input, in an order that is the same in all subtasks.

        Rows of equal ``order_by`` columns are ordered by their text, because they arrive in any.
        """
        side, names = batch.column(1), self._layout.names[1]
        rows = list(self._of_side(side, self._readers[1].rows))
        order = self._layout.broadcast_order or ()
        columns = {str(number): side.field(names.index(name)) for number, name in enumerate(order)}
        columns["text"] = pa.array(map(repr, self._plain_rows(side, rows)), pa.large_string())
        sorting = [(name, "ascending") for name in columns]
        positions = pc.sort_indices(pa.table(columns), sorting).to_pylist()
        subtask.process_broadcast([rows[position] for position in positions])
        self._seen += len(rows)

    def _plain_rows(self, side: Any, rows: list[Any]) -> Iterable[Any]:
        """Return rows of the second input without objects whose text may differ by subtask."""
        if not any(any(one) for one in self._layout.declared[1:]):
            return rows
        kinds = [field.type for field in side.type]
        return self._of_side(side, RowReader(self._layout.names[1], kinds).rows)

    def _of_side(self, side: Any, read: Callable[[list[Any]], T]) -> T:
        """Return the result of ``read`` for the columns of one input's rows in a batch."""
        try:
            return read(side.drop_null().flatten())
        except UnreadableValueError as error:
            positions = pc.indices_nonzero(side.is_valid())
            self._refuse_value(error, positions[error.position].as_py())

    def _of_user(self, batch: Any) -> Iterator[Any]:
        """Yield a batch without rows of the pulse, in parts; check the subtask of its rows."""
        numbers = batch.column(HiddenColumns.TIME_AND_GROUP)
        # The time above the groups is the same in all rows, so those of the pulse come last.
        seen = pc.min_max(numbers)
        if not seen["max"].as_py() & PULSE:
            self._check_subtask(seen)
            yield batch
            return
        position = pc.index(numbers, seen["max"]).as_py()
        for part in (batch.slice(0, position), batch.slice(position + 1)):
            if part.num_rows:
                yield from self._of_user(part)

    def _check_subtask(self, seen: Any) -> None:
        task = self._task
        for time_and_group in (seen["min"].as_py(), seen["max"].as_py()):
            group = time_and_group & _GROUP_MASK
            if group not in task.range:
                wrong = subtask_of(group, task.parallelism, task.max_parallelism)
                what = f"rows of subtask {wrong} came to partition {task.subtask}"
                raise moved_partitions_error(self._layout.uid, what)

    def _check_keys(self, batch: Any) -> None:
        for side, positions in enumerate(self._layout.keys):
            for position in positions:
                self._check_key(batch, side, position)

    def _check_key(self, batch: Any, side: int, position: int) -> None:
        if self._layout.single:
            key = batch.column(position)
            null = key.is_null()
        else:
            own = batch.column(side)
            key = pc.struct_field(own, [position])
            null = pc.and_(own.is_valid(), key.is_null())
        faults = {"null": null}
        if pa.types.is_floating(key.type):
            faults["NaN"] = pc.is_nan(key)
        for what, where in faults.items():
            if pc.any(where).as_py():
                self._refuse_key(batch, self._layout.names[side][position], where, what)

    def _shown(self, batch: Any, position: int) -> str:
        columns = batch.slice(position, 1).columns
        values = [_value_shown(column) for column in columns]
        side = 0 if self._layout.single or values[0] is not None else 1
        row = values if self._layout.single else values[side]
        names = self._layout.names[side]
        text = row if isinstance(row, str) else repr(dict(zip(names, row, strict=False)))
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    def _refuse_value(self, error: UnreadableValueError, position: int) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._layout.uid!r}, subtask {self._task.subtask}: record "
            f"{self._seen + position} of the subtask's micro-batch cannot be read: {error}"
        ) from error

    def _refuse_key(self, batch: Any, name: str, where: Any, what: str) -> NoReturn:
        position = pc.index(where, value=True).as_py()
        raise ConfigurationError(
            f"operator {self._layout.uid!r}, subtask {self._task.subtask}: key column "
            f"{name!r} is {what} in record {self._seen + position} of "
            f"the subtask's micro-batch: {self._shown(batch, position)}. Filter such rows, or give "
            "them a key"
        )


def _split(batches: Iterator[Any]) -> tuple[list[Any], list[Any]]:
    """Return the rows of the second input as one batch, if there are any, and the other batches."""
    first: list[Any] = []
    second: list[Any] = []
    for batch in batches:
        if not batch.column(0).null_count:
            first.append(batch)
            continue
        is_first = batch.column(0).is_valid()
        for into, wanted in ((first, is_first), (second, pc.invert(is_first))):
            part = batch.filter(wanted)
            if part.num_rows:
                into.append(part)
    if second:
        second = pa.Table.from_batches(second).combine_chunks().to_batches()
    return second, first


def _value_shown(column: Any) -> Any:
    """Return the value of a one-row column, or its text if Python cannot represent the value."""
    try:
        return column_reader(column.type)(column)[0]
    except (OverflowError, UnicodeDecodeError):
        return shown(column)


def _groups(batch: Any) -> list[int]:
    groups: list[int] = group_numbers(batch).tolist()
    return groups


def group_numbers(batch: Any) -> Any:
    """Return the key groups of a batch's rows, as a NumPy array."""
    return batch.column(HiddenColumns.TIME_AND_GROUP).to_numpy() & _GROUP_MASK


def _changes(flags: list[bool]) -> list[int]:
    """Return the positions at which a flag differs from the flag before it."""
    return [i for i in range(1, len(flags)) if flags[i] != flags[i - 1]]
