"""Fire due timers, in time order, as records of their keys."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from forebay_engine.timers.by_key import TimersByKey, TimerTime
from forebay_engine.timers.cells import (
    Directory,
    TimerCells,
    apply_directories,
    timer_specs,
)
from forebay_engine.timers.clocks import Clocks
from forebay_engine.timers.domain_timers import DomainTimers, Entry
from forebay_engine.timers.instants import timer_us, us_of
from forebay_engine.timers.watermark import LAST_US, TimerClocks
from forebay_engine.versions.format.namespaces import (
    merged_namespaces,
)
from forebay_engine.versions.format.timer_tables import BY_KEY, DOMAINS
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.futures import StateFuture, combine_all
from forebay_state_api.job.timers import Timers
from forebay_state_api.keys import key_group_range_of

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.contract.backend import Table
    from forebay_state_api.job.descriptors import StateDescriptor


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
