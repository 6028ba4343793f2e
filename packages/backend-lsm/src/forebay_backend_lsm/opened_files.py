"""The files of one opening, and the parts of tables that they hold.

All tables of a backend share one list of files. What a table needs of each is looked up when it is
read, so a table that is declared costs little however many files there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Final, TypeAlias

from forebay_backend_lsm.file_reader import FileSource
from forebay_backend_lsm.files.layout import StoredSection, packed_description
from forebay_backend_lsm.runs import FileRun
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.migration import reader_of

OpenedFile: TypeAlias = tuple[FileSource, KeyGroupRange]
"""A file, and the key groups for which it is read."""


class OpenedFiles:
    """The opened files, which grow with each spill."""

    def __init__(self, oldest_first: Iterable[OpenedFile]) -> None:
        self.newest_first: tuple[OpenedFile, ...] = tuple(oldest_first)[::-1]
        """Replaced, never modified."""
        self.reading: Final = threading.Lock()
        """Held by the thread that reads blocks with few cells, which those of many tables need."""

    def add(self, source: FileSource, groups: KeyGroupRange) -> None:
        """Add the newest file."""
        self.newest_first = ((source, groups), *self.newest_first)

    def clear(self) -> None:
        """Forget all files."""
        self.newest_first = ()

    def check(self, spec: TableSpec, described: bytes) -> None:
        """Raise `StateMigrationError` if ``spec`` cannot read what a file holds of its table.

        ``described`` is the packed description of ``spec``.
        """
        for source, _ in self.newest_first:
            section = source.file.sections.get(spec.name)
            if section is not None and section.described != described:
                _reader(source, section, spec)

    def runs(self, spec: TableSpec) -> tuple[FileRun, ...]:
        """Return the part of a table that each file holds, newest first."""
        described = packed_description(spec.description())
        return tuple(
            FileRun(
                source,
                spec.name,
                groups,
                spec if section.described == described else _reader(source, section, spec),
            )
            for source, groups in self.newest_first
            if (section := source.file.sections.get(spec.name)) is not None
        )


def _reader(source: FileSource, section: StoredSection, spec: TableSpec) -> TableSpec:
    with decoding(partial(_where, source)):
        return reader_of(section.description, spec)


def _where(source: FileSource, _: int | None) -> str:
    return f"file {source.file.file.name!r} {source.where}"
