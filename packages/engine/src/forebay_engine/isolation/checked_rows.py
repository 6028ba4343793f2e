"""The output rows of ended records, where records fail alone: checked before each record ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class CheckedRows:
    """Collects the rows of records that are done, until they are taken.

    A record's rows are added together when it ends, or not at all if one of them does not fit.
    Runtimes that know the schema of the output override what is quicker with it.
    """

    add_usual: Callable[[list[Any]], bool]
    """Adds a record's only row, if it has one and it certainly fits; returns whether it was added.

    It runs for most records, so it is an attribute: a compiled function can take its place.
    """

    def __init__(self, admit: Callable[[Any], object] | None = None) -> None:
        """``admit`` raises `OutputSchemaError` or `StateAccessError` for a row that does not fit.

        Without it every row fits.
        """
        self._admit = admit
        self._rows: list[Any] = []
        self.add_usual = self._add_any if admit is None else self._add_none

    def __len__(self) -> int:
        """Return the number of rows that `take` would return."""
        return len(self._rows)

    def check(self, rows: Sequence[Any]) -> None:
        """Raise what ``admit`` raises for the first row that does not fit."""
        if self._admit is not None:
            for row in rows:
                self._admit(row)

    def add(self, rows: Sequence[Any]) -> None:
        """Add a record's rows; raise as `check`, and add nothing, if one does not fit."""
        self.check(rows)
        self.add_unchecked(rows)

    def add_unchecked(self, rows: Sequence[Any]) -> None:
        """Add failed records, and rows that fail the micro-batch if they do not fit."""
        self._rows.extend(rows)

    def take(self) -> Sequence[Any]:
        """Return the rows that were added since the last call, in order."""
        rows = self._rows.copy()
        self._rows.clear()
        return rows

    def _add_any(self, rows: list[Any]) -> bool:
        self._rows.extend(rows)
        return True

    def _add_none(self, rows: list[Any]) -> bool:
        return not rows
