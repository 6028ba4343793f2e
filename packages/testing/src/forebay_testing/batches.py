"""Rows for batch functions in a harness: as columns, cut at random, and their output as rows."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from forebay_engine.columns.arrays import as_array
from forebay_engine.columns.outputs import Output
from forebay_engine.columns.rows import Rows
from forebay_engine.execution.rows import row_class
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api.errors import ConfigurationError
from forebay_testing.late_rows import without_late

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask
    from forebay_testing.keyed_row import KeyedRow

_MOST_CUTS: Final = 4


def is_table(rows: Any) -> bool:
    """Return whether columns are given instead of rows."""
    return (
        isinstance(rows, (pa.Table, pa.RecordBatch, Mapping))
        or hasattr(rows, "__arrow_c_stream__")
        or (hasattr(rows, "iloc") and hasattr(rows, "columns"))
    )


def as_table(rows: Any, uid: str) -> pa.Table:
    """Return columns that a test passes, or rows as columns."""
    try:
        if isinstance(rows, Mapping):
            return pa.table({name: pa.array(values) for name, values in rows.items()})
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if is_table(rows):
            made = pa.Table.from_batches(Output(None, "a test").batches(rows, "process"))
            return pa.table({name: as_array(made[name], name) for name in made.schema.names})
        return pa.Table.from_pylist([_named(row) for row in rows])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"operator {uid!r}: the rows do not make columns: {error}. Give a table of Arrow, "
            "whose columns have types"
        ) from error


def _named(row: Any) -> Any:
    if isinstance(row, Mapping):
        return row
    names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
    if not names:
        raise TypeError(f"{row!r:.100} has no names")
    return dict(zip(names, row, strict=True))


def as_rows(table: pa.Table) -> list[Any]:
    """Return the rows of columns, as named tuples."""
    make = row_class(tuple(table.schema.names))._make
    columns = [column.to_pylist() for column in table.columns]
    return [make(values) for values in zip(*columns, strict=True)]


class Batches:
    """Feeds the rows of micro-batches to the subtasks of a batch function."""

    def __init__(
        self, output: Output, key_names: Sequence[str], cuts: int | None, *, whole: bool
    ) -> None:
        """``cuts`` is a seed; without it, or with ``whole``, each subtask gets one slice."""
        self.output: Final = output
        self.key_names: Final = key_names
        self.cuts: Final = None if whole or cuts is None else random.Random(cuts)
        self.schemas: list[pa.Schema] = []
        """The columns of each input, in the running micro-batch."""

    def positions(self, count: int) -> list[int]:
        """Return the positions at which some rows are cut."""
        if self.cuts is None or not count:
            return []
        found = [self.cuts.randrange(1, count + 1) for _ in range(self.cuts.randrange(_MOST_CUTS))]
        return sorted({at for at in found if at < count})

    def feed(self, running: Subtask, records: Sequence[KeyedRow], cuts: Sequence[int]) -> list[Any]:
        """Run the rows of a subtask, cut at positions; return the emitted rows.

        Of what it emits later, `rows` makes rows.
        """
        slices = [
            one
            for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)
            if (one := self._slice(running, records[start:end])) is not None
        ]
        for one, following in itertools.zip_longest(slices, slices[1:]):
            if following is not None and running.reads_ahead:
                running.read_ahead(*following)
            running.process_slice(*one)
        running.end_batch()
        return emitted(running.take_rows())

    def rows(self, taken: Sequence[Any]) -> list[Any]:
        """Return what the subtask emitted later, as rows."""
        return emitted(taken)

    def check_cuts(self, cut: Sequence[Any], whole: Sequence[Any], cuts: Sequence[int]) -> None:
        """Raise `AssertionError` if cuts change which rows are emitted.

        Rows of keys that fail depend on them: a slice's rows of a key fail together.
        """
        if not any(isinstance(row, FailedRecord) for row in (*cut, *whole)):
            _check_cuts(cut, whole, cuts)

    def _slice(
        self, running: Subtask, given: Sequence[KeyedRow]
    ) -> tuple[Rows, list[Any], Any] | None:
        """Return rows as the subtask takes them, after it has seen their event times."""
        records: list[KeyedRow] = []
        for side, some in itertools.groupby(given, key=lambda one: one.side):
            records += without_late(running, [*some], side)
        if not records:
            return None
        late = [None if one.at_us is None else running.is_late(one.at_us) for one in records]
        parts = [*zip(*[_parts(one.key) for one in records], strict=True)]
        keys = [pa.array(part) for part in parts]
        groups = pa.array([one.group for one in records], pa.int64()).to_numpy()
        is_late = pa.array(late, pa.bool_()) if any(one is not None for one in late) else None
        return self._rows(records, is_late), keys, groups

    def _rows(self, records: Sequence[KeyedRow], is_late: Any) -> Rows:
        sides = [
            {
                field.name: pa.array(
                    [_part(one.row, at) if one.side == side else None for one in records],
                    field.type,
                )
                for at, field in enumerate(schema)
            }
            for side, schema in enumerate(self.schemas)
        ]
        if len(sides) == 1:
            return Rows(sides[0], len(records), late=is_late)
        is_second = pa.array([one.side == 1 for one in records])
        return Rows({}, len(records), sides=sides, is_second=is_second, late=is_late)


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _part(row: Any, position: int) -> Any:
    return row[position] if position < len(row) else None


def emitted(batches: Sequence[Any]) -> list[Any]:
    """Return what `Subtask.take_rows` returned of a batch function, as rows."""
    rows: list[Any] = []
    for batch in batches:
        rows += batch if isinstance(batch, list) else as_rows(pa.Table.from_batches([batch]))
    return rows


def _check_cuts(cut: Sequence[Any], whole: Sequence[Any], cuts: Sequence[int]) -> None:
    with_cuts, without = (Counter(map(repr, rows)) for rows in (cut, whole))
    if with_cuts == without:
        return
    more, fewer = [*(with_cuts - without)][:3], [*(without - with_cuts)][:3]
    raise AssertionError(
        f"the output depends on how the micro-batch is cut: cut before its rows "
        f"{', '.join(map(str, cuts))} it has {more or 'nothing'} more and {fewer or 'nothing'} "
        "less than in one slice. Keep in state what a later slice needs, or set slices = "
        '"micro-batch"; cuts=None makes no cuts'
    )
