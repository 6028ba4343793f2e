"""Several deltas as one: newest content wins, and what has expired goes where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forebay_backend_heap.encoding import decode, encode, oldest_time
from forebay_backend_heap.expiry import without_expired
from forebay_backend_heap.files import Section
from forebay_backend_heap.resident import Resident
from forebay_backend_heap.write_buffer import WriteBuffer, changes_of
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.expiry import Deadline

MERGE_BELOW: Final = 4096
"""Cells of a section from which on a fold takes it over as it is."""


class Fold:
    """The sections of several deltas, oldest first, as one delta's.

    Small ones of one table become one section, in which each cell has its newest content. Large
    ones are taken over as they are, unless something in them has expired, as are those of tables
    that are not decoded, or that were written under another declaration: copying bytes costs next
    to nothing, and what it spares is not worth unpacking and packing them.
    """

    def __init__(self, resident: Resident, now_us: int) -> None:
        """``now_us`` is the micro-batch's time, `NO_TIME` where it has none."""
        self._resident = resident
        self._deadlines = {
            name: Deadline(expiry, now_us, table.spec.compaction_clock_every)
            for name, table in resident.tables.items()
            if (expiry := table.spec.compaction_expiry) is not None
        }
        self._expired: dict[str, dict[object, int]] = {}
        """Table → the keys, with their groups, of cells that had something expired."""

    def sections(self, sections: Sequence[Section]) -> list[Section]:
        """The sections of the one delta."""
        result: list[Section] = []
        merged: dict[str, WriteBuffer] = {}
        for section in sections:
            spec = self._mergeable(section)
            if spec is None:
                result += self._encoded(section.table, merged.pop(section.table, None))
                result.append(section)
                continue
            pending = merged.setdefault(section.table, WriteBuffer())
            changes = changes_of(spec.shape, section.op, decode(section, spec))
            if (deadline := self._deadlines.get(spec.name)) is not None:
                changes, found = without_expired(changes, deadline)
                self._expired.setdefault(spec.name, {}).update(found)
            pending.add(changes)
        for name, pending in merged.items():
            result += self._encoded(name, pending)
        return result

    def dropped(self) -> list[Section]:
        """Drop from memory too what was found expired; the sections that do the same."""
        return [
            section
            for name, found in self._expired.items()
            for section in self._resident.dropping(
                self._resident.tables[name], found.items(), self._deadlines[name].until_us
            )
        ]

    def _mergeable(self, section: Section) -> TableSpec | None:
        """What a section is decoded with to be merged; ``None`` if it is taken over as it is."""
        table = self._resident.tables.get(section.table)
        if table is None or section.description != table.spec.description():
            return None
        if section.cells < MERGE_BELOW:
            return table.spec
        deadline = self._deadlines.get(section.table)
        if deadline is None or oldest_time(section, table.spec) > deadline.until_us:
            return None
        return table.spec

    def _encoded(self, name: str, pending: WriteBuffer | None) -> list[Section]:
        if pending is None:
            return []
        spec = self._resident.tables[name].spec
        return [encode(spec, op, block, self._resident.groups) for op, block in pending.blocks()]
