"""Merge values read from storage with the writes made since they were requested.

A read is answered with the content of the table. Until writes are handed over, memory has them,
whether they were made before the question or after it. An answer never replaces one of them: only
these functions put an answer into a space's cells. No read is under way when writes are handed over
(`Engine.hand_over` waits for all of them), so no answer is older than the table.
"""

from __future__ import annotations

from typing import Any

from forebay_state_api.contract.changes import ABSENT, ListChange, MapChange

Cells = dict[Any, Any]
"""`Space.cells` or `Space.dirty`, of an incomplete space."""


def put_cell_under(cells: Cells, dirty: Cells, key: Any, stored: Any) -> Any:  # noqa: ARG001 - as for the other shapes
    """Store a point table's read cell unless a write is newer; return the current one."""
    # A written cell is there, also one that was cleared.
    return cells.setdefault(key, stored)


def put_list_under(cells: Cells, dirty: Cells, key: Any, stored: list[Any]) -> list[Any]:
    """Store a list's read elements below the newer writes; return the current ones."""
    # A list that was replaced is there. One that was only appended to is not.
    known: list[Any] | None = cells.get(key)
    if known is None:
        change: ListChange | None = dirty.get(key)
        known = cells[key] = stored if change is None else [*stored, *change.elements]
    return known


def put_entry_under(cells: Cells, dirty: Cells, key: Any, address: Any, stored: Any) -> Any:
    """Store the read value of a map's entry unless a write is newer; return the current one."""
    # A written entry is there, also one that was removed, unless it was removed with others.
    change: MapChange | None = dirty.get(key)
    if change is not None and address not in change.entries and change.hides(address):
        return ABSENT
    return cells.setdefault(key, {}).setdefault(address, stored)
