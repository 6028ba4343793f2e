"""Merges runs of a table that has few cells in each, as `merging` does, but cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final

import attrs

from forebay_backend_lsm.files.cells import CellKind, Cells
from forebay_backend_lsm.files.few_cells import MOST, Cell, FewCells
from forebay_backend_lsm.files.lists import chunks_of, without_expired
from forebay_backend_lsm.merging import Dropped, Rules
from forebay_state_api.contract.expiry import Deadline

_MAP_SHIFT: Final = 24
"""The cells of one map share the address bits from this one up."""

Place = tuple[int, bytes]


@attrs.frozen(eq=False)
class MergedFew:
    """The merged cells of a table, like `forebay_backend_lsm.merging.Merged`."""

    cells: FewCells | Cells
    """The cells; those of several runs may be too many for tuples."""
    entries_in: int
    dropped: Dropped


def merge_few(runs: Sequence[Sequence[Cell]], rules: Rules, *, has_times: bool) -> MergedFew:
    """Merge runs of one table whose values have one type, oldest first."""
    merged = [*map(_folded, _alive(runs))]
    if len(merged) > 1:
        merged.sort(key=lambda cell: cell[:2])
    if rules.bottom:
        merged = [
            cell._replace(kind=CellKind.PUT) if cell.kind == CellKind.APPEND else cell
            for cell in merged
        ]
    needed = [cell for cell in merged if _is_needed(cell, rules)]
    deleted, aged = len(merged) - len(needed), 0
    if rules.deadline is not None:
        fresh = [*_fresh(merged, rules.deadline, stamped_lists=rules.stamped_lists)]
        aged = sum(one is not cell for one, cell in zip(fresh, merged, strict=True))
        needed = [cell for cell in fresh if _is_needed(cell, rules)]
    expired = len(merged) - len(needed) - deleted
    few = FewCells(needed, has_times=has_times)
    return MergedFew(
        few if len(few) <= MOST else few.columns,
        sum(map(len, runs)),
        Dropped(deleted=deleted, expired=expired, aged=aged),
    )


def _alive(runs: Sequence[Sequence[Cell]]) -> Iterable[list[Cell]]:
    """Return the cells that count under each key, oldest first: one, or a base and appends."""
    counting: dict[Place, list[Cell]] = {}
    ranks: dict[Place, int] = {}
    clears: dict[Place, int] = {}
    for rank, cells in enumerate(runs):
        for cell in cells:
            place, kind = cell[:2], cell[2]
            ranks[place] = rank
            if kind == CellKind.CLEAR:
                clears[place] = rank
            if kind == CellKind.APPEND and place in counting:
                counting[place].append(cell)
            else:
                counting[place] = [cell]
    for (address, prefix), rank in clears.items():
        for other in [*counting]:
            same = other[0] >> _MAP_SHIFT == address >> _MAP_SHIFT
            if same and ranks[other] < rank and other[1].startswith(prefix):
                del counting[other]
    return counting.values()


def _folded(cells: list[Cell]) -> Cell:
    """Join the values of a list's cells."""
    first = cells[0]
    if len(cells) == 1:
        return first
    return first._replace(
        kind=CellKind.PUT if first.kind == CellKind.DELETE else first.kind,
        value=b"".join([cell.value for cell in cells]),
    )


def _is_needed(cell: Cell, rules: Rules) -> bool:
    """Return whether a cell has an effect for readers of the result."""
    if rules.bottom and cell.kind in (CellKind.DELETE, CellKind.CLEAR):
        return False
    return bool(cell.value) or cell.kind != CellKind.APPEND


def _fresh(cells: Sequence[Cell], deadline: Deadline, *, stamped_lists: bool) -> Iterator[Cell]:
    """Yield each cell without its expired content; a cell without any is yielded unchanged."""
    steps = chain.from_iterable(repeat(until, n) for n, until in deadline.steps(len(cells)))
    for cell, until in zip(cells, steps, strict=True):
        if stamped_lists:
            times = (time for times, _ in chunks_of(cell.value) for time in times)
            if any(time <= until for time in times):
                value = without_expired(cell.value, until)
                gone = cell.kind == CellKind.PUT and not value
                yield cell._replace(value=value, kind=CellKind.DELETE if gone else cell.kind)
                continue
        elif cell.kind == CellKind.PUT and cell.time is not None and cell.time <= until:
            yield cell._replace(kind=CellKind.DELETE, value=b"")
            continue
        yield cell
