"""Keep a journal of registered and deleted timers, for operators whose records fail alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.isolation.journal import MISSING, put_back
from forebay_engine.timers.cells import Directory, LeafAddress, Timer, TimerCells
from forebay_engine.timers.domain_timers import DomainTimers
from forebay_engine.timers.service import EngineTimers
from forebay_state_api.contract.changes import MapChange

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_engine.isolation.journal import Journal
    from forebay_state_api.contract.backend import Table
    from forebay_state_api.job.context import RuntimeContext


class JournaledCells(TimerCells):
    """Records in the journal whether a leaf holds a timer, before that changes."""

    def __init__(self, *arguments: Any, journal: Journal) -> None:
        super().__init__(*arguments)
        self._journal = journal

    def put(self, cell: LeafAddress, entry: Any) -> None:
        self._note(cell, entry)
        super().put(cell, entry)

    def remove(self, cell: LeafAddress, entry: Any) -> None:
        self._note(cell, entry)
        super().remove(cell, entry)

    def _note(self, cell: LeafAddress, entry: Any) -> None:
        change: MapChange | None = self._dirty.get(cell)
        written = MISSING if change is None else change.entries.get(entry, MISSING)
        stored = self._cells.get(cell, {}).get(entry, MISSING) if self._complete else MISSING
        self._journal.note(self._put_back, cell, entry, stored, written)

    def _put_back(self, cell: LeafAddress, entry: Any, stored: Any, written: Any) -> None:
        # Leaves are shared: changes by others' records may have been handed over meanwhile.
        self._slots.pop(cell, None)
        change = self._dirty.get(cell) or self._change(cell)
        put_back(change.entries, entry, written)
        if not change.entries and not change.cleared:
            del self._dirty[cell]
        if self._complete:
            entries = self._cells.setdefault(cell, {})
            put_back(entries, entry, stored)
            if not entries:
                del self._cells[cell]


class JournaledTimers(DomainTimers):
    """Records in the journal whether a timer is due to fire, before that changes."""

    def __init__(self, *arguments: Any, journal: Journal, owner: EngineTimers) -> None:
        super().__init__(*arguments)
        self._journal = journal
        self._owner = owner

    def register(self, at_us: int, context: RuntimeContext) -> None:
        self._note(at_us, context)
        super().register(at_us, context)

    def delete(self, at_us: int, context: RuntimeContext) -> None:
        self._note(at_us, context)
        super().delete(at_us, context)

    def _load(self, leaf: int, groups: Sequence[int]) -> tuple[Sequence[Timer], bool]:
        # An unfinished record may have deleted timers of this leaf.
        self._host.scheduler.progress.drain()
        return super()._load(leaf, groups)

    def _note(self, at_us: int, context: RuntimeContext) -> None:
        entry = self._entry(at_us, context)
        self._journal.note(
            self._put_back,
            (at_us, context._key, context._group, entry),
            entry in self._live,
            entry in self._stored,
            self._deferred.get(entry, MISSING),
            self._owner.lists,
        )

    def _put_back(
        self,
        timer: Timer,
        is_live: bool,  # noqa: FBT001 - an entry of the journal
        is_stored: bool,  # noqa: FBT001 - an entry of the journal
        deferred: Any,
        listed: bool,  # noqa: FBT001 - an entry of the journal
    ) -> None:
        entry = timer[3]
        (self._live.add if is_live else self._live.discard)(entry)
        (self._stored.add if is_stored else self._stored.discard)(entry)
        put_back(self._deferred, entry, deferred)
        if not listed and self.by_key is not None:
            # The first listing, which came later, may have found what is undone now.
            self.by_key.forget(self.number, timer)
            self._owner.lists = False


class JournaledEngineTimers(EngineTimers):
    """The timers of a subtask with a journal."""

    def _make_cells(self, host: StateHost, table: Table) -> TimerCells:
        assert host.journal is not None
        return JournaledCells(table, self.specs[0], journal=host.journal)

    def _make_line(self, host: StateHost, number: int, directory: Directory) -> DomainTimers:
        assert host.journal is not None
        return JournaledTimers(
            host, number, self._cells, directory, self.times, journal=host.journal, owner=self
        )
