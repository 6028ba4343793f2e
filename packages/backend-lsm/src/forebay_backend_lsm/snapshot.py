"""Writes memtables as one sorted file, at a commit and whenever they take up too much memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forebay_backend_lsm.files import Cells, FewCells, FileBytes, FileWriter
from forebay_backend_lsm.memtable import Memtable
from forebay_backend_lsm.merging import MergeInput, Rules, merge
from forebay_backend_lsm.merging_few import merge_few
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile


def write_memtables(
    memtables: Iterable[Memtable], opening: Opening, options: LsmOptions, version: int
) -> Sequence[tuple[StateFile, FileBytes]]:
    """Write the memtables as one file of ``version`` on the opening's storage, and empty them.

    Returns the file with its content; nothing, and no file is written, if all are empty.
    """
    changed = [memtable for memtable in memtables if memtable.runs]
    if not changed:
        return ()
    groups = opening.range
    writer = FileWriter(groups, compression=options.compression, block_bytes=options.block_bytes)
    for memtable in changed:
        writer.begin(memtable.header)
        for cells in _merged(memtable):
            writer.add(cells)
    content = writer.finish()
    file = content.put(opening.storage, data_name(version, "lsm"), groups)
    return ((file, content),)


def _merged(memtable: Memtable) -> Iterator[Cells | FewCells]:
    """Merge all parts of a memtable: each cell occurs once."""
    runs = memtable.take()
    if len(runs) == 1:
        yield runs[0].stored
        return
    few = [run.few.cells for run in runs if run.few is not None]
    if len(few) == len(runs):
        has_times = memtable.header.has_times
        yield merge_few(few, Rules(bottom=False), has_times=has_times).cells
        return
    parts = [part.cells for part in runs]
    inputs = [MergeInput(iter([(int(cells.addresses[-1]) + 1, cells)])) for cells in parts]
    for merged in merge(inputs, Rules(bottom=False)):
        yield merged.cells
