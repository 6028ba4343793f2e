"""A journal of the changes of running records, to put back those of a record that fails alone.

An entry is a function that puts one change back, and its arguments. Whatever changes a record's
state appends an entry *before* the change; the entries of a failed record run in reverse. Only one
record of a key runs at a time, so an entry describes cells that no other record has changed since.
There is a journal only where records fail alone (``on_error="column"``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

MISSING: Final[Any] = object()
"""Stands for the value of a key that a dictionary does not have."""

Entry: TypeAlias = tuple[Any, ...]
"""A function and its arguments."""

Log: TypeAlias = Callable[[Entry], None]
"""Appends an entry to the journal."""


def undo(entries: list[Entry]) -> None:
    """Put back the changes that ``entries`` describe, the last one first, and empty the list."""
    while entries:
        put_back, *arguments = entries.pop()
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
