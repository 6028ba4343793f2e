"""The timers of one time domain: register them, and take those that are due in time order."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.timers.by_key import TimersByKey, TimerTime
from forebay_engine.timers.cells import (
    LEAF_BITS,
    Directory,
    Timer,
    TimerCells,
)
from forebay_engine.timers.instants import instant
from forebay_engine.timers.watermark import ALWAYS, EPOCH, LAST_US, NEVER, TimerClocks
from forebay_engine.versions.format.namespaces import (
    packed_namespace,
    unpacked_namespace,
)
from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.timers import TimeDomain

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.job.context import RuntimeContext

Entry = tuple[datetime, Any, int]
"""An entry for a loop of `record_loops`: the timer's time as its row, its key and key group."""


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
