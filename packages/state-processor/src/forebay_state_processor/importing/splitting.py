"""Check a table, and split it on local disk into the parts of the version that it becomes.

So memory holds one batch while a table is checked, and the keys of one part while it is searched
for duplicate rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing.row_readers import MISFITS, ImportedRow, RowReader
from forebay_state_processor.reading.arrow_types import arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.keys import KeyGroupRange

_PLACE: Final = "#place"
_ROW: Final = "#row"


class SplitTable:
    """The rows of one table, which fit, in a file for each part.

    `add` its rows, and then `finish`: both raise a `ConfigurationError` that names a misfitting or
    duplicate row.
    """

    def __init__(
        self,
        reader: RowReader,
        ranges: Sequence[KeyGroupRange],
        folder: Path,
        *,
        numbered: bool = True,
    ) -> None:
        """``folder``, which does not exist, gets the rows.

        ``ranges`` are the key groups of the parts, in order, without gaps. With ``numbered`` rows
        are named by their numbers, otherwise by their keys.
        """
        self.reader: Final = reader
        self.rows = 0
        """The number of rows."""
        self.filled: Final[Counter[str]] = Counter()
        """Column → its values that are not null."""
        self._start: Final = ranges[0].start
        self._ends: Final = [groups.end for groups in ranges]
        self._folder: Final = folder
        self._numbered: Final = numbered
        self._writers: Final[dict[int, Any]] = {}
        self._files: Final = ExitStack()
        folder.mkdir()

    def add(self, batch: pa.RecordBatch) -> None:
        """Check rows in the columns that the reader keeps, and write them to disk."""
        rows = self._checked(batch)
        extended = self._extended(batch, rows)
        for part, mine in _by_part(self._ends, rows).items():
            self._write(part, extended.take(arrow().array(mine)))
        self.rows += len(batch)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self.filled[name] += len(batch) - column.null_count

    def finish(self) -> None:
        """Search each part for duplicate rows."""
        self._files.close()
        for part in range(len(self._ends)):
            self._check_unique(part)

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._files.close()

    def pages(self, part: int) -> Iterator[list[ImportedRow]]:
        """Yield the rows of a part, a page at a time."""
        for batch in self._batches(part):
            yield [*map(self.reader.read, _plain(batch))]

    def _checked(self, batch: pa.RecordBatch) -> list[ImportedRow]:
        found: list[ImportedRow] = []
        for row in self._in_python(batch):
            try:
                found.append(self._placed(self.reader.read(row)))
            except MISFITS as error:
                where = self._named(row, self.rows + len(found) + 1)
                raise ConfigurationError(f"{self.reader.what}, {where}: {error}") from error
        return found

    def _in_python(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the rows in Python; `ConfigurationError` names one with a time that it lacks."""
        try:
            rows: list[dict[str, Any]] = batch.to_pylist()
        except OverflowError:
            for number in range(batch.num_rows):
                self._check_times(batch.slice(number, 1), self.rows + number + 1)
            raise
        return rows

    def _check_times(self, row: pa.RecordBatch, number: int) -> None:
        try:
            row.to_pylist()
        except OverflowError:
            raise ConfigurationError(
                f"{self.reader.what}, row {number}: a time is in the years 1 to 9999 in UTC, and "
                "one of this row is not"
            ) from None

    def _placed(self, row: ImportedRow) -> ImportedRow:
        if not self._start <= row.group <= self._ends[-1]:
            raise ValueError(
                f"the key is of key group {row.group}, but its column's type places it in another: "
                "cast the column to the type of the key"
            )
        return row

    def _named(self, row: Mapping[str, Any], number: int) -> str:
        if self._numbered:
            return f"row {number}"
        return ", ".join(f"{name} {row[name]!r}" for name in self.reader.keys.names)

    def _extended(self, batch: pa.RecordBatch, rows: Sequence[ImportedRow]) -> pa.RecordBatch:
        """Return the batch with the place and the number of each row."""
        lib = arrow()
        places = lib.array([*map(self.reader.place, rows)], lib.large_binary())
        numbers = lib.array(range(self.rows + 1, self.rows + len(rows) + 1), lib.int64())
        return lib.RecordBatch.from_arrays(
            [*batch.columns, places, numbers], names=[*batch.schema.names, _PLACE, _ROW]
        )

    def _path(self, part: int) -> Path:
        return self._folder / f"{part}.arrow"

    def _write(self, part: int, batch: pa.RecordBatch) -> None:
        import pyarrow.ipc

        try:
            if part not in self._writers:
                file = pyarrow.ipc.new_file(str(self._path(part)), batch.schema)
                self._writers[part] = self._files.enter_context(file)
            self._writers[part].write_batch(batch)
        except OSError as error:
            raise ConfigurationError(
                f"{self.reader.what} does not fit on the disk of {self._folder.parent}, where it "
                f"is split: {error}. Set TMPDIR to another folder"
            ) from error

    def _batches(self, part: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.ipc

        if not self._path(part).exists():
            return
        with arrow().memory_map(str(self._path(part))) as file:
            reader = pyarrow.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    def _check_unique(self, part: int) -> None:
        places = [batch.column(_PLACE) for batch in self._batches(part)]
        column = arrow().chunked_array(places, arrow().large_binary())
        if len(column.unique()) == len(column):
            return
        seen: set[bytes] = set()
        for batch in self._batches(part):
            for at, place in enumerate(batch.column(_PLACE).to_pylist()):
                if place in seen:
                    raise self._duplicate_row_error(batch.slice(at, 1))
                seen.add(place)

    def _duplicate_row_error(self, batch: pa.RecordBatch) -> ConfigurationError:
        (row,) = _plain(batch)
        where = self._named(row, batch.column(_ROW)[0].as_py())
        what = self.reader.shown(self.reader.read(row))
        return ConfigurationError(f"{self.reader.what}, {where}: {what} comes twice")


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows without what was added to them."""
    rows: list[dict[str, Any]] = batch.select(batch.schema.names[:-2]).to_pylist()
    return rows


def _by_part(ends: Sequence[int], rows: Sequence[ImportedRow]) -> dict[int, list[int]]:
    """Return part → the positions of its rows."""
    found: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        found.setdefault(bisect_left(ends, row.group), []).append(at)
    return found
