"""Fire due timers, in time order, as records of their keys."""

from __future__ import annotations

import bisect
import contextlib
import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from forebay_engine.timers.by_key import TimersByKey, TimerTime
from forebay_engine.timers.cells import (
    LEAF_BITS,
    Directory,
    Timer,
    TimerCells,
    apply_directories,
    timer_specs,
)
from forebay_engine.timers.watermark import ALWAYS, EPOCH, FIRST_US, MICROSECOND, NEVER, TimerClocks
from forebay_engine.versions.format.namespaces import (
    merged_namespaces,
    packed_namespace,
    unpacked_namespace,
)
from forebay_engine.versions.format.timer_tables import BY_KEY, DOMAINS
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.futures import StateFuture, combine_all
from forebay_state_api.job.timers import TimeDomain, Timers
from forebay_state_api.keys import key_group_range_of

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.contract.backend import Table
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.descriptors import StateDescriptor
    from forebay_state_api.metrics.engine import EngineMetrics

Entry = tuple[datetime, Any, int]
"""An entry for `RecordMethod.run`: the timer's time as its row, its key and key group."""
LAST_US: Final = (datetime.max.replace(tzinfo=EPOCH.tzinfo) - EPOCH) // MICROSECOND
"""The latest time that a ``datetime`` can be: the watermark at the end of event time."""


def us_of(at: datetime) -> int:
    """Return µs since the epoch; refuse a value that is not an instant."""
    try:
        since = at - EPOCH
        # Faster than a division by `MICROSECOND`.
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    except TypeError:
        if not isinstance(at, datetime):
            raise TypeError(
                "a timer's time is a datetime with a time zone, such as "
                f"ctx.timers.processing_time + timedelta(minutes=1), not {at!r}"
            ) from None
    raise ValueError(f"a timer's time needs a time zone: {at!r} may be many instants")


def timer_us(at: datetime) -> int:
    """Return µs since the epoch of a timer that may be registered: it fires with this time in UTC.

    Raises the errors of `us_of`, and `ValueError` outside the years that a ``datetime`` has.
    """
    at_us = us_of(at)
    if FIRST_US <= at_us <= LAST_US:
        return at_us
    raise ValueError(f"a timer's time is in the years 1 to 9999 in UTC, and {at} is not")


def instant(us: int) -> datetime:
    """Inverse of `us_of`."""
    return EPOCH + timedelta(microseconds=us)


class DomainTimers:
    """The timers of one domain, and the timers that are due in this micro-batch."""

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
        self._counters: Final = host.scheduler.counters
        self.number: Final = number
        self._cells: Final = cells
        self._address: Final = cells.address
        limits = {TimeDomain.EVENT_TIME: times.watermark_us}
        self._until_us = limits.get(self.domain, times.now_us)
        """Timers up to this time are due."""
        self._firing = False
        """Whether ``on_timer`` is running, and not a record."""
        self._live: set[Any] = set()
        """The addresses of loaded or registered timers that have yet to fire."""
        self._fresh: list[tuple[int, int, Timer]] = []
        """A heap of registered timers that are due: time, number, timer."""
        self._loaded: Sequence[Timer] = ()
        """The timers of the leaf that is firing."""
        self._stored: Final[set[Any]] = set()
        """The addresses of registered timers that were also stored."""
        self._deferred: Final[dict[Any, Timer]] = {}
        """Timers registered by timers and due after the rows, by address."""
        self._defers = False
        self.numbers: Final = itertools.count()
        self._last: Final[dict[Any, int]] = {}
        """Key → the time of its timer that fired last."""
        self._next_us = times.next_us[number]
        """A lower bound for stored timers that were not loaded."""
        self._earliest_us = NEVER
        """A lower bound for the other timers, including registered ones."""
        self._emptied: Final[set[tuple[int, int]]] = set()
        self.by_key: TimersByKey | None = None
        """The same timers by key, once they are kept."""

    # -- registering --------------------------------------------------------------------------

    def register(self, at_us: int, context: RuntimeContext) -> None:
        """Register a timer of the current key and namespace."""
        # The same as `_entry`, without the call.
        key, group, namespace = context._key, context._group, context._namespace
        if key is NO_KEY:
            hash(NO_KEY)
        entry = (at_us, key, b"" if namespace is None else packed_namespace(namespace))
        if self._address is not None:
            entry = self._address(entry)
        if entry in self._live:
            return
        counters = self._counters
        counters.timers_registered += 1
        if at_us > self._until_us or (self._firing and at_us <= self._last.get(key, ALWAYS)):
            self._cells.put((group, self.number, at_us >> LEAF_BITS), entry)
            if at_us < self._earliest_us:  # noqa: PLR1730 - a call for each timer costs more
                self._earliest_us = at_us
        elif self._defers:
            counters.timers_late += 1
            self._deferred[entry] = (at_us, key, group, entry)
        else:
            counters.timers_late += 1
            self._add_due((at_us, key, group, entry))
        if self.by_key is not None:
            self.by_key.add(self.number, at_us)

    def delete(self, at_us: int, context: RuntimeContext) -> None:
        """Delete a timer of the current key and namespace, if it exists."""
        entry = self._entry(at_us, context)
        self._cells.remove((context._group, self.number, at_us >> LEAF_BITS), entry)
        self._live.discard(entry)
        if self._deferred:
            self._deferred.pop(entry, None)
        if self.by_key is not None:
            self.by_key.discard(self.number, at_us)

    def _entry(self, at_us: int, context: RuntimeContext) -> Any:
        """Return the address of a timer of the current key and namespace."""
        key, namespace = context._key, context._namespace
        if key is NO_KEY:
            hash(NO_KEY)
        entry = (at_us, key, packed_namespace(namespace))
        return entry if self._address is None else self._address(entry)

    def _add_due(self, timer: Timer) -> None:
        """Store a timer that fires in this micro-batch."""
        at_us, _, group, entry = timer
        self._cells.put((group, self.number, at_us >> LEAF_BITS), entry)
        self._live.add(entry)
        self._stored.add(entry)
        heapq.heappush(self._fresh, (at_us, next(self.numbers), timer))

    def defer(self) -> None:
        """Hold back timers that are registered and due, until `release`."""
        self._defers = True

    def release(self) -> None:
        """Let the timers that were held back fire."""
        self._defers = False
        for timer in self._deferred.values():
            self._add_due(timer)
        self._deferred.clear()

    def all(self) -> list[Timer]:
        """Read and return every timer that has yet to fire, perhaps more than once."""
        leaves = self.directory.due(NEVER)
        stored = {(group, self.number, leaf) for leaf, groups in leaves.items() for group in groups}
        stored.update(cell for cell in self._cells.touched if cell[1] == self.number)
        found = self._cells.load(sorted(stored), self._host.scheduler.reads.executor)
        found += [timer for timer in self._loaded if timer[3] in self._live]
        return [*found, *self._deferred.values()]

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
        """Yield due timers, including timers registered meanwhile, until all have fired."""
        self._firing = True
        if self.has_stored:
            for leaf, groups in self.directory.due(self._until_us).items():
                self._loaded, cleared = self._load(leaf, groups)
                yield from self._merged(self._loaded, leaf + 1 << LEAF_BITS, cleared=cleared)
            self._loaded = ()
            self._next_us = self.directory.after(self._until_us)
        while True:
            yield from self._merged((), NEVER, cleared=False)
            self._host.scheduler.progress.drain()
            if not self._fresh:
                break
        self._firing = False
        self._last.clear()

    def _load(self, leaf: int, groups: Sequence[int]) -> tuple[Sequence[Timer], bool]:
        """Return a leaf's due timers, and whether they were all of its timers and were removed."""
        cells = [(group, self.number, leaf) for group in groups]
        timers = self._cells.load(cells, self._host.scheduler.reads.executor)
        due = bisect.bisect_right(timers, self._until_us, key=itemgetter(0))
        later = timers[due:]
        if later:
            self._earliest_us = min(self._earliest_us, later[0][0])
        else:
            for cell in cells:
                self._cells.clear(cell)
        self._emptied.update((group, leaf) for group in {*groups} - {t[2] for t in later})
        timers = timers[:due]
        self._live.update([timer[3] for timer in timers])
        return timers, not later

    def _merged(self, timers: Sequence[Timer], end_us: int, *, cleared: bool) -> Iterator[Entry]:
        """Yield loaded timers and timers registered meanwhile, before ``end_us``."""
        fresh, live, stored = self._fresh, self._live, self._stored
        last, deferred = self._last, self._deferred
        counters, scheduler = self._host.scheduler.counters, self._host.scheduler
        busy = scheduler.busy
        position, count = 0, len(timers)
        known_us, time = 0, EPOCH
        while True:
            if fresh and fresh[0][0] < (timers[position][0] if position < count else end_us):
                at_us, key, group, entry = fresh[0][2]
                is_fresh = True
            elif position < count:
                at_us, key, group, entry = timers[position]
                is_fresh = False
            else:
                return
            if busy and key in busy:
                # The running timer of this key may delete this one, or register another.
                scheduler.progress.run_until(functools.partial(_is_free, busy, key))
                continue
            if is_fresh:
                heapq.heappop(fresh)
            else:
                position += 1
            if entry not in live:
                continue
            live.remove(entry)
            if not cleared or deferred or self.by_key is not None or entry in stored:
                self._take_out((at_us, key, group, entry), cleared=cleared)
            last[key] = at_us
            if at_us != known_us:
                known_us, time = at_us, EPOCH + timedelta(microseconds=at_us)
            counters.timers_fired += 1
            if entry[2]:
                scheduler.bind_namespace(unpacked_namespace(entry[2]))
                yield time, key, group
                scheduler.bind_namespace(None)
            else:
                yield time, key, group

    def _take_out(self, timer: Timer, *, cleared: bool) -> None:
        """Remove a timer that fires; if ``cleared``, the timers of its leaf were removed."""
        at_us, _, group, entry = timer
        if not cleared or entry in self._stored:
            self._stored.discard(entry)
            self._cells.remove((group, self.number, at_us >> LEAF_BITS), entry)
        self._deferred.pop(entry, None)
        if self.by_key is not None:
            self.by_key.remove(self.number, timer)

    def sorted_instants(self, times: Iterable[TimerTime]) -> list[datetime]:
        """Return the times of this domain's timers among ``times``, in order."""
        return [instant(at_us) for number, at_us in sorted(times) if number == self.number]

    # -- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Let all timers be due."""
        self._next_us, self._until_us = self.update_directory(), LAST_US

    def update_directory(self) -> int:
        """Apply the micro-batch's changes; return a lower bound for all timers."""
        added = [(group, leaf) for group, _, leaf in self._cells.take_touched(self.number)]
        self.directory.update(added, self._emptied)
        self._emptied.clear()
        return min(self._next_us, self._earliest_us)


def _is_free(busy: Mapping[Any, Any], key: Any) -> bool:
    return key not in busy


class Clocks:
    """The times that every function sees."""

    def __init__(
        self, times: TimerClocks, counters: EngineMetrics, *, uid: str, has_event_time: bool
    ) -> None:
        self.times: Final = times
        self._counters: Final = counters
        self._uid: Final = uid
        self._has_event_time: Final = has_event_time
        self._watermark_us = times.watermark_us
        self._domain: TimeDomain | None = None

    @property
    def processing_time(self) -> datetime:
        us = self.times.now_us
        return EPOCH if us == NO_TIME else instant(us)

    @property
    def watermark(self) -> datetime | None:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.watermark")
        us = self._watermark_us
        return None if us == ALWAYS else instant(us)

    @property
    def domain(self) -> TimeDomain | None:
        return self._domain

    def is_late(self, at: datetime) -> bool:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.is_late")
        return us_of(at) <= self._watermark_us

    def drop_late(self, at: datetime) -> bool:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.drop_late")
        late = us_of(at) <= self._watermark_us
        self._counters.late_rows_dropped += late
        return late

    def _refuse_event_time(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._uid!r}: {what} needs event times; name their column with event_time= "
            "in keyed()"
        )


class EngineTimers(Clocks, Timers):
    """The timers of one subtask and micro-batch."""

    def __init__(
        self,
        host: StateHost,
        times: TimerClocks,
        *,
        has_event_time: bool,
        declare: Callable[[StateDescriptor], Any],
    ) -> None:
        """Open the tables; ``declare`` declares a state of the engine's own."""
        context = host.context
        super().__init__(
            times,
            host.scheduler.counters,
            uid=context.operator_uid,
            has_event_time=has_event_time,
        )
        self._context = self._user_context = context
        self._scheduler: Final = host.scheduler
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
        self._by_key: TimersByKey | None = None
        self._declare: Final = declare
        self.lists = times.lists
        """Whether `TimersByKey` knows all timers."""
        if BY_KEY in host.lineages:
            self._keep_by_key()
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

    def register_processing_time(self, at: datetime) -> None:
        self._processing.register(timer_us(at), self._context)

    def register_event_time(self, at: datetime) -> None:
        if not self._has_event_time:
            self._refuse_timers()
        self._event.register(timer_us(at), self._context)

    def delete_processing_time(self, at: datetime) -> None:
        self._processing.delete(us_of(at), self._context)

    def delete_event_time(self, at: datetime) -> None:
        if not self._has_event_time:
            self._refuse_timers()
        self._event.delete(us_of(at), self._context)

    def replace_processing_time(self, at: datetime) -> None:
        self._replace(self._processing, timer_us(at), self._listing().times())

    def replace_event_time(self, at: datetime) -> None:
        if not self._has_event_time:
            self._refuse_timers()
        self._replace(self._event, timer_us(at), self._listing().times())

    def list_processing_time(self) -> list[datetime]:
        return self._processing.sorted_instants(self._listing().times())

    def list_event_time(self) -> list[datetime]:
        if not self._has_event_time:
            self._refuse_timers()
        return self._event.sorted_instants(self._listing().times())

    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        target, others = merged_namespaces(target, sources)
        listing, found = self._listing(), []
        for source in others:
            with self._namespace(source):
                found.append((source, listing.times()))
        self._move(target, found)

    def async_replace_processing_time(self, at: datetime) -> StateFuture[None]:
        return self._async_replace(self._processing, timer_us(at))

    def async_replace_event_time(self, at: datetime) -> StateFuture[None]:
        if not self._has_event_time:
            self._refuse_timers()
        return self._async_replace(self._event, timer_us(at))

    def async_list_processing_time(self) -> StateFuture[list[datetime]]:
        return self._listing().async_times().then_apply(self._processing.sorted_instants)

    def async_list_event_time(self) -> StateFuture[list[datetime]]:
        if not self._has_event_time:
            self._refuse_timers()
        return self._listing().async_times().then_apply(self._event.sorted_instants)

    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        target, others = merged_namespaces(target, sources)
        listing, found = self._listing(), []
        for source in others:
            with self._namespace(source):
                found.append(listing.async_times())
        return combine_all(found).then_apply(
            lambda times: self._move(target, zip(others, times, strict=True))
        )

    # -- changes ------------------------------------------------------------------------------

    def _replace(self, line: DomainTimers, at_us: int, times: Iterable[TimerTime]) -> None:
        for number, other_us in times:
            if number == line.number and other_us != at_us:
                line.delete(other_us, self._context)
        line.register(at_us, self._context)

    def _async_replace(self, line: DomainTimers, at_us: int) -> StateFuture[None]:
        times = self._listing().async_times()
        return times.then_apply(lambda times: self._replace(line, at_us, times))

    def _move(self, target: object, found: Iterable[tuple[object, list[TimerTime]]]) -> None:
        """Move timers of the current key from their namespaces to ``target``."""
        for source, times in found:
            with self._namespace(source):
                for number, at_us in times:
                    self._lines[number].delete(at_us, self._context)
            with self._namespace(target):
                for number, at_us in times:
                    self._lines[number].register(at_us, self._context)

    @contextlib.contextmanager
    def _namespace(self, namespace: object) -> Iterator[None]:
        """Make ``namespace`` the current one for a while."""
        bind, current = self._scheduler.bind_namespace, self._context._namespace
        bind(namespace)
        try:
            yield
        finally:
            bind(current)

    def _listing(self) -> TimersByKey:
        """Return the timers of the current key; from the first call on they are kept."""
        if self._context._key is NO_KEY:
            hash(NO_KEY)
        listing = self._by_key or self._keep_by_key()
        if not self.lists:
            self._complete_by_key()
        return listing

    def _keep_by_key(self) -> TimersByKey:
        self._by_key = kept = TimersByKey(self._declare, self._user_context)
        for line in self._lines:
            line.by_key = kept
        return kept

    def _complete_by_key(self) -> None:
        """Complete the list of a key's timers with the timers that were registered earlier."""
        assert self._by_key is not None
        for line in self._lines:
            self._by_key.add_all(line.number, line.all())
        self.lists = True

    def _refuse_timers(self) -> NoReturn:
        if self._context._key is NO_KEY:
            hash(NO_KEY)
        self._refuse_event_time("an event-time timer")

    # -- for the engine -----------------------------------------------------------------------

    @property
    def held(self) -> int:
        """The number of changes that `hand_over` would release."""
        return self._cells.held

    def due(self, at_most: int) -> Iterator[Entry]:
        """Yield the next timers to fire; call it again while `pending`."""
        return itertools.islice(self._due, at_most)

    def end_event_time(self) -> None:
        """Let all event-time timers be due, after the last record; `due` yields them."""
        self._watermark_us = LAST_US
        self._event.end()
        self.look_again()

    def look_again(self) -> bool:
        """Return, after the last record, whether more timers are due; `due` yields them."""
        if not self.pending and any(line.has_stored or line.has_registered for line in self._lines):
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

    def hand_over(self, open_keys: Collection[Any], touched: int) -> int:
        """Pass the changes to the backend, except those to timers of ``open_keys``.

        ``touched`` is the number of keys whose state was touched. Return it, or the number of keys
        that registered timers, if more timers were added and these are more keys.
        """
        added, touched = self._cells.hand_over(open_keys, touched)
        self._counters.timers_added += added
        return touched

    def finish(self) -> TimerClocks:
        """Return the clocks for the version to store; call it after the last `hand_over`."""
        next_us = [line.update_directory() for line in self._lines]
        apply_directories(self._directory, [line.directory for line in self._lines])
        return attrs.evolve(self.times, next_us=next_us, lists=self.lists)


class NoTimers(Clocks):
    """The times of a function without ``on_timer``: every use of timers raises an error."""

    def __init__(
        self,
        function: str,
        times: TimerClocks,
        counters: EngineMetrics,
        *,
        uid: str,
        has_event_time: bool,
    ) -> None:
        super().__init__(times, counters, uid=uid, has_event_time=has_event_time)
        self._function = function

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigurationError(
            f"ctx.timers.{name}: {self._function} has no on_timer method; timers are for a "
            "KeyedProcessFunction, KeyedCoProcessFunction or KeyedBroadcastProcessFunction that "
            "defines one"
        )
