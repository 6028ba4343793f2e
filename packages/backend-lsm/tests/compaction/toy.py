"""Toy files for tests of compaction: cells in a checksummed object, and a compactor for them.

A cell is (key group, key, value); the value ``None`` hides older cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange

Cells: TypeAlias = dict[tuple[int, str], Any]


def write_cells(
    storage: ObjectStorage, name: str, cells: Mapping[tuple[int, str], Any], groups: KeyGroupRange
) -> StateFile:
    """Write a file and return its entry for a manifest."""
    rows = [[group, key, value] for (group, key), value in sorted(cells.items())]
    data = seal({"cells": rows})
    storage.put(name, data)
    deletes = sum(value is None for value in cells.values())
    return StateFile(
        name=name,
        size=len(data),
        range=groups,
        meta={"entries": len(cells), "deletes": deletes},
    )


def read_file(storage: ObjectStorage, file: StateFile) -> Cells:
    """Read the cells of one file, within its range."""
    rows = unseal(storage.get(file.name), file.name)["cells"]
    return {(group, key): value for group, key, value in rows if group in file.range}


def merged(storage: ObjectStorage, files: Iterable[StateFile]) -> Cells:
    """Merge files in order of age; return the newest cells, including those that hide others."""
    cells: Cells = {}
    for file in files:
        cells.update(read_file(storage, file))
    return cells


def visible(storage: ObjectStorage, files: Sequence[StateFile]) -> Cells:
    """Return the cells that a reader of the files sees."""
    return {cell: value for cell, value in merged(storage, files).items() if value is not None}


class ToyCompactor:
    """Merges toy files into files of at most ``target_bytes`` cells."""

    format: ClassVar[str] = "toy"
    contract_version: ClassVar[int] = 2

    def __init__(self) -> None:
        self.jobs: list[CompactionJob] = []

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        self.jobs.append(job)
        entries_in = sum(len(read_file(storage, file)) for file in job.inputs)
        cells = merged(storage, job.inputs)
        if job.options["bottom"]:
            cells = {cell: value for cell, value in cells.items() if value is not None}
        groups = KeyGroupRange(
            min(file.range.start for file in job.inputs), max(file.range.end for file in job.inputs)
        )
        rows = sorted(cells.items())
        outputs = []
        for number, start in enumerate(range(0, len(rows), job.target_bytes)):
            if cancelled():
                return None
            name = f"{job.output_prefix}{number:04d}"
            part = dict(rows[start : start + job.target_bytes])
            outputs.append(write_cells(storage, name, part, groups))
        return CompactionResult(
            outputs=outputs,
            entries_in=entries_in,
            entries_out=len(rows),
            entries_dropped=entries_in - len(rows),
        )
