"""Folds several deltas into one: newest content wins, and expired content goes if so configured."""

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
"""A fold copies a section of at least this many cells unchanged."""


class Fold:
    """Folds the sections of several deltas, oldest first, into the sections of one.

    Small sections of one table become one section, in which each cell has its newest content.
    Large sections are copied unchanged unless something in them has expired, and so are sections
    of tables that are not decoded or that were written under another declaration. Copying bytes
    costs next to nothing; merging large sections would not save enough to pay for unpacking and
    packing them.
    """

    def __init__(self, resident: Resident, now_us: int) -> None:
        """Begin a fold; ``now_us`` is the micro-batch's time, `NO_TIME` if it has none."""
        self._resident = resident
        self._deadlines = {
            name: Deadline(expiry, now_us, table.spec.compaction_clock_every)
            for name, table in resident.tables.items()
            if (expiry := table.spec.compaction_expiry) is not None
        }
        self._expired: dict[str, dict[object, int]] = {}
        """Table → the keys, with their groups, of cells that had expired content."""

    def sections(self, sections: Sequence[Section]) -> list[Section]:
        """Return the sections of the folded delta."""
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
        """Drop expired content from memory; return the sections that drop it elsewhere."""
        return [
            section
            for name, found in self._expired.items()
            for section in self._resident.tables[name].drop(
                found.items(), self._deadlines[name].until_us, self._resident.groups
            )
        ]

    def _mergeable(self, section: Section) -> TableSpec | None:
        """Return the spec to decode a section with for merging; ``None`` to copy it unchanged."""
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
