"""Sweeps a table for expired content, step by step in address order, from where it stopped.

A step takes a range of addresses in which one run has about the wanted number of cells, reads all
cells of all runs there, and merges them, so that it checks each cell's newest content. It
overwrites expired content as the function itself would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from forebay_backend_lsm.batched_reads import Reads
from forebay_backend_lsm.encoding import pack_elements, unpack_elements
from forebay_backend_lsm.files import CellKind, Cells
from forebay_backend_lsm.files.arrow import binary_array
from forebay_backend_lsm.files.cells import Positions
from forebay_backend_lsm.merging import expired
from forebay_backend_lsm.newest_cells import END, NO_CELLS, Lane, NewestCells
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Shape

_STEP: Final = 50_000
"""Most cells of one run that are read at once."""
_PAGE: Final = 1_000


@attrs.frozen
class Swept:
    """The result of a sweep."""

    changes: Cells | None
    """Sorted cells that remove the expired content."""
    cursor: int
    """The address at which the next sweep begins."""
    removed: int
    """The number of values, elements and entries that have expired."""


class Sweep:
    """Checks a limited number of cells of one table."""

    def __init__(self, spec: TableSpec, reads: Reads, until_us: int) -> None:
        """``reads`` view the table's current state; content is expired at ``until_us`` or older."""
        self._spec: Final = spec
        self._newest: Final = NewestCells(reads)
        self._until_us: Final = until_us
        self._removed = 0

    def run(self, cursor: int, checks: int) -> Swept:
        """Begin at ``cursor``, wrap around to the lowest address, and end before ``cursor``."""
        found: list[Cells] = []
        start, checked = cursor, 0
        for low, high in ((cursor, END), (0, cursor)):
            start = low
            while start < high and checked < checks:
                lanes, stop = self._cells(start, high, checks - checked)
                checked += sum(len(cells) for _, cells in lanes)
                found += filter(len, [self._expired(lanes)])
                start = stop
            if checked >= checks:
                break
        changes = Cells.concat(found).sorted() if found else None
        return Swept(changes, 0 if start >= END else start, self._removed)

    def _cells(self, start: int, high: int, checks: int) -> tuple[Sequence[Lane], int]:
        """Return about ``checks`` cells from ``start`` on, by lane, and the address after them."""
        lanes, stop = self._newest.window(start, high, min(checks, _STEP))
        found = [np.zeros(0, np.uint64), *(cells.addresses for _, cells in lanes)]
        addresses = np.sort(np.concatenate(found))
        if len(addresses) > checks:
            # Check all cells of the last address.
            after = addresses[np.searchsorted(addresses, addresses[checks - 1], "right") :]
            if len(after):
                stop = int(after[0])
                lanes = [
                    (reader, cells.slice(0, int(np.searchsorted(cells.addresses, after[0]))))
                    for reader, cells in lanes
                ]
        return lanes, stop

    def _expired(self, lanes: Sequence[Lane]) -> Cells:
        if self._spec.shape is Shape.LIST:
            return self._of_lists(lanes)
        found = [cells.take(self._expired_in(cells)) for _, cells in lanes]
        old = Cells.concat([NO_CELLS[True], *found])
        self._removed += len(old)
        nothing = binary_array([b""] * len(old))
        kinds = np.full(len(old), CellKind.DELETE, np.uint8)
        times = np.zeros(len(old), np.int64)
        return attrs.evolve(old, kinds=kinds, times=times, values=nothing)

    def _of_lists(self, lanes: Sequence[Lane]) -> Cells:
        """Return the lists with expired elements, without these; joins their parts of all lanes."""
        found: dict[tuple[int, bytes], list[tuple[TableSpec, bytes]]] = {}
        for _, cells in lanes:
            for at in self._expired_in(cells).tolist():
                found[int(cells.addresses[at]), cells.keys[at].as_py()] = []
        if not found:
            return NO_CELLS[False]
        for reader, cells in lanes:
            addresses = np.array([address for address, _ in found], np.uint64)
            for at in np.flatnonzero(np.isin(cells.addresses, addresses)).tolist():
                place = int(cells.addresses[at]), cells.keys[at].as_py()
                if place in found:
                    found[place].append((reader, cells.values[at].as_py()))
        values = [self._without_expired(parts) for parts in found.values()]
        kinds = [CellKind.PUT if value else CellKind.DELETE for value in values]
        return Cells.of(
            np.array([address for address, _ in found], np.uint64),
            np.array(kinds, np.uint8),
            [key for _, key in found],
            values,
        )

    def _expired_in(self, cells: Cells) -> Positions:
        """Return the positions of cells with expired content."""
        until = np.full(len(cells), self._until_us, np.int64)
        stamped = self._spec.shape is Shape.LIST
        return np.flatnonzero(expired(cells, until, stamped_lists=stamped))

    def _without_expired(self, parts: Sequence[tuple[TableSpec, bytes]]) -> bytes:
        elements = [
            element
            for reader, value in parts
            for page in unpack_elements(reader, value, _PAGE)
            for element in page
        ]
        live = [element for element in elements if element[0] > self._until_us]
        self._removed += len(elements) - len(live)
        return pack_elements(self._spec, live)
