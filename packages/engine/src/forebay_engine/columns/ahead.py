"""The cells of a later slice, which threads read while the slice before it is processed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay_state_api.codecs.columns import Column
from forebay_state_api.contract.columns import CellColumns

if TYPE_CHECKING:
    from concurrent.futures import Future

    from forebay_state_api.contract.columns import EncodedKeys


class CellsAhead:
    """The cells of one state for the keys of a later call."""

    def __init__(self, keys: EncodedKeys, cells: Future[CellColumns]) -> None:
        """``cells`` are being read, for ``keys``."""
        self._keys = keys
        self._cells = cells
        self._stale = np.zeros(len(keys), np.bool_)
        """The keys that were written since, and others with the same hash."""

    def wait(self) -> None:
        """Wait until the cells are read; raise the error of the read."""
        self._cells.result()

    def note_written(self, keys: EncodedKeys) -> None:
        """Note that cells were written, after `wait`."""
        self._stale |= np.isin(self._keys.hashes, keys.hashes)

    def current(self, read: Callable[[EncodedKeys], CellColumns]) -> CellColumns:
        """Return the cells as they are now; ``read`` reads those that were written since."""
        cells = self._cells.result()
        index = np.flatnonzero(self._stale)
        if not len(index):
            return cells
        return _replaced(cells, index, read(self._keys.take(index)))


def _replaced(cells: CellColumns, index: Any, new: CellColumns) -> CellColumns:
    """Return cells with those of ``new`` at the positions ``index``."""
    count = len(cells.columns[0])
    source = np.arange(count)
    source[index] = count + np.arange(len(index))
    pairs = zip(cells.columns, new.columns, strict=True)
    columns = tuple(Column.joined(pair).take(source) for pair in pairs)
    present = np.concatenate([_present(cells), _present(new)])[source]
    times = None
    if cells.times is not None and new.times is not None:
        times = np.concatenate([cells.times, new.times])[source]
    return CellColumns(columns, None if present.all() else present, times)


def _present(cells: CellColumns) -> Any:
    return np.ones(len(cells.columns[0]), np.bool_) if cells.present is None else cells.present
