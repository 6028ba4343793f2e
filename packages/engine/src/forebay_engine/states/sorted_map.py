"""`SortedMapState` over an ordered map table: ranges of entries, in the order of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.codecs.ordered import beginnings
from forebay_engine.execution.iteration import Content, Filter, ScannedContent, load_up_to, up_to
from forebay_engine.states.base import BoundTable
from forebay_engine.states.map import KeyedMapState
from forebay_state_api.contract.backend import Scan
from forebay_state_api.contract.changes import ABSENT, Changes, MapChange
from forebay_state_api.contract.key_range import KeyRange, OrderedEntries
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.states import SortedMapState

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost


@attrs.define
class SortedMapChange(MapChange):
    """The changes to a map whose stored entries the process does not hold."""

    entries: OrderedEntries = attrs.field(factory=OrderedEntries)
    removed: tuple[KeyRange, ...] = ()
    """Ranges whose stored entries are removed. `KeyedSortedMapState.changes` replaces them by the
    entries found there, so no backend sees them."""

    def hides(self, address: Any) -> bool:
        return self.cleared or any(part.holds(address) for part in self.removed)


class KeyedSortedMapState(KeyedMapState, SortedMapState[Any, Any]):
    """`SortedMapState`, with TTL or without.

    Content that was read for a range is an `OrderedEntries`, in ``_cells`` and in the changes, so
    that a range in memory costs what the range holds.
    """

    __slots__ = ("_beginnings", "_whole")

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        user_key = bound.spec.user_key
        assert user_key is not None  # a map's spec has one
        self._beginnings = beginnings(user_key)
        self._whole = KeyRange(rank=user_key.rank)

    def range(self, start: Any = None, stop: Any = None) -> list[tuple[Any, Any]]:
        content = self._content_of(self._part(start, stop))
        return [self._item(entry) for entry in self._live_entries(content)]

    def first(self, start: Any = None, stop: Any = None) -> tuple[Any, Any] | None:
        return self._first_of(self._part(start, stop))

    def last(self, start: Any = None, stop: Any = None) -> tuple[Any, Any] | None:
        return self._first_of(self._part(start, stop, descending=True))

    def remove_range(self, start: Any = None, stop: Any = None) -> None:
        part = self._part(start, stop)
        if not self._complete:
            self._hide(part)
        for address, _ in [*self._known_entries(part)]:
            self._remove(address)

    def async_range(
        self, start: Any = None, stop: Any = None
    ) -> StateFuture[StateIterator[tuple[Any, Any]]]:
        return self._iterate(self._item, content=self._content_of(self._part(start, stop)))

    def async_first(
        self, start: Any = None, stop: Any = None
    ) -> StateFuture[tuple[Any, Any] | None]:
        return self._async_first_of(self._part(start, stop))

    def async_last(
        self, start: Any = None, stop: Any = None
    ) -> StateFuture[tuple[Any, Any] | None]:
        return self._async_first_of(self._part(start, stop, descending=True))

    def async_remove_range(self, start: Any = None, stop: Any = None) -> StateFuture[None]:
        self.remove_range(start, stop)
        return self._write()

    def changes(self) -> Changes:
        self._find_removed()
        return super().changes()

    # Ranges.

    def _part(self, start: Any, stop: Any, *, descending: bool = False) -> KeyRange:
        low, high = self._bound(start), self._bound(stop)
        return attrs.evolve(self._whole, low=low, high=high, descending=descending)

    def _bound(self, key: Any) -> Any:
        if key is None:
            return None
        if type(key) is tuple and len(key) < len(self._beginnings):
            codec = self._beginnings[len(key)]
            key = codec.admit(key)
            return key if codec.address is None else codec.address(key)
        return self._addressed(key)

    def _first_of(self, part: KeyRange) -> tuple[Any, Any] | None:
        entries = self._in_memory(part)
        if entries is not None:
            return self._seen_last(up_to(entries, self._shows))
        self._waits()
        return self._seen_last(*load_up_to(None, [(self._scanned(part), self._shows)]))

    def _async_first_of(self, part: KeyRange) -> StateFuture[tuple[Any, Any] | None]:
        entries = self._in_memory(part)
        if entries is not None:
            return self._answer(self._seen_last(up_to(entries, self._shows)))
        namespace, wanted = self._namespace, (self._scanned(part), self._shows)

        def arrive(passed: list[Any]) -> Any:
            return self._within(namespace, lambda: self._seen_last(passed))

        return self._request_of(load_up_to, load_up_to, None, wanted, arrive)

    def _seen_last(self, passed: list[tuple[Any, Any]]) -> tuple[Any, Any] | None:
        """Return the last of some entries, the only one that a read sees; ``None`` without one."""
        found = self._read(passed).elements
        return self._item(found[-1]) if found else None

    # Contents.

    def _content(self) -> Content:
        return self._content_of(self._whole)

    def _content_of(self, part: KeyRange) -> Content:
        entries = self._in_memory(part)
        return self._scanned(part) if entries is None else Content([*entries])

    def _in_memory(self, part: KeyRange) -> Iterator[tuple[Any, Any]] | None:
        """Return the entries in a range; ``None`` if some of them may have to be read."""
        if self._complete:
            return self._known_entries(part)
        change: SortedMapChange | None = self._dirty.get(self._context._key)
        if change is None or not change.cleared:
            return None
        return (entry for entry in change.entries.between(part) if entry[1] is not ABSENT)

    def _known_entries(self, part: KeyRange) -> Iterator[tuple[Any, Any]]:
        """Return the known entries in a range.

        In an incomplete space, removed ones are included.
        """
        entries = self._cells.get(self._context._key)
        if entries is None:
            return iter(())
        if entries.__class__ is not OrderedEntries:
            entries = OrderedEntries(entries, self._whole.rank)
            self._cells[self._context._key] = entries
        found: Iterator[tuple[Any, Any]] = entries.between(part)
        return found

    def _scanned(self, part: KeyRange) -> ScannedContent:
        """Return the entries in a range of a map that is not in memory."""
        context = self._context
        change: SortedMapChange | None = self._dirty.get(context._key)
        written = [] if change is None else [*change.entries.between(part)]
        added = [entry for entry in written if entry[1] is not ABSENT]
        hidden = None
        if change is not None and (written or change.removed):
            hidden = _without(frozenset([address for address, _ in written]), change.removed)
        scan = self._table.scan_range(self._namespace, context._group, context._key, part)
        return ScannedContent(scan, hidden, added, part)

    # Changes.

    def _new_change(self, *, cleared: bool = False) -> MapChange:
        if self._complete:
            return super()._new_change(cleared=cleared)
        entries = OrderedEntries(rank=self._whole.rank)
        return SortedMapChange(self._context._group, cleared, entries)

    def _hide(self, part: KeyRange) -> None:
        """Remove the stored entries in a range, whichever they are."""
        change = self._change()
        assert isinstance(change, SortedMapChange)  # as `_new_change` made it
        if not change.cleared:
            kept = [one for one in change.removed if not part.covers(one)]
            change.removed = (*kept, part)

    def _find_removed(self) -> None:
        """Replace removed ranges by the entries that are stored there."""
        removed = [
            (change, self._table.scan_range(namespace, change.group, key, part))
            for namespace, space in self.spaces.items()
            if not space.complete
            for key, change in space.dirty.items()
            for part in change.removed
        ]
        if not removed:
            return
        found = self._scheduler.reads.executor().map(self._addresses, [scan for _, scan in removed])
        for (change, _), addresses in zip(removed, found, strict=True):
            for address in addresses:
                change.entries.setdefault(address, ABSENT)
            change.removed = ()

    def _addresses(self, scan: Scan) -> list[Any]:
        pages = scan.pages(self._host.settings.page_size)
        return [address for page in pages for address, _ in page]


def _without(written: frozenset[Any], removed: tuple[KeyRange, ...]) -> Filter:
    """Return a filter that leaves out the entries written or removed since."""
    if not removed:
        return lambda entries: [entry for entry in entries if entry[0] not in written]
    return lambda entries: [
        entry
        for entry in entries
        if entry[0] not in written and not any(part.holds(entry[0]) for part in removed)
    ]
