"""`MapState` over a map table: entries are read one by one, iterations see a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.iteration import Content, Filter, ScannedContent, identity
from forebay_engine.states.answers import put_entry_under
from forebay_engine.states.base import BoundTable, KeyedState
from forebay_state_api.contract.changes import ABSENT, Changes, MapChange
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.states import MapState

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost


class EntriesState(KeyedState):
    """Entries under user keys, for each key and namespace.

    ``_cells[key]`` holds the entries by user key address: all of them in a complete space, else
    the known ones, with ``ABSENT`` for an entry known not to exist. ``_dirty[key]`` is the changes
    to the map; if ``_dirty[key].cleared``, older entries must not be read.
    """

    __slots__ = ("_address", "_admit_key", "_original")

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        user_key = bound.spec.user_key
        assert user_key is not None  # a map's spec has one
        self._admit_key = user_key.admit
        self._address = user_key.address
        self._original = user_key.original

    def changes(self) -> Changes:
        maps = {name: dict(space.dirty) for name, space in self.spaces.items() if space.dirty}
        return Changes(maps=maps)

    # Methods of every kind that is stored as a map.

    def contains(self, key: Any) -> bool:
        return self._is_live(self._entry(self._addressed(key)))

    def remove(self, key: Any) -> None:
        self._remove(self._addressed(key))

    def clear(self) -> None:
        context = self._context
        key = context._key
        if self._complete:
            if self._cells.pop(key, None) is None and key not in self._dirty:
                return
        else:
            self._cells[key] = {}
        self._dirty[key] = self._new_change(cleared=True)

    def is_empty(self) -> bool:
        return next(iter(self._live_entries()), None) is None

    def async_contains(self, key: Any) -> StateFuture[bool]:
        return self._async_entry(self._addressed(key), self._is_live)

    def async_remove(self, key: Any) -> StateFuture[None]:
        self.remove(key)
        return self._write()

    def async_clear(self) -> StateFuture[None]:
        self.clear()
        return self._write()

    def async_all_keys(self) -> StateFuture[list[Any]]:
        """Return a future of all keys, which is one request however many there are."""
        content = self._content()
        if content.in_memory:
            return self._answer([self._key(entry) for entry in content.elements])
        return self._load(content, lambda entries: [self._key(entry) for entry in entries])

    def async_is_empty(self) -> StateFuture[bool]:
        return self._iterate(self._key, StateIterator.is_empty)

    # Entries, as (address, stored value).

    def _addressed(self, key: Any) -> Any:
        if key is None:
            what = f"{self._spec.kind} state {self._spec.name!r}"
            raise ValueError(f"{what}: None cannot be a user key; nothing was changed")
        key = self._admit_key(key)
        return key if self._address is None else self._address(key)

    def _admitted(self, value: Any) -> Any:
        return self._admit(value)

    def _is_live(self, stored: Any) -> bool:
        return stored is not ABSENT

    def _shows(self, stored: Any) -> bool:  # noqa: ARG002 - with TTL it depends on the time
        """Return whether a read of a stored entry sees it."""
        return True

    def _read(self, entries: list[Any]) -> Content:
        """Return the entries that a read sees, after the effects of the read."""
        return Content(entries)

    def _seen(self, stored: Any) -> Any:
        if stored is ABSENT or stored is None or self._hand_out is None:
            return None if stored is ABSENT else stored
        return self._hand_out(stored)

    def _key(self, entry: tuple[Any, Any]) -> Any:
        return entry[0] if self._original is None else self._original(entry[0])

    # Cells.

    def _change(self) -> MapChange:
        context = self._context
        change: MapChange | None = self._dirty.get(context._key)
        if change is None:
            change = self._dirty[context._key] = self._new_change()
        return change

    def _new_change(self, *, cleared: bool = False) -> MapChange:
        return MapChange(self._context._group, cleared)

    def _put(self, address: Any, stored: Any) -> None:
        self._change().entries[address] = stored
        key = self._context._key
        entries = self._cells.get(key)
        if entries is None:
            self._cells[key] = {address: stored}
        else:
            entries[address] = stored

    def _remove(self, address: Any) -> None:
        key = self._context._key
        entries = self._cells.get(key)
        if not self._complete:
            self._change().entries[address] = ABSENT
            if entries is None:
                self._cells[key] = {address: ABSENT}
            else:
                entries[address] = ABSENT
        elif entries is not None and entries.pop(address, ABSENT) is not ABSENT:
            self._change().entries[address] = ABSENT
            if not entries:
                del self._cells[key]

    def _known_entry(self, address: Any) -> tuple[bool, Any]:
        """Return whether memory knows the entry, and its value."""
        key = self._context._key
        entries = self._cells.get(key)
        if entries is not None and address in entries:
            return True, entries[address]
        if self._complete:
            return True, ABSENT
        change = self._dirty.get(key)
        return change is not None and change.hides(address), ABSENT

    def _entry(self, address: Any) -> Any:
        known, stored = self._known_entry(address)
        return stored if known else self._fetched(address)

    def _fetched(self, address: Any) -> Any:
        """Read an entry that memory does not know; waits."""
        self._waits()
        context = self._context
        cell = (context._group, context._key, address)
        stored = self._table.get_entries(self._namespace, [cell])[0]
        return put_entry_under(self._cells, self._dirty, context._key, address, stored)

    def _async_entry(self, address: Any, see: Callable[[Any], Any]) -> StateFuture[Any]:
        known, stored = self._known_entry(address)
        if known:
            return self._answer(see(stored))
        context = self._context
        cells, dirty, key = self._cells, self._dirty, context._key

        def keep(stored: Any) -> Any:
            put_entry_under(cells, dirty, key, address, stored)
            return see(stored)

        cell = (context._group, key, address)
        return self._request_of(self, self._table.get_entries, self._namespace, cell, keep)

    def _live_entries(self, content: Content | None = None) -> Iterable[tuple[Any, Any]]:
        """Return the entries of a content; reads them on the task thread if it must.

        The default content are all current entries, as in `_iterate`.
        """
        if content is None:
            content = self._content()
        if content.in_memory:
            return content.elements
        self._waits()
        return content.all(self._host.settings.page_size)

    def _iterate(
        self,
        shape: Callable[[tuple[Any, Any]], Any],
        ask: Callable[[StateIterator[Any]], Any] = identity,
        content: Content | None = None,
    ) -> StateFuture[Any]:
        """Return a future of ``ask(iterator)`` for an iterator over the entries."""
        return self._iterator(self._content() if content is None else content, shape, ask)

    def _content(self) -> Content:
        """Return the current entries, in memory or still to be read."""
        context = self._context
        key = context._key
        if self._complete:
            entries = self._cells.get(key)
            return Content([] if entries is None else list(entries.items()))
        change = self._dirty.get(key)
        written = {} if change is None else change.entries
        added = [entry for entry in written.items() if entry[1] is not ABSENT]
        if change is not None and change.cleared:
            return Content(added)
        scan = self._table.scan(self._namespace, context._group, key)
        return ScannedContent(scan, _without(frozenset(written)), added)


class KeyedMapState(EntriesState, MapState[Any, Any]):
    """`MapState` without TTL."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        return self._seen(self._entry(self._addressed(key)))

    def put(self, key: Any, value: Any) -> None:
        self._put(self._addressed(key), self._admitted(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        admitted = [(self._addressed(key), self._admitted(entries[key])) for key in entries]
        for address, value in admitted:
            self._put(address, value)

    def items(self) -> list[tuple[Any, Any]]:
        return [self._item(entry) for entry in self._live_entries()]

    def keys(self) -> list[Any]:
        return [self._key(entry) for entry in self._live_entries()]

    def values(self) -> list[Any]:
        return [self._value(entry) for entry in self._live_entries()]

    def async_get(self, key: Any) -> StateFuture[Any]:
        return self._async_entry(self._addressed(key), self._seen)

    def async_put(self, key: Any, value: Any) -> StateFuture[None]:
        self.put(key, value)
        return self._write()

    def async_put_all(self, entries: Mapping[Any, Any]) -> StateFuture[None]:
        self.put_all(entries)
        return self._write()

    def async_items(self) -> StateFuture[StateIterator[tuple[Any, Any]]]:
        return self._iterate(self._item)

    def async_keys(self) -> StateFuture[StateIterator[Any]]:
        return self._iterate(self._key)

    def async_values(self) -> StateFuture[StateIterator[Any]]:
        return self._iterate(self._value)

    def _value(self, entry: tuple[Any, Any]) -> Any:
        return self._seen(entry[1])

    def _item(self, entry: tuple[Any, Any]) -> tuple[Any, Any]:
        return self._key(entry), self._seen(entry[1])


def _without(hidden: frozenset[Any]) -> Filter | None:
    """Return a filter that leaves out the entries written since."""
    if not hidden:
        return None
    return lambda entries: [entry for entry in entries if entry[0] not in hidden]
