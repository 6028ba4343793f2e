"""Sorted files: cells in the order of their addresses, in checksummed blocks, with an index.

``docs/reference/lsm-file-format.md`` is the specification.
"""

from __future__ import annotations

from forebay_backend_lsm.files.blocks import Block, Columns, columns
from forebay_backend_lsm.files.cells import Cells, CellKind, address_of, addresses_of
from forebay_backend_lsm.files.few_cells import Cell, FewCells
from forebay_backend_lsm.files.filter import Filter, Probes
from forebay_backend_lsm.files.reading import FileTable, SortedFile
from forebay_backend_lsm.files.writing import FileBytes, FileWriter, TableHeader, write_file

__all__ = [
    "Block",
    "Cell",
    "CellKind",
    "Cells",
    "Columns",
    "FewCells",
    "FileBytes",
    "FileTable",
    "FileWriter",
    "Filter",
    "Probes",
    "SortedFile",
    "TableHeader",
    "address_of",
    "addresses_of",
    "columns",
    "write_file",
]
