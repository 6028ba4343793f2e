"""The check of a record's rows before it ends, where records fail alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RowCheck:
    """Raises for the first row that the output cannot take.

    ``passes`` is a quick test for each row. It returns true only if the row fits, and may return
    false for rows that fit as well; by default every row passes. Others go to ``admit``, which
    raises `OutputSchemaError` or `StateAccessError` if a row does not fit.
    """

    __slots__ = ("_admit", "all_passed", "passes")

    def __init__(
        self,
        passes: Callable[[Any], bool] = lambda _: True,
        admit: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self.passes = passes
        self._admit = admit
        self.all_passed = True
        """Whether every row that was emitted so far has passed the test."""

    def __call__(self, rows: list[Any], start: int) -> None:
        """Check the rows from position ``start`` on."""
        for row in rows[start:]:
            if not self.passes(row):
                self.all_passed = False
                self._admit(row)
