"""All tables of one import: checked as a whole, then read part by part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from forebay_state_api.contract.changes import ABSENT, Changes
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_processor.importing.row_readers import (
    ImportedRow,
    KeyReader,
    RowReader,
    StateRows,
    TimerRows,
)
from forebay_state_processor.importing.splitting import SplitTable
from forebay_state_processor.importing.tables import TableLayout, Tables

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.importing.subtask_part import ImportedTimer
    from forebay_state_processor.reading.stored_states import StateInfo

_PAGE: Final = 4_096


class CheckedTables:
    """Tables on local disk, split into parts; a context manager.

    `add` the rows of all tables, and then `finish`: all of them fit.
    """

    def __init__(
        self,
        layouts: Sequence[TableLayout],
        states: Mapping[str, StateInfo],
        key: ValueCodec,
        ranges: Sequence[KeyGroupRange],
        *,
        groups: int,
        now_us: int,
        numbered: bool = True,
    ) -> None:
        """Check the columns of all tables.

        ``states`` and ``key`` are what the tables must fit, ``ranges`` the key groups of the parts,
        in order, ``groups`` is the number of all key groups, and ``now_us`` the time of last access
        of content without one. With ``numbered`` errors name rows by their numbers, otherwise by
        their keys.
        """
        self._states: Final = states
        self._keys: Final = KeyReader(key, groups)
        self._now_us: Final = now_us
        self._folder: Final = _temporary_folder()
        try:
            readers = [*map(self._reader, layouts)]
            _check_named_once(readers)
            self.columns: Final = [
                reader.kept(layout.columns) for reader, layout in zip(readers, layouts, strict=True)
            ]
            """The columns that are read of each table."""
        except BaseException:
            self._folder.cleanup()
            raise
        folder = Path(self._folder.name)
        self._splits: Final = [
            SplitTable(reader, ranges, folder / str(number), numbered=numbered)
            for number, reader in enumerate(readers)
        ]

    @classmethod
    def of(
        cls,
        tables: Tables,
        states: Mapping[str, StateInfo],
        key: ValueCodec,
        ranges: Sequence[KeyGroupRange],
        *,
        now_us: int,
    ) -> Self:
        """Read and check all tables; ``ranges`` are all key groups."""
        groups = ranges[-1].end + 1
        checked = cls(tables.layouts, states, key, ranges, groups=groups, now_us=now_us)
        try:
            for number, table in enumerate(tables.every):
                split = checked._splits[number]
                for batch in table.batches(checked.columns[number], split.reader.what):
                    split.add(batch)
            checked.finish()
        except BaseException:
            checked.close()
            raise
        return checked

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        """Check rows of a table, which have its `columns`."""
        self._splits[number].add(batch)

    def finish(self) -> None:
        """Search all tables for duplicate rows."""
        for split in self._splits:
            split.finish()

    @property
    def names(self) -> frozenset[str]:
        """The states that the tables have."""
        return frozenset(self.rows)

    @property
    def has_timers(self) -> bool:
        """Whether there is a table of timers."""
        return any(isinstance(split.reader, TimerRows) for split in self._splits)

    @property
    def rows(self) -> dict[str, int]:
        """State → the number of its rows."""
        found: dict[str, int] = {}
        for split in self._splits:
            if isinstance(split.reader, StateRows):
                found |= split.reader.counted(split.rows, split.filled)
        return found

    @property
    def timers(self) -> int:
        """The number of timers."""
        return sum(split.rows for split in self._splits if isinstance(split.reader, TimerRows))

    def changes(self, part: int) -> Iterator[tuple[TableSpec, Changes]]:
        """Yield the cells of a part, a page of one state at a time."""
        for split in self._splits:
            if isinstance(split.reader, StateRows):
                for page in split.pages(part):
                    for start in range(0, len(page), _PAGE):
                        yield from _changes(split.reader.infos, page[start : start + _PAGE])

    def timers_of(self, part: int) -> Iterator[ImportedTimer]:
        """Yield the timers of a part."""
        for split in self._splits:
            if isinstance(split.reader, TimerRows):
                for page in split.pages(part):
                    for row in page:
                        yield row.content

    def close(self) -> None:
        """Delete what is on disk."""
        for split in self._splits:
            split.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete what is on disk, also after a failure."""
        self.close()

    def _reader(self, layout: TableLayout) -> RowReader:
        if layout.is_timers:
            return TimerRows(self._keys)
        if layout.state is not None:
            return StateRows.of_state(layout, self._state(layout.state), self._keys, self._now_us)
        return StateRows.of_operator(layout, self._states, self._keys, self._now_us)

    def _state(self, name: str) -> StateInfo:
        if name not in self._states:
            known = ", ".join(map(repr, self._states)) or "none"
            raise ConfigurationError(f"the operator has no state {name!r}; its states: {known}")
        return self._states[name]


def _check_named_once(readers: Sequence[RowReader]) -> None:
    states = [info.name for one in readers if isinstance(one, StateRows) for info in one.infos]
    twice = sorted({name for name in states if states.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{', '.join(map(repr, twice))}: there is a table of this state, and it is a column of "
            "the operator's table, too"
        )


def _changes(
    infos: Sequence[StateInfo], page: Sequence[ImportedRow]
) -> Iterator[tuple[TableSpec, Changes]]:
    by_namespace: dict[Any, list[ImportedRow]] = {}
    for row in page:
        by_namespace.setdefault(row.namespace, []).append(row)
    for namespace, rows in by_namespace.items():
        for at, info in enumerate(infos):
            cells = [
                (row.key, row.group, row.content[at])
                for row in rows
                if row.content[at] is not ABSENT
            ]
            if cells:
                yield info.spec, Changes.whole(info.shape, namespace, cells)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="forebay-import-")
    except OSError as error:
        raise StorageError(
            f"no temporary folder can be used to split tables: {error}. Set TMPDIR to another one"
        ) from error
