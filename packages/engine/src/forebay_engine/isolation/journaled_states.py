"""Keep a journal of a state's changes, for operators whose records fail alone.

`journaled` puts a class in front of a kind of state. It overrides the few methods through which all
changes of that kind pass, and notes what is there before each change. A kind whose changes pass
through the methods of an existing kind needs nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.isolation.journal import MISSING, Journal, put_back, put_back_both
from forebay_engine.states.base import BoundTable, KeyedState
from forebay_engine.states.list import KeyedListState
from forebay_engine.states.map import EntriesState
from forebay_engine.states.reducing import MergingState
from forebay_engine.states.sorted_map import KeyedSortedMapState, SortedMapChange
from forebay_engine.states.ttl import TtlMergingState, TtlValueState
from forebay_engine.states.value import KeyedValueState, PointState
from forebay_state_api.contract.changes import ListChange, MapChange, Space
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.job.futures import StateFuture

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost


class _Journaled(KeyedState):
    """The part of `journaled` that all states share."""

    __slots__ = ()

    _journal: Journal

    def _note(self) -> None:
        """Note the current key's cell and its change, which are about to be replaced."""
        cells, dirty, key = self._cells, self._dirty, self._context._key
        self._journal.note(
            put_back_both, cells, dirty, key, cells.get(key, MISSING), dirty.get(key, MISSING)
        )


class _Points(_Journaled, PointState):
    __slots__ = ()

    def clear(self) -> None:
        self._note()
        super().clear()


class _Values(_Points, KeyedValueState):
    __slots__ = ("_put_back",)

    def bind(self, namespace: Any) -> None:
        super().bind(namespace)
        self._put_back = partial(_put_back_value, self._cells, self._dirty, self._complete)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        # The same as in `_note` and `KeyedValueState`, without the calls.
        context, cells, journal = self._context, self._cells, self._journal
        key = context._key
        journal.last = (journal.last, self._put_back, key, cells.get(key))
        cells[key] = self._admit(value)
        self._dirty[key] = context._group

    def async_update(self, value: Any) -> StateFuture[None]:
        if value is None:
            self.clear()
        else:
            context, cells, journal = self._context, self._cells, self._journal
            key = context._key
            journal.last = (journal.last, self._put_back, key, cells.get(key))
            cells[key] = self._admit(value)
            self._dirty[key] = context._group
        scheduler = self._scheduler
        return scheduler.done if scheduler.tail._done else scheduler.write()


class _TtlValues(_Points, TtlValueState):
    __slots__ = ()

    def update(self, value: Any) -> None:
        self._note()
        super().update(value)

    def _read(self, stored: Any) -> Any:
        self._note()
        return super()._read(stored)


class _Merging(_Points, MergingState):
    __slots__ = ()

    def _store(self, space: Space, key: Any, group: int, cell: Any) -> None:
        self._note_in(space, key)
        super()._store(space, key, group, cell)

    def async_clear(self) -> StateFuture[None]:
        self._note()  # its write may come later
        return super().async_clear()

    def _note_in(self, space: Space, key: Any) -> None:
        cells, dirty = space.cells, space.dirty
        self._journal.note(
            put_back_both, cells, dirty, key, cells.get(key, MISSING), dirty.get(key, MISSING)
        )


class _TtlMerging(_Merging, TtlMergingState):
    __slots__ = ()

    def _read(self, space: Space, key: Any, group: int, cell: Any) -> Any:
        self._note_in(space, key)
        return super()._read(space, key, group, cell)


class _Lists(_Journaled, KeyedListState):
    __slots__ = ()

    def _append(self, elements: list[Any]) -> None:
        self._note_list()
        super()._append(elements)

    def _replace(self, elements: list[Any]) -> None:
        self._note_list()
        super()._replace(elements)

    def _note_list(self) -> None:
        """Note the lists in memory and their lengths: they are replaced, or grow at the end."""
        key = self._context._key
        known = self._cells.get(key)
        change: ListChange | None = self._dirty.get(key)
        self._note()
        if known is not None:
            self._journal.note(_shorten, known, len(known))
        if change is not None:
            self._journal.note(
                _put_back_list, change, change.replaced, change.elements, len(change.elements)
            )


class _Entries(_Journaled, EntriesState):
    __slots__ = ()

    def clear(self) -> None:
        self._note()
        super().clear()

    def _put(self, address: Any, stored: Any) -> None:
        self._note_entry(address)
        super()._put(address, stored)

    def _remove(self, address: Any) -> None:
        self._note_entry(address)
        super()._remove(address)

    def _note_entry(self, address: Any) -> None:
        key = self._context._key
        entries = self._cells.get(key)
        change: MapChange | None = self._dirty.get(key)
        self._note()
        if entries is not None:
            self._journal.note(put_back, entries, address, entries.get(address, MISSING))
        if change is not None:
            written = change.entries
            self._journal.note(put_back, written, address, written.get(address, MISSING))


class _SortedMaps(_Entries, KeyedSortedMapState):
    __slots__ = ()

    def _hide(self, part: KeyRange) -> None:
        change: SortedMapChange | None = self._dirty.get(self._context._key)
        self._note()
        if change is not None:
            self._journal.note(setattr, change, "removed", change.removed)
        super()._hide(part)


def _put_back_value(
    cells: dict[Any, Any],
    dirty: dict[Any, Any],
    complete: bool,  # noqa: FBT001 - an entry of the journal
    key: Any,
    before: Any,
) -> None:
    """Put back a key's cell; ``before`` is ``None`` if it was not in memory.

    The key stays changed, and its cell is handed over again as it was: asking for each write
    whether it is the first would cost more. A cell that memory did not know had no change.
    """
    if before is not None:
        cells[key] = before
        return
    cells.pop(key, None)
    if not complete:
        dirty.pop(key, None)


def _shorten(elements: list[Any], length: int) -> None:
    del elements[length:]


def _put_back_list(change: ListChange, replaced: bool, elements: list[Any], length: int) -> None:  # noqa: FBT001 - an entry of the journal
    change.replaced = replaced
    change.elements = elements
    del elements[length:]


_IN_FRONT: Final[Mapping[type[KeyedState], type[KeyedState]]] = {
    TtlValueState: _TtlValues,
    KeyedValueState: _Values,
    TtlMergingState: _TtlMerging,
    MergingState: _Merging,
    KeyedListState: _Lists,
    KeyedSortedMapState: _SortedMaps,
    EntriesState: _Entries,
}
"""The first base of a class decides."""

_made: Final[dict[type[KeyedState], type[KeyedState]]] = {}


def journaled(state: type[KeyedState]) -> type[KeyedState]:
    """Return ``state``'s class for operators with a journal; the same class each time."""
    if state not in _made:
        _made[state] = _class_with_journal(state)
    return _made[state]


def _class_with_journal(state: type[KeyedState]) -> type[KeyedState]:
    front = next(front for base, front in _IN_FRONT.items() if issubclass(state, base))

    def begin(self: Any, host: StateHost, bound: BoundTable) -> None:
        assert host.journal is not None
        self._journal = host.journal
        state.__init__(self, host, bound)

    members = {"__slots__": ("_journal",), "__init__": begin}
    return type(f"Journaled{state.__name__}", (front, state), members)
