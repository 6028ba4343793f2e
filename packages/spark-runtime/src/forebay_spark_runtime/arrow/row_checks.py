"""Tests the rows of ended records, and keeps what passes in the form that is quickest to write.

Arrow takes columns. So the values of rows that pass are kept one after another, in one list, of
which each column is a slice; the rows themselves are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, overload

import attrs

from forebay_engine.isolation.checked_rows import CheckedRows
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.value_checks import CLASSES, or_null, usual_tests

_UNPACK: Final = """
    if row.__class__ is not tuple:
        return False
    try:
        {values}, = row
    except ValueError:
        return False
"""
_FUNCTIONS: Final = f"""
def passes(row):{_UNPACK}
    return {{usual}} or {{each}}

def add_usual(rows):
    if len(rows) != 1:
        return not rows
    row = rows[0]{_UNPACK}
    if {{usual}} or {{each}}:
        if others:
            add_other(row)
        else:
            add_values(row)
        return True
    return False
"""


@attrs.frozen
class PassedRows(Sequence[tuple[Any, ...]]):
    """Rows that have passed the test of their schema."""

    values: list[Any]
    """The values of all rows, row by row."""
    width: int
    """The number of columns."""

    def columns(self) -> list[list[Any]]:
        """Return the values of each column."""
        return [self.values[position :: self.width] for position in range(self.width)]

    def __len__(self) -> int:
        return len(self.values) // self.width

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns(), strict=True)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, place: slice) -> PassedRows: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, ...] | PassedRows:
        if isinstance(place, int):
            first = range(len(self))[place] * self.width
            return tuple(self.values[first : first + self.width])
        start, stop, step = place.indices(len(self))
        if step != 1:
            raise ValueError("a slice of rows has a step of 1")
        return PassedRows(self.values[start * self.width : stop * self.width], self.width)


class RowTests(CheckedRows):
    """Checks rows by a test that is compiled for the schema, which most rows pass.

    All other rows are written to find out whether they fit. Until one of them is added, `take`
    returns `PassedRows`.
    """

    passes: Callable[[Any], bool]
    """The test: true only if ``writer`` can write the row; may be false for such rows as well."""

    def __init__(self, writer: RowWriter, schema: Any) -> None:
        """``writer`` writes rows of ``schema``, a ``pa.Schema``."""
        super().__init__(self._admit_other)
        self._writer = writer
        self._width = len(schema)
        self._values: list[Any] = []
        """The values of the rows, as long as all have passed the test; else they are in `_rows`."""
        values = [f"value{position}" for position in range(len(schema))]
        columns = list(zip((field.type for field in schema), values, strict=True))
        text = _FUNCTIONS.format(
            values=", ".join(values),
            usual=" and ".join(usual_tests(columns)),
            each=" and ".join(
                or_null(kind, value, null=field.nullable)
                for field, (kind, value) in zip(schema, columns, strict=True)
            ),
        )
        names: dict[str, Any] = {
            **CLASSES,
            "add_values": self._values.extend,
            "others": self._rows,
            "add_other": self._rows.append,
        }
        exec(text, names)  # noqa: S102 - see `value_checks`
        self.passes, self.add_usual = names["passes"], names["add_usual"]

    def __len__(self) -> int:
        return len(self._rows) or len(self._values) // self._width

    def check(self, rows: Sequence[Any]) -> None:
        super().check([row for row in rows if not self.passes(row)])

    def add(self, rows: Sequence[Any]) -> None:
        others = [row for row in rows if not self.passes(row)]
        super().check(others)
        if others or self._rows:
            self.add_unchecked(rows)
        else:
            self._values.extend(chain.from_iterable(rows))

    def add_unchecked(self, rows: Sequence[Any]) -> None:
        if self._values and rows:
            self._rows.extend(self._take_passed())
        self._rows.extend(rows)

    def take(self) -> Sequence[Any]:
        return super().take() or self._take_passed()

    def _take_passed(self) -> PassedRows:
        values = self._values.copy()
        self._values.clear()
        return PassedRows(values, self._width)

    def _admit_other(self, row: Any) -> None:
        if not self.passes(tuple(self._writer.as_tuple(row))):  # it may be a dict or a NamedTuple
            self._writer.batch([row])
