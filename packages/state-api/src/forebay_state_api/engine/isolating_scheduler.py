"""The scheduler of operators whose records fail alone (``on_error="column"``).

The journal holds the changes of the running record. When a record is set aside, its entries and
its rows move to its `Record`; its answers and steps add to them. A record that ends leaves its
rows, and its entries are dropped. A record that fails is closed, its changes are put back, and its
only row describes the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from forebay_state_api.engine.failed_record import (
    SHOWN_FAILURES,
    ErrorRows,
    FailedRecord,
    fails_alone,
    too_many,
)
from forebay_state_api.engine.journal import Entry, undo
from forebay_state_api.engine.record import IsolatedRecord
from forebay_state_api.engine.scheduler import FRESH, Scheduler, close_quietly
from forebay_state_api.errors import OutputSchemaError, StateAccessError


class IsolatingScheduler(Scheduler):
    """Puts back what a failed record changed, and lets the others go on."""

    isolates = True
    record_class = IsolatedRecord
    method_of: Callable[[int], str]
    """Set by the engine: returns the name of an input's record method."""
    forget_requests: Callable[[Any], None]
    """Set by the engine: states forget the requests of a key's record."""

    def __init__(self, *arguments: Any, error_rows: ErrorRows, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.journal: list[Entry] = []
        """The changes of the running record since it was started or resumed."""
        self._error_rows = error_rows
        self._first: list[FailedRecord] = []
        self.row = None

    # -- the ends of records ------------------------------------------------------------------

    def records(self, entries: Iterator[Any]) -> Iterator[Any]:
        rows_out, check, forget = self.rows_out, self._error_rows.check, self.journal.clear
        for entry in entries:
            forget()  # the record before has ended; a timer is consumed whatever becomes of it
            self.row = entry[0]
            yield entry
            # The record has ended, unless it was set aside: then it took its rows and changes.
            if check is not None and len(rows_out) > self.mark:
                try:
                    check(rows_out, self.mark)
                except (OutputSchemaError, StateAccessError) as error:
                    self.fail_record(error)
        forget()

    def must_wait(self, row: Any, key: Any, group: int, side: int) -> bool:
        if super().must_wait(row, key, group, side):
            self.mark = len(self.rows_out)
            return True
        self.row = row  # other records may have run meanwhile
        return False

    def _hold_back(self, record: Any) -> None:
        super()._hold_back(record)
        self._keep_changes(record)

    def _keep_changes(self, record: Any) -> None:
        if self.journal:
            if record.log is None:
                record.log = []
            record.log += self.journal
            self.journal.clear()

    def _end(self, record: Any) -> None:
        if not record.failed:
            error, check = record.error, self._error_rows.check
            if error is None and check is not None:
                try:
                    check(record.rows or [], 0)
                    check(self.rows_out, self.mark)
                except (OutputSchemaError, StateAccessError) as misfit:
                    error = misfit
            if error is not None:
                self._drop(record, error)
        if self.journal:
            self.journal.clear()
        if record.rows:
            self.rows_out[self.mark : self.mark] = record.rows
            record.rows = None
        self.mark = len(self.rows_out)

    # -- failures -----------------------------------------------------------------------------

    def note_failure(self, error: Exception) -> bool:
        if self.fails_batch or not fails_alone(error):
            return False
        record: Any = self.current_record()
        record.error = record.error or error
        return True

    def fail_record(self, error: Exception) -> None:
        record = self.current
        if record is not None:
            self._set_aside()
            self._drop(record, error)
            self._finish(record)
            return
        row = self._failed_row(error, self.row, self.context._key, self.side)
        undo(self.journal)
        del self.rows_out[self.mark :]
        self.rows_out.append(row)
        self.mark = len(self.rows_out)
        self.tail = FRESH

    def _fail_step(self, record: Any, error: Exception) -> None:
        self._drop(record, error)

    def _take_answer(self, record: Any, request: Any, answer: Any) -> None:
        self.mark = len(self.rows_out)
        try:
            super()._take_answer(record, request, answer)
            self._keep_changes(record)
        except Exception as error:  # noqa: BLE001 - a reduce function may run
            self._drop(record, error)
            self.current = None
            self._finish(record)

    def _drop(self, record: Any, error: Exception) -> None:
        """End a record at once: drop what it has under way, and put back what it changed."""
        context, before = self.context, self.dropped_reads
        self.current, context._key, context._group = record, record.key, record.group
        row = self._failed_row(record.error or error, record.row, record.key, record.side)
        record.failed = True
        turns, record.turns = record.turns, []
        for coroutine in (record.driver, *(record.driven or ())):
            if coroutine is not None:
                close_quietly(coroutine)
        for *_, callback, value in turns:
            if callback is None:
                value._claimed = True
                callbacks, value._callbacks = value._callbacks, None
                self._fail_followers(record, callbacks or ())
        turns.clear()
        record.stack.clear()
        record.turns.clear()
        self.forget_requests(record.key)
        # Not before: a coroutine that is closed may run its `finally`.
        undo(self.journal)
        if record.log is not None:
            undo(record.log)
        del self.rows_out[self.mark :]
        record.rows = [row]
        record.open = 0
        record.error = None
        self.dropped_reads = before
        self.current = None

    def _fail_followers(self, failed: IsolatedRecord, callbacks: Any) -> None:
        """Let other records fail that wait for a request of a failed one."""
        for record, namespace, _, _ in callbacks:
            if record is not None and record is not failed:
                self.arrive(record, namespace, _follow, failed.key)

    def _failed_row(self, error: Exception, given: Any, key: Any, side: int) -> FailedRecord:
        """Return the row of a failed record; raise where the micro-batch fails instead."""
        if self.fails_batch or not fails_alone(error):
            raise error
        row = FailedRecord.of(error, method=self.method_of(side), key=key, given=given)
        self.counters.failed += 1
        if len(self._first) < SHOWN_FAILURES:
            self._first.append(row)
        if self.counters.failed > self._error_rows.limit:
            raise too_many(self.describe(), self._error_rows.limit, self._first)
        return row


def _follow(key: Any) -> None:
    raise StateAccessError(
        f"it waits for a StateFuture of the record of key {key!r:.200}, which has failed"
    )
