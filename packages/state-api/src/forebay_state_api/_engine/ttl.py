"""The five kinds with a time to live: stored is ``(last access in µs, value)``.

The clock is the micro-batch's own time. A cell expires when ``last access + ttl <= now``. A read
drops what has expired, unless clean-up on read is switched off; with
``RETURN_EXPIRED_IF_NOT_CLEANED_UP`` it hands it out that once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from forebay_state_api._engine.keyed import KeyedState
from forebay_state_api._engine.lists import KeyedListState
from forebay_state_api._engine.maps import KeyedMapState
from forebay_state_api._engine.merging import KeyedAggregatingState, KeyedReducingState
from forebay_state_api._engine.pages import Content, ScannedContent, identity, load_whole
from forebay_state_api._engine.point import KeyedValueState
from forebay_state_api._engine.times import NEVER
from forebay_state_api.backend import ABSENT, ListChange, Space
from forebay_state_api.futures import ReadPromise, StateFuture
from forebay_state_api.iterators import StateIterator
from forebay_state_api.ttl import StateTtlConfig, StateVisibility, UpdateType

if TYPE_CHECKING:
    from forebay_state_api._engine.engine import Engine

_log = logging.getLogger(__name__)


class _Clock:
    """What a descriptor's TTL says about stored cells, at the time of one micro-batch."""

    __slots__ = ("cleans", "now", "refreshes", "returns_expired", "ttl_us")

    def __init__(self, engine: Engine, ttl: StateTtlConfig) -> None:
        self.now = engine.now_us
        self.ttl_us = ttl.ttl_us
        self.refreshes = ttl.update_type is UpdateType.ON_READ_AND_WRITE
        self.returns_expired = ttl.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        self.cleans = ttl.cleans_on_read or self.returns_expired

    def expired(self, stored: tuple[int, Any]) -> bool:
        return stored[0] + self.ttl_us <= self.now

    @property
    def writes_on_read(self) -> bool:
        """Whether a read may renew or drop what it sees."""
        return self.refreshes or self.cleans


def _clock_of(state: KeyedState) -> _Clock:
    ttl = state._descriptor.ttl
    assert ttl is not None  # these classes are made for descriptors with a TTL
    return _Clock(state._engine, ttl)


def _load(engine: Engine, content: Content, arrive: Callable[[list[Any]], Any]) -> StateFuture[Any]:
    """``arrive`` of all elements of a content that is not in memory, read on a backend thread."""
    wanted = (content, engine.settings.page_size)
    # Not for the state as their owner: they would go out in one call with its reads of cells.
    return engine.scheduler.read(load_whole, load_whole, None, wanted, arrive)


class TtlValueState(KeyedValueState):
    """`ValueState` with TTL. The default of the descriptor is not used."""

    __slots__ = ("_clock", "_now", "_plain_after")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        clock = self._clock = _clock_of(self)
        self._now = clock.now
        self._plain_after = NEVER if clock.refreshes else clock.now - clock.ttl_us
        """A read of what was written later is that of a state without TTL."""

    def value(self) -> Any:
        stored = self._cells.get(self._context._key, ABSENT)
        if stored is ABSENT:
            stored = self._fetch()
            if stored is ABSENT:
                return None
        if stored[0] > self._plain_after:
            return stored[1] if self._hand_out is None else self._hand_out(stored[1])
        return self._read(stored)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        context = self._context
        key = context._key
        self._cells[key] = (self._now, self._admit(value))
        self._dirty[key] = context._group

    def async_value(self) -> StateFuture[Any]:
        stored = self._cells.get(self._context._key, ABSENT)
        if stored is ABSENT and not self._known_absent():
            namespace = self._namespace
            return self._request(
                lambda value: self._within(namespace, lambda: self._read_late(value))
            )
        return self._answer(self._read(stored))

    def async_update(self, value: Any) -> StateFuture[None]:
        self.update(value)
        return self._write()

    def _store(self, value: Any) -> None:
        context = self._context
        self._cells[context._key] = (self._now, value)
        self._dirty[context._key] = context._group

    def _read_late(self, stored: Any) -> Any:
        """A reply that came after a write of the same record reads without touching the cell."""
        if self._cells.get(self._context._key, ABSENT) is stored:
            return self._read(stored)
        return None if stored is ABSENT or self._clock.expired(stored) else self._seen(stored[1])

    def _read(self, stored: Any) -> Any:
        if stored is ABSENT:
            return None
        clock = self._clock
        if not clock.expired(stored):
            if clock.refreshes:
                self._store(stored[1])
            return self._seen(stored[1])
        if clock.cleans:
            _log_dropped(self)
            self.clear()
        return self._seen(stored[1]) if clock.returns_expired else None


class TtlListState(KeyedListState):
    """`ListState` with TTL: every element has its own time."""

    __slots__ = ("_clock",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = _clock_of(self)

    def get(self) -> list[Any]:
        known = self._known()
        visible = self._visible(known)
        self._after_read(known)
        return self._seen(visible)

    def _admitted(self, method: str, values: Iterable[Any]) -> list[Any]:
        now = self._clock.now
        return [(now, element) for element in super()._admitted(method, values)]

    def add(self, value: Any) -> None:
        if value is None:
            raise self._refused("add(None)")
        self._append([(self._clock.now, self._admit(value))])

    def _shape(self) -> Any:
        hand_out = self._hand_out
        if hand_out is None:
            return lambda stored: stored[1]
        return lambda stored: hand_out(stored[1])

    def _visible(self, elements: list[Any]) -> list[Any]:
        if self._clock.returns_expired:
            return list(elements)
        return [stored for stored in elements if not self._clock.expired(stored)]

    def _after_read(self, elements: list[Any]) -> None:
        """Drop what has expired, where reads clean up, and renew the rest, where they renew.

        The elements that a record adds after the read change neither: the same is stored whether
        the record waited for the read or not.
        """
        clock = self._clock
        live = [stored for stored in elements if not clock.expired(stored)]
        drops = clock.cleans and len(live) < len(elements)
        if drops:
            _log_dropped(self)
            elements = live
        if clock.refreshes and live:
            keeps = len(live) < len(elements)
            elements = [
                stored if keeps and clock.expired(stored) else (clock.now, stored[1])
                for stored in elements
            ]
        elif not drops:
            return
        self._replace(elements)

    def _mergeable(self, elements: list[Any]) -> list[Any]:
        return [stored for stored in elements if not self._clock.expired(stored)]

    def async_get(self) -> StateFuture[StateIterator[Any]]:
        content = super()._content()
        if content.in_memory:
            return self._iterator(self._read(content.elements), self._shape())
        assert isinstance(content, ScannedContent)  # the only other content
        if not self._clock.writes_on_read:
            return self._iterator(content.only(self._visible), self._shape())
        # What a read changes can be known only from the elements: they are loaded.
        namespace, appended = self._namespace, len(content.elements)
        return _load(
            self._engine,
            content,
            lambda elements: self._within(namespace, lambda: self._loaded(elements, appended)),
        )

    def _loaded(self, elements: list[Any], appended: int) -> StateIterator[Any]:
        """Go over ``elements``, the last ``appended`` of which were not stored at the request."""
        change: ListChange | None = self._dirty.get(self._context._key)
        if self._context._key in self._cells or (change is not None and change.replaced):
            # Another request of the record was first: it has renewed, dropped or replaced them.
            live = [stored for stored in elements if not self._clock.expired(stored)]
            return self._loaded_iterator(Content(live), self._shape())
        visible = self._visible(elements)
        later = [] if change is None else change.elements[appended:]
        known = self._cells[self._context._key] = [*elements, *later]
        self._after_read(known)
        return self._loaded_iterator(Content(visible), self._shape())

    def _read(self, elements: list[Any]) -> Content:
        visible = Content(self._visible(elements))
        self._after_read(elements)
        return visible


class TtlMapState(KeyedMapState):
    """`MapState` with TTL: every entry has its own time."""

    __slots__ = ("_clock",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = _clock_of(self)

    def get(self, key: Any) -> Any:
        address = self._addressed(key)
        return self._seen(self._touched(address, self._entry(address)))

    def contains(self, key: Any) -> bool:
        address = self._addressed(key)
        return self._touched(address, self._entry(address)) is not ABSENT

    def async_get(self, key: Any) -> StateFuture[Any]:
        address = self._addressed(key)
        return self._async_touched(address, self._seen)

    def async_contains(self, key: Any) -> StateFuture[bool]:
        address = self._addressed(key)
        return self._async_touched(address, self._is_live)

    def _admitted(self, value: Any) -> Any:
        return (self._clock.now, self._admit(value))

    def _seen(self, stored: Any) -> Any:
        return super()._seen(ABSENT if stored is ABSENT else stored[1])

    def _async_touched(self, address: Any, see: Callable[[Any], Any]) -> StateFuture[Any]:
        """``see`` of what a read sees of an entry; as `_touched`, once the entry is there."""
        namespace = self._namespace
        return self._async_entry(
            address,
            lambda stored: see(
                self._within(namespace, lambda: self._touched_late(address, stored))
            ),
        )

    def _touched_late(self, address: Any, stored: Any) -> Any:
        """A reply that came after a write of the same record leaves the entry alone."""
        known, current = self._known_entry(address)
        if not known or current is stored:
            return self._touched(address, stored)
        return ABSENT if stored is ABSENT or self._clock.expired(stored) else stored

    def _touched(self, address: Any, stored: Any) -> Any:
        """What a read sees of an entry, after it dropped or renewed it."""
        if stored is ABSENT:
            return ABSENT
        clock = self._clock
        if not clock.expired(stored):
            if clock.refreshes:
                self._put(address, (clock.now, stored[1]))
            return stored
        if clock.cleans:
            _log_dropped(self)
            self._remove(address)
        return stored if clock.returns_expired else ABSENT

    def _iterate(
        self,
        shape: Callable[[tuple[Any, Any]], Any],
        ask: Callable[[StateIterator[Any]], Any] = identity,
    ) -> StateFuture[Any]:
        content = self._content()
        if content.in_memory:
            return self._iterator(self._read(content.elements), shape, ask)
        assert isinstance(content, ScannedContent)  # the only other content
        if not self._clock.writes_on_read:
            return self._iterator(content.only(self._unexpired), shape, ask)
        # What a read changes can be known only from the entries: they are loaded.
        namespace = self._namespace

        def loaded(entries: list[Any]) -> Any:
            visible = self._within(namespace, lambda: self._read(entries))
            return ask(self._loaded_iterator(visible, shape))

        return _load(self._engine, content, loaded)

    def _live_entries(self) -> Iterable[tuple[Any, Any]]:
        return self._read(list(super()._live_entries())).elements

    def _read(self, entries: list[Any]) -> Content:
        """The entries that a read sees; each is dropped or renewed unless it was written since."""
        return Content([entry for entry in entries if self._touched_late(*entry) is not ABSENT])

    def _unexpired(self, entries: list[Any]) -> list[Any]:
        if self._clock.returns_expired:
            return entries
        return [entry for entry in entries if not self._clock.expired(entry[1])]


class _TtlMerging:
    """What TTL adds to a merging state: an expired cell counts as none.

    It stands before that state's class among the bases, which is what its ``super()`` is.
    """

    __slots__ = ()

    _clock: _Clock

    def _merged(self, cell: Any, value: Any) -> Any:
        return super()._merged(self._live(cell), value)  # type: ignore[misc]  # of the state

    def _live(self, cell: Any) -> Any:
        return ABSENT if cell is ABSENT or self._clock.expired(cell) else cell[1]

    def _result(self, cell: Any) -> Any:
        if cell is ABSENT or (self._clock.expired(cell) and not self._clock.returns_expired):
            return super()._result(ABSENT)  # type: ignore[misc]  # of the state
        return super()._result(cell[1])  # type: ignore[misc]  # of the state

    def _store(self, space: Space, key: Any, group: int, cell: Any) -> None:
        state: Any = self
        space.cells[key] = (self._clock.now, state._admit(cell))
        space.dirty[key] = group

    def _after_read(self, space: Space, key: Any, group: int) -> None:
        """Drop an expired cell or renew a live one, as the TTL says."""
        cell = space.cells.get(key, ABSENT)
        if cell is ABSENT:
            return
        if not self._clock.expired(cell):
            if self._clock.refreshes:
                self._store(space, key, group, cell[1])
        elif self._clock.cleans:
            _log_dropped(self)
            if space.complete:
                del space.cells[key]
            else:
                space.cells[key] = ABSENT
            space.dirty[key] = group

    def get(self) -> Any:
        state: Any = self
        result = super().get()  # type: ignore[misc]  # of the state
        self._after_read(state._space(), state._context._key, state._context._group)
        return result

    def async_get(self) -> StateFuture[Any]:
        state: Any = self
        space, key, group = state._space(), state._context._key, state._context._group

        def read() -> Any:
            result = self._result(space.cells.get(key, ABSENT))
            self._after_read(space, key, group)
            return result

        cell = space.cells.get(key, ABSENT)
        if (cell is ABSENT or state._pending) and state._must_defer():
            deferred: StateFuture[Any] = state._defer(read, ReadPromise)
            return deferred
        answer: StateFuture[Any] = state._answer(read())
        return answer


class TtlReducingState(_TtlMerging, KeyedReducingState):
    """`ReducingState` with TTL: an addition to an expired cell starts afresh."""

    __slots__ = ("_clock",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = _clock_of(self)


class TtlAggregatingState(_TtlMerging, KeyedAggregatingState):
    """`AggregatingState` with TTL: an addition to an expired cell starts afresh."""

    __slots__ = ("_clock",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = _clock_of(self)


def _log_dropped(state: Any) -> None:
    _log.debug(
        "ttl: dropped expired data of state %r, operator %r",
        state._spec.name,
        state._context._operator_uid,
    )
