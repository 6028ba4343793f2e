"""A journal of the changes of a record, to put them back if it fails alone.

An entry is a tuple: the entry before it, a function that puts one change back, and its arguments.
Whatever changes a record's state adds an entry *before* the change; undoing follows the entries
from the last to the first. Only one record of a key runs at a time, so an entry describes cells
that no other record has changed since. There is a journal only where records fail alone
(``on_error="column"``).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

MISSING: Final[Any] = object()
"""Stands for the value of a key that a dictionary does not have."""

Entry: TypeAlias = tuple[Any, ...]
"""(entry before or ``None``, function, its arguments)."""


class Journal:
    """The changes of the running record since it was started or resumed."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Entry | None = None
        """The last entry; code that starts or resumes a record sets it to ``None`` first."""

    def note(self, *change: Any) -> None:
        """Add an entry: a function that puts a change back, and its arguments."""
        self.last = (self.last, *change)

    def undo(self) -> None:
        """Put back all changes."""
        last, self.last = self.last, None
        undo(last)


def undo(last: Entry | None) -> None:
    """Put back the changes of ``last`` and of the entries before it."""
    while last is not None:
        last, put_back, *arguments = last
        put_back(*arguments)


def put_back(cells: dict[Any, Any], key: Any, value: Any) -> None:
    """Set ``cells[key]`` to an earlier value, which may be `MISSING`."""
    if value is MISSING:
        cells.pop(key, None)
    else:
        cells[key] = value


def put_back_both(
    cells: dict[Any, Any], dirty: dict[Any, Any], key: Any, cell: Any, change: Any
) -> None:
    """Put back a key's cell and its change, if both are replaced as a whole."""
    put_back(cells, key, cell)
    put_back(dirty, key, change)
