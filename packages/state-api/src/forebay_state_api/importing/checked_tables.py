"""All tables of one import: checked as a whole, then read part by part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from forebay_state_api.contract.changes import ABSENT, Changes
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.row_readers import ImportedRow, KeyReader, StateRows, TimerRows
from forebay_state_api.importing.splitting import SplitTable
from forebay_state_api.importing.tables import Tables, TableSource

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.importing.part import ImportedTimer
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.reading.stored_states import StateInfo

_PAGE: Final = 4_096


class CheckedTables:
    """Tables whose rows all fit, on local disk; a context manager."""

    def __init__(
        self,
        tables: Tables,
        states: Mapping[str, StateInfo],
        key: ValueCodec,
        ranges: Sequence[KeyGroupRange],
        *,
        now_us: int,
    ) -> None:
        """Read and check all tables.

        ``states`` and ``key`` are what the tables must fit, ``ranges`` the key groups of all parts,
        in order, and ``now_us`` is the time of last access of content without one.
        """
        self._states: Final = states
        self._now_us: Final = now_us
        self._ranges: Final = ranges
        self._keys: Final = KeyReader(key, ranges[-1].end + 1)
        self._folder: Final = tempfile.TemporaryDirectory(prefix="forebay-import-")
        self._splits: list[SplitTable] = []
        self._timers: SplitTable | None = None
        try:
            self._read(tables)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> frozenset[str]:
        """The states that the tables have."""
        return frozenset(self.rows)

    @property
    def has_timers(self) -> bool:
        """Whether there is a table of timers."""
        return self._timers is not None

    @property
    def rows(self) -> dict[str, int]:
        """State → the number of its rows."""
        found: dict[str, int] = {}
        for split in self._splits:
            assert isinstance(split.reader, StateRows)
            found |= split.reader.counted(split.rows, split.filled)
        return found

    @property
    def timers(self) -> int:
        """The number of timers."""
        return 0 if self._timers is None else self._timers.rows

    def changes(self, part: int) -> Iterator[tuple[TableSpec, Changes]]:
        """Yield the cells of a part, a page of one state at a time."""
        for split in self._splits:
            assert isinstance(split.reader, StateRows)
            for page in split.pages(part):
                for start in range(0, len(page), _PAGE):
                    yield from _changes(split.reader.infos, page[start : start + _PAGE])

    def timers_of(self, part: int) -> Iterator[ImportedTimer]:
        """Yield the timers of a part."""
        if self._timers is not None:
            for page in self._timers.pages(part):
                for row in page:
                    yield row.content

    def close(self) -> None:
        """Delete what is on disk."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete what is on disk, also after a failure."""
        self.close()

    def _read(self, tables: Tables) -> None:
        for name, table in tables.states.items():
            reader = StateRows.of_state(self._state(name), self._keys, self._now_us)
            self._splits.append(self._split(table, reader))
        if tables.operator is not None:
            source = tables.operator
            reader = StateRows.of_operator(source.columns, self._states, self._keys, self._now_us)
            self._check_named_once(reader, tables.states)
            self._splits.append(self._split(source, reader))
        if tables.timers is not None:
            self._timers = self._split(tables.timers, TimerRows(self._keys))

    def _state(self, name: str) -> StateInfo:
        if name not in self._states:
            known = ", ".join(map(repr, self._states)) or "none"
            raise ConfigurationError(f"the operator has no state {name!r}; its states: {known}")
        return self._states[name]

    def _check_named_once(self, reader: StateRows, others: Mapping[str, Any]) -> None:
        twice = [info.name for info in reader.infos if info.name in others]
        if twice:
            raise ConfigurationError(
                f"{', '.join(map(repr, twice))}: there is a table of this state, and it is a "
                "column of the operator's table, too"
            )

    def _split(self, source: TableSource, reader: StateRows | TimerRows) -> SplitTable:
        folder = Path(self._folder.name) / str(len(self._splits))
        return SplitTable(source, reader, self._ranges, folder)


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
