"""Fire due timers, in time order, as records of their keys."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.engine.timers.cells import (
    LEAF_BITS,
    Directory,
    Timer,
    TimerCells,
    apply_directories,
    timer_specs,
)
from forebay_state_api.engine.timers.watermark import (
    ALWAYS,
    DOMAINS,
    EPOCH,
    MICROSECOND,
    NEVER,
    TimerClocks,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.timers import TimeDomain, Timers
from forebay_state_api.keys import key_group_range_of

if TYPE_CHECKING:
    from forebay_state_api.contract.backend import Table
    from forebay_state_api.engine.host import StateHost

Entry = tuple[datetime, Any, int]
"""An entry for `RecordMethod.run`: the timer's time as its row, its key and key group."""


def us_of(at: datetime) -> int:
    """Return µs since the epoch; refuse a value that is not an instant."""
    try:
        return (at - EPOCH) // MICROSECOND
    except TypeError:
        if not isinstance(at, datetime):
            raise TypeError(
                "a timer's time is a datetime with a time zone, such as "
                f"ctx.timers.processing_time + timedelta(minutes=1), not {at!r}"
            ) from None
    raise ValueError(f"a timer's time needs a time zone: {at!r} may be many instants")


def instant(us: int) -> datetime:
    """Inverse of `us_of`."""
    return EPOCH + timedelta(microseconds=us)


class DomainTimers:
    """The timers of one domain, and those that are due in this micro-batch."""

    def __init__(
        self,
        host: StateHost,
        number: int,
        cells: TimerCells,
        directory: Directory,
        times: TimerClocks,
    ) -> None:
        self.domain: Final = DOMAINS[number]
        self.directory: Final = directory
        self._host: Final = host
        self._number: Final = number
        self._cells: Final = cells
        self._address: Final = cells.address
        limits = {TimeDomain.EVENT_TIME: times.watermark_us}
        self._until_us: Final = limits.get(self.domain, times.now_us)
        """Timers up to this time are due."""
        self._firing = False
        """Whether ``on_timer`` is running, and not a record."""
        self._live: set[Any] = set()
        """The addresses of loaded or registered timers that have yet to fire."""
        self._fresh: list[tuple[int, int, Any, int]] = []
        """A heap of registered timers that are due: time, number, key, key group."""
        self._stored: Final[set[Any]] = set()
        """The addresses of registered timers that were also stored."""
        self._deferred: Final[dict[Any, tuple[int, Any, int]]] = {}
        """Timers registered by timers and due after the rows, by address."""
        self._defers = False
        self._numbers: Final = itertools.count()
        self._last: Final[dict[Any, int]] = {}
        """Key → the time of its timer that fired last."""
        self._next_us = times.next_us[number]
        """A lower bound for stored timers that were not loaded."""
        self._earliest_us = NEVER
        """A lower bound for the other timers, including registered ones."""
        self._emptied: Final[set[tuple[int, int]]] = set()

    # -- registering --------------------------------------------------------------------------

    def register(self, at_us: int, key: Any, group: int) -> None:
        entry = (at_us, key) if self._address is None else self._address((at_us, key))
        if entry in self._live:
            return
        cell = (group, self._number, at_us >> LEAF_BITS)
        if at_us > self._until_us or (self._firing and at_us <= self._last.get(key, ALWAYS)):
            self._cells.put(cell, entry)
            if at_us < self._earliest_us:  # noqa: PLR1730 - a call for each timer costs more
                self._earliest_us = at_us
        elif self._defers:
            self._deferred[entry] = (at_us, key, group)
        else:
            self._cells.put(cell, entry)
            self._live.add(entry)
            self._stored.add(entry)
            heapq.heappush(self._fresh, (at_us, next(self._numbers), key, group))

    def delete(self, at_us: int, key: Any, group: int) -> None:
        entry = (at_us, key) if self._address is None else self._address((at_us, key))
        self._cells.remove((group, self._number, at_us >> LEAF_BITS), entry)
        self._live.discard(entry)
        if self._deferred:
            self._deferred.pop(entry, None)

    def defer(self) -> None:
        """Hold back timers that are registered and due, until `release`."""
        self._defers = True

    def release(self) -> None:
        """Register the timers that were held back."""
        self._defers = False
        for at_us, key, group in self._deferred.values():
            self.register(at_us, key, group)
        self._deferred.clear()

    # -- firing -------------------------------------------------------------------------------

    @property
    def has_stored(self) -> bool:
        """Whether some stored timers may be due."""
        return self._next_us <= self._until_us

    @property
    def has_registered(self) -> bool:
        """Whether some registered timers are due."""
        return bool(self._fresh)

    def entries(self) -> Iterator[Entry]:
        """Yield due timers, including those registered meanwhile; at the end all have fired."""
        self._firing = True
        if self.has_stored:
            for leaf, groups in self.directory.due(self._until_us).items():
                timers, cleared = self._loaded(leaf, groups)
                yield from self._merged(timers, leaf + 1 << LEAF_BITS, cleared=cleared)
            self._next_us = self.directory.after(self._until_us)
        while True:
            yield from self._merged((), NEVER, cleared=False)
            self._host.scheduler.drain()
            if not self._fresh:
                break
        self._firing = False
        self._last.clear()

    def _loaded(self, leaf: int, groups: Sequence[int]) -> tuple[Sequence[Timer], bool]:
        """Return a leaf's due timers, and whether they were all of its timers and were removed."""
        cells = [(group, self._number, leaf) for group in groups]
        timers = self._cells.load(cells, self._host.scheduler.executor)
        due = bisect.bisect_right(timers, self._until_us, key=itemgetter(0))
        later = timers[due:]
        if later:
            self._earliest_us = min(self._earliest_us, later[0][0])
        else:
            for cell in cells:
                self._cells.clear(cell)
        self._emptied.update((group, leaf) for group in {*groups} - {t[2] for t in later})
        timers = timers[:due]
        pairs = [(at_us, key) for at_us, key, _ in timers]
        self._live.update(pairs if self._address is None else map(self._address, pairs))
        return timers, not later

    def _merged(self, timers: Sequence[Timer], end_us: int, *, cleared: bool) -> Iterator[Entry]:
        """Yield loaded timers and timers registered meanwhile, before ``end_us``."""
        fresh, live, stored = self._fresh, self._live, self._stored
        address, last, deferred = self._address, self._last, self._deferred
        counters, scheduler = self._host.scheduler.counters, self._host.scheduler
        busy = scheduler.busy
        position, count = 0, len(timers)
        known_us, time = 0, EPOCH
        while True:
            if fresh and fresh[0][0] < (timers[position][0] if position < count else end_us):
                at_us, _, key, group = fresh[0]
                is_fresh = True
            elif position < count:
                at_us, key, group = timers[position]
                is_fresh = False
            else:
                return
            if busy and key in busy:
                # The running timer of this key may delete this one, or register another.
                scheduler.run_until(functools.partial(_is_free, busy, key))
                continue
            if is_fresh:
                heapq.heappop(fresh)
            else:
                position += 1
            entry = (at_us, key) if address is None else address((at_us, key))
            if entry not in live:
                continue
            live.remove(entry)
            if deferred:
                deferred.pop(entry, None)
            if not cleared or entry in stored:
                stored.discard(entry)
                self._cells.remove((group, self._number, at_us >> LEAF_BITS), entry)
            last[key] = at_us
            if at_us != known_us:
                known_us, time = at_us, EPOCH + timedelta(microseconds=at_us)
            counters.timers_fired += 1
            yield time, key, group

    # -- the end ------------------------------------------------------------------------------

    def update_directory(self) -> int:
        """Apply the micro-batch's changes; return a lower bound for all timers."""
        touched = self._cells.touched
        added = [(group, leaf) for group, number, leaf in touched if number == self._number]
        self.directory.update(added, self._emptied)
        self._emptied.clear()
        return min(self._next_us, self._earliest_us)


def _is_free(busy: Mapping[Any, Any], key: Any) -> bool:
    return key not in busy


class EngineTimers(Timers):
    """The timers of one subtask and micro-batch."""

    def __init__(self, host: StateHost, times: TimerClocks, *, has_event_time: bool) -> None:
        """Open the tables."""
        context = host.context
        self._context = context
        self._has_event_time: Final = has_event_time
        self._scheduler: Final = host.scheduler
        self.times: Final = times
        self.specs: Final = timer_specs(host.key_codec)
        self.tables: Final = [(spec, host.backend.table(spec)) for spec in self.specs]
        (_, timers), (_, self._directory) = self.tables
        self._cells: Final = self._make_cells(host, timers)
        groups = key_group_range_of(
            context.subtask_index, context.parallelism, context.max_parallelism
        )
        self._lines: Final = [
            self._make_line(host, number, Directory(self._directory, number, groups))
            for number in range(len(DOMAINS))
        ]
        self._event, self._processing = self._lines
        self._domain: TimeDomain | None = None
        self._due: Iterator[Entry] = self._entries()
        self.pending = any(line.has_stored for line in self._lines)
        """Whether `due` may yield timers."""
        if self.pending:
            self._processing.defer()

    def _make_cells(self, host: StateHost, table: Table) -> TimerCells:  # noqa: ARG002 - see `JournaledEngineTimers`
        return TimerCells(table, self.specs[0])

    def _make_line(self, host: StateHost, number: int, directory: Directory) -> DomainTimers:
        return DomainTimers(host, number, self._cells, directory, self.times)

    # -- for the function ---------------------------------------------------------------------

    @property
    def processing_time(self) -> datetime:
        us = self.times.now_us
        return EPOCH if us == NO_TIME else instant(us)

    @property
    def watermark(self) -> datetime | None:
        us = self.times.watermark_us
        return None if us == ALWAYS else instant(us)

    @property
    def domain(self) -> TimeDomain | None:
        return self._domain

    def register_processing_time(self, at: datetime) -> None:
        context = self._context
        key = context._key
        if key is NO_KEY:
            hash(NO_KEY)
        self._processing.register(us_of(at), key, context._group)

    def register_event_time(self, at: datetime) -> None:
        context = self._context
        if context._key is NO_KEY or not self._has_event_time:
            self._refuse()
        self._event.register(us_of(at), context._key, context._group)

    def delete_processing_time(self, at: datetime) -> None:
        context = self._context
        if context._key is NO_KEY:
            hash(NO_KEY)
        self._processing.delete(us_of(at), context._key, context._group)

    def delete_event_time(self, at: datetime) -> None:
        context = self._context
        if context._key is NO_KEY or not self._has_event_time:
            self._refuse()
        self._event.delete(us_of(at), context._key, context._group)

    def _refuse(self) -> NoReturn:
        if self._context._key is NO_KEY:
            hash(NO_KEY)
        raise ConfigurationError(
            f"operator {self._context.operator_uid!r}: event-time timers need event times; name "
            "their column with event_time= in keyed()"
        )

    # -- for the engine -----------------------------------------------------------------------

    @property
    def held(self) -> int:
        """The number of changes that `hand_over` would release."""
        return self._cells.held

    def due(self, at_most: int) -> Iterator[Entry]:
        """Yield the next timers to fire; call it again while `pending`."""
        return itertools.islice(self._due, at_most)

    def look_again(self) -> bool:
        """Return, after the last record, whether due timers were registered; `due` yields them."""
        if not self.pending and any(line.has_registered for line in self._lines):
            self._due, self.pending = self._entries(), True
        return self.pending

    def _entries(self) -> Iterator[Entry]:
        # Processing-time timers may register event-time timers that are due.
        for line in (self._event, self._processing, self._event):
            if line.has_stored or line.has_registered:
                self._domain = line.domain
                yield from line.entries()
        self._domain = None
        self._processing.release()
        self.pending = False

    def hand_over(self, open_keys: Collection[Any] = ()) -> None:
        """Pass the changes to the backend, except those to timers of ``open_keys``."""
        self._cells.hand_over(open_keys)

    def finish(self) -> TimerClocks:
        """Return the clocks for the version to store; call it after the last `hand_over`."""
        next_us = [line.update_directory() for line in self._lines]
        apply_directories(self._directory, [line.directory for line in self._lines])
        return attrs.evolve(self.times, next_us=next_us)


class NoTimers:
    """The timers of a function without ``on_timer``: every use raises an explanatory error."""

    def __init__(self, function: str) -> None:
        self._function = function

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigurationError(
            f"ctx.timers.{name}: {self._function} has no on_timer method; timers are for a "
            "KeyedProcessFunction or KeyedCoProcessFunction that defines one"
        )
