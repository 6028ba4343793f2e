"""Holds a subtask's writes since its version was opened, in sorted parts encoded as in files.

Every `Table.apply` makes one part. So a part is read like a file, a view of the table is a tuple of
parts, and their size is known to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forebay_backend_lsm.addressing import Addressing
from forebay_backend_lsm.encoding import cells_of
from forebay_backend_lsm.files import Cells, FewCells, TableHeader
from forebay_backend_lsm.runs import MemoryRun
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Changes


class Memtables:
    """The memtables of a backend that have parts, and their size, without a look at all tables."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of all parts."""
        self.filled: Final[dict[str, Memtable]] = {}
        """Table → its memtable, for those that have parts."""


class Memtable:
    """The parts of one table, newest first."""

    def __init__(self, spec: TableSpec, among: Memtables) -> None:
        """Begin without parts; ``among`` are the memtables of all tables."""
        self.spec: Final = spec
        self._among: Final = among
        self.runs: tuple[MemoryRun, ...] = ()
        """Replaced, never modified: a reader that holds the tuple has a stable view."""

    @property
    def header(self) -> TableHeader:
        """The table's description for a file."""
        spec = self.spec
        return TableHeader(spec.name, spec.description(), ttl=spec.ttl)

    def add(self, addressing: Addressing, changes: Changes) -> None:
        """Add changes, which are newer than all added before."""
        cells = cells_of(self.spec, addressing, changes)
        if cells is not None:
            self.put(cells)

    def put(self, cells: Cells | FewCells) -> None:
        """Add sorted cells, which are newer than all added before."""
        run = MemoryRun(self.spec, cells)
        self.runs = (run, *self.runs)
        self._among.filled[self.spec.name] = self
        self._among.bytes += run.size

    def take(self) -> Sequence[MemoryRun]:
        """Remove all parts and return them, oldest first."""
        runs, self.runs = self.runs, ()
        self._among.filled.pop(self.spec.name, None)
        self._among.bytes -= sum(run.size for run in runs)
        return runs[::-1]
