"""What a subtask wrote since its version was opened: sorted parts, encoded as files have them.

Every `Table.apply` makes one part. So a part is read as a file is, a view of the table is a tuple
of parts, and what they take up is known to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forebay_backend_lsm.addressing import Addressing
from forebay_backend_lsm.encoding import cells_of
from forebay_backend_lsm.files import Cells, TableHeader
from forebay_backend_lsm.runs import MemoryRun
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Changes


class Memtable:
    """The parts of one table, newest first."""

    def __init__(self, spec: TableSpec) -> None:
        """Begin without any."""
        self.spec: Final = spec
        self.runs: tuple[MemoryRun, ...] = ()
        """Replaced, never changed: whoever holds it has a view that does not move."""

    @property
    def header(self) -> TableHeader:
        """What a file says of the table."""
        spec = self.spec
        return TableHeader(spec.name, spec.description(), ttl=spec.ttl)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(run.size for run in self.runs)

    def add(self, addressing: Addressing, changes: Changes) -> None:
        """Take changes that are newer than all before."""
        cells = cells_of(self.spec, addressing, changes)
        if cells is not None:
            self.put(cells)

    def put(self, cells: Cells) -> None:
        """Take sorted cells that are newer than all before."""
        self.runs = (MemoryRun(self.spec, cells), *self.runs)

    def take(self) -> Sequence[MemoryRun]:
        """Remove all parts and give them, oldest first."""
        runs, self.runs = self.runs, ()
        return runs[::-1]
