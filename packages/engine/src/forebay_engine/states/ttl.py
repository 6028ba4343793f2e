"""Time to live: cells are stored as ``(time, value)``, and one policy decides what reads see.

The policy is the same for a point state's cell, a list's element and a map's entry, and implements
the modes. The classes here handle the shapes: where a cell is stored, and how it is written back.
`with_ttl` combines one of them with a kind of state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.iteration import Content, ScannedContent, identity
from forebay_engine.execution.request_futures import ReadPromise
from forebay_engine.states.base import BoundTable, KeyedState
from forebay_engine.states.list import KeyedListState
from forebay_engine.states.map import EntriesState
from forebay_engine.states.reducing import MergingState
from forebay_engine.states.value import KeyedValueState
from forebay_engine.timers.watermark import NEVER
from forebay_state_api.contract.changes import ABSENT, Space
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.ttl import StateTtlConfig, StateVisibility, UpdateType

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.metrics.engine import EngineMetrics

_log = logging.getLogger(__name__)
_time_of: Final = itemgetter(0)


class TtlPolicy:
    """Applies a TTL to cells, elements and entries, at the time of one micro-batch."""

    __slots__ = ("_counters", "drops", "now", "plain_after", "shows", "until", "writes")

    def __init__(self, ttl: StateTtlConfig, now_us: int, counters: EngineMetrics) -> None:
        self.now: Final = now_us
        """The time of writes."""
        self.until: Final = ttl.expiry.until_us(now_us)
        """Data with this time or an older one have expired."""
        renews = ttl.update_type is UpdateType.ON_READ_AND_WRITE
        self.plain_after: Final = NEVER if renews else self.until
        """A read of a later cell leaves it unchanged; a read of an older live cell renews it."""
        self.shows: Final = ttl.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        """Whether a read shows an expired cell that is still there."""
        self._counters: Final = counters
        self.drops: Final = ttl.cleans_on_read or self.shows
        """Whether a read removes an expired cell."""
        self.writes: Final = renews or self.drops
        """Whether a read may change the cell."""

    def seen(self, cell: Any) -> tuple[Any, Any]:
        """Return a read's result, and the cell to store instead; ``None`` if it is unchanged."""
        if cell is ABSENT or cell[0] > self.plain_after:
            return cell, None
        if cell[0] > self.until:
            return cell, (self.now, cell[1])
        self._counters.values_expired += 1
        return cell if self.shows else ABSENT, ABSENT if self.drops else None

    def seen_all(self, cells: list[Any]) -> tuple[list[Any], list[Any] | None]:
        """Return a read's results for several cells, and the cells to store.

        Returns ``None`` if they are unchanged.
        """
        if min(map(_time_of, cells), default=NEVER) > self.plain_after:
            return cells, None
        visible: list[Any] = []
        left: list[Any] = []
        changed = False
        for cell in cells:
            seen, instead = self.seen(cell)
            if seen is not ABSENT:
                visible.append(seen)
            if instead is None:
                left.append(cell)
                continue
            changed = True
            if instead is not ABSENT:
                left.append(instead)
        return visible, left if changed else None

    def live(self, cell: Any) -> Any:
        """Return the cell unless it has expired, for uses that neither show nor change it."""
        return ABSENT if cell is ABSENT or cell[0] <= self.until else cell


class _TtlCells(KeyedState):
    """The part of `with_ttl` that all states share."""

    __slots__ = ()

    _policy: TtlPolicy
    _now: int
    """The policy's time, as `TtlPolicy.now`."""
    _plain_after: int
    """The policy's limit, as `TtlPolicy.plain_after`."""

    def has_content(self, stored: Any) -> bool:
        return self._policy.live(stored) is not ABSENT

    def _live_of(self, cells: Iterable[Any]) -> list[Any]:
        until = self._policy.until
        return [cell for cell in cells if cell[0] > until]

    def _log_dropped(self) -> None:
        _log.debug(
            "ttl: dropped expired data of state %r, operator %r",
            self._spec.name,
            self._context._operator_uid,
        )


class TtlValueState(_TtlCells, KeyedValueState):
    """`ValueState` with TTL: an expired value reads as the default, as an unset one does."""

    __slots__ = ()

    def value(self) -> Any:
        stored = self._cells.get(self._context._key, ABSENT)
        if stored is ABSENT:
            stored = self._fetch()
            if stored is ABSENT:
                return self._seen(ABSENT)
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
        if stored is ABSENT:
            if self._known_absent():
                return self._answer(self._seen(ABSENT))
            namespace = self._namespace
            return self._request(
                lambda value: self._within(namespace, lambda: self._read_late(value))
            )
        if stored[0] > self._plain_after:
            return self._answer(stored[1] if self._hand_out is None else self._hand_out(stored[1]))
        return self._answer(self._read(stored))

    def async_update(self, value: Any) -> StateFuture[None]:
        self.update(value)
        return self._write()

    def _read_late(self, stored: Any) -> Any:
        """Return the value of an answer; leave the cell as it is if it was changed since."""
        if self._context._key not in self._dirty:
            return self._read(stored)
        live = self._policy.live(stored)
        return self._seen(ABSENT if live is ABSENT else live[1])

    def _read(self, stored: Any) -> Any:
        """Return a read's result for the current key's cell, after dropping or renewing it."""
        seen, left = self._policy.seen(stored)
        if left is ABSENT:
            self._log_dropped()
            self.clear()
        elif left is not None:
            context = self._context
            self._cells[context._key] = left
            self._dirty[context._key] = context._group
        return self._seen(ABSENT if seen is ABSENT else seen[1])


class TtlMergingState(_TtlCells, MergingState):
    """Merging states with TTL: an addition to an expired cell starts afresh."""

    __slots__ = ()

    def get(self) -> Any:
        context = self._context
        return self._read(self._space(), context._key, context._group, self._cell())

    def async_get(self) -> StateFuture[Any]:
        if self._merges:
            self._end_merge()
        context = self._context
        space, key, group = self._space(), context._key, context._group
        cell = space.cells.get(key, ABSENT)
        if (cell is ABSENT or self._pending) and self._must_defer():
            return self._defer(
                lambda: self._read(space, key, group, space.cells.get(key, ABSENT)), ReadPromise
            )
        return self._answer(self._read(space, key, group, cell))

    def _merged(self, cell: Any, value: Any) -> Any:
        return super()._merged(self._live(cell), value)

    def _live(self, cell: Any) -> Any:
        return ABSENT if cell is ABSENT or cell[0] <= self._policy.until else cell[1]

    def _store(self, space: Space, key: Any, group: int, cell: Any) -> None:
        space.cells[key] = (self._now, self._admit(cell))
        space.dirty[key] = group

    def _read(self, space: Space, key: Any, group: int, cell: Any) -> Any:
        seen, left = self._policy.seen(cell)
        result = self._result(ABSENT if seen is ABSENT else seen[1])
        if left is None:
            return result
        space.dirty[key] = group
        space.cells[key] = left
        if left is ABSENT:
            self._log_dropped()
            if space.complete:
                del space.cells[key]
        return result


class TtlListState(_TtlCells, KeyedListState):
    """`ListState` with TTL: every element has its own time."""

    __slots__ = ()

    def get(self) -> list[Any]:
        return self._seen(self._read(self._known()))

    def _admitted(self, method: str, values: Iterable[Any]) -> list[Any]:
        now = self._now
        return [(now, element) for element in super()._admitted(method, values)]

    def add(self, value: Any) -> None:
        if value is None:
            raise self._refused("add(None)")
        self._append([(self._now, self._admit(value))])

    def _shape(self) -> Any:
        hand_out = self._hand_out
        if hand_out is None:
            return lambda stored: stored[1]
        return lambda stored: hand_out(stored[1])

    def _mergeable(self, elements: list[Any]) -> list[Any]:
        return self._live_of(elements)

    def async_get(self) -> StateFuture[StateIterator[Any]]:
        if self._pending:
            self._end_merge()
        known = self._complete or self._context._key in self._cells
        if not known and self._policy.writes:
            # Only the elements show what a read changes, so they are loaded.
            return self._defer(self._loaded, ReadPromise)
        content = self._content()
        if content.in_memory:
            return self._iterator(Content(self._read(content.elements)), self._shape())
        assert isinstance(content, ScannedContent)  # the only other content
        return self._iterator(content.only(self._live_of), self._shape())

    def _loaded(self) -> StateIterator[Any]:
        """Iterate the current elements, which are in memory."""
        return self._loaded_iterator(Content(self._read([*self._known()])), self._shape())

    def _read(self, elements: list[Any]) -> list[Any]:
        """Return a read's result for ``elements``, after dropping or renewing some."""
        visible, left = self._policy.seen_all(elements)
        if left is not None:
            if len(left) < len(elements):
                self._log_dropped()
            self._replace(left)
        return visible


class TtlEntriesState(_TtlCells, EntriesState):
    """State that is stored as a map with TTL: every entry has its own time."""

    __slots__ = ()

    def _admitted(self, value: Any) -> Any:
        return (self._now, self._admit(value))

    def _seen(self, stored: Any) -> Any:
        return super()._seen(ABSENT if stored is ABSENT else stored[1])

    def _entry(self, address: Any) -> Any:
        known, stored = self._known_entry(address)
        return self._touched(address, stored if known else self._fetched(address))

    def _async_entry(self, address: Any, see: Callable[[Any], Any]) -> StateFuture[Any]:
        namespace = self._namespace
        return super()._async_entry(
            address,
            lambda stored: see(
                self._within(namespace, lambda: self._touched_late(address, stored))
            ),
        )

    def _touched_late(self, address: Any, stored: Any) -> Any:
        """Return the value of an answer after a write of the same record, unchanged."""
        known, current = self._known_entry(address)
        if not known or current is stored:
            return self._touched(address, stored)
        return self._policy.live(stored)

    def _touched(self, address: Any, stored: Any) -> Any:
        """Return a read's result for an entry, after dropping or renewing it."""
        if stored is ABSENT or stored[0] > self._plain_after:
            return stored
        seen, left = self._policy.seen(stored)
        if left is ABSENT:
            self._log_dropped()
            self._remove(address)
        elif left is not None:
            self._put(address, left)
        return seen

    def _iterate(
        self,
        shape: Callable[[tuple[Any, Any]], Any],
        ask: Callable[[StateIterator[Any]], Any] = identity,
        content: Content | None = None,
    ) -> StateFuture[Any]:
        if content is None:
            content = self._content()
        if content.in_memory:
            return self._iterator(self._read(content.elements), shape, ask)
        assert isinstance(content, ScannedContent)  # the only other content
        if not self._policy.writes:
            return self._iterator(content.only(self._unexpired), shape, ask)
        # Only the entries show what a read changes, so they are loaded.
        namespace = self._namespace

        def loaded(entries: list[Any]) -> Any:
            visible = self._within(namespace, lambda: self._read(entries))
            return ask(self._loaded_iterator(visible, shape))

        return self._load(content, loaded)

    def _live_entries(self, content: Content | None = None) -> Iterable[tuple[Any, Any]]:
        return self._read(list(super()._live_entries(content))).elements

    def _shows(self, stored: Any) -> bool:
        return self._policy.seen(stored)[0] is not ABSENT

    def _read(self, entries: list[Any]) -> Content:
        """Return the entries that a read sees; drop or renew each unless it was written since."""
        return Content([entry for entry in entries if self._touched_late(*entry) is not ABSENT])

    def _unexpired(self, entries: list[Any]) -> list[Any]:
        until = self._policy.until
        return [entry for entry in entries if entry[1][0] > until]


_IN_FRONT: Final[Mapping[type[KeyedState], type[KeyedState]]] = {
    KeyedValueState: TtlValueState,
    MergingState: TtlMergingState,
    KeyedListState: TtlListState,
    EntriesState: TtlEntriesState,
}


_made: Final[dict[type[KeyedState], type[KeyedState]]] = {}


def with_ttl(state: type[KeyedState]) -> type[KeyedState]:
    """Return ``state``'s class for descriptors with a TTL; the same class each time."""
    if state not in _made:
        _made[state] = _class_with_ttl(state)
    return _made[state]


def _class_with_ttl(state: type[KeyedState]) -> type[KeyedState]:
    front = next(ttl for base, ttl in _IN_FRONT.items() if issubclass(state, base))

    def begin(self: Any, host: StateHost, bound: BoundTable) -> None:
        state.__init__(self, host, bound)
        assert bound.descriptor.ttl is not None
        policy = self._policy = TtlPolicy(
            bound.descriptor.ttl, host.now_us, host.scheduler.counters
        )
        self._now, self._plain_after = policy.now, policy.plain_after

    members = {"__slots__": ("_now", "_plain_after", "_policy"), "__init__": begin}
    return type(f"Ttl{state.__name__}", (front, state), members)
