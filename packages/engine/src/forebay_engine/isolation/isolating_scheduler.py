"""The scheduler of operators whose records fail alone (``on_error="column"``).

The journal holds the changes of the running record. When a record is set aside, its entries and
its rows move to its `Record`; its answers and steps add to them. When a record ends, its rows move
to the checked rows, and its entries are dropped. A record that fails is closed, its changes are put
back, and its only row describes the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forebay_engine.execution import cancelling
from forebay_engine.execution.awaitables import Scope, raise_unread
from forebay_engine.execution.awaited_calls import close_unawaited, raise_unawaited
from forebay_engine.execution.record_deadlines import RecordDeadlines, RecordTimeoutError
from forebay_engine.execution.request_futures import Dropped
from forebay_engine.execution.scheduler import FRESH, Scheduler
from forebay_engine.isolation.failed_record import (
    SHOWN_FAILURES,
    ErrorRows,
    FailedRecord,
    fails_alone,
    too_many_failures_error,
)
from forebay_engine.isolation.journal import Journal, undo
from forebay_state_api.job.future_errors import failed_record_error


class IsolatingScheduler(Scheduler):
    """Puts back what a failed record changed, and lets the others go on."""

    __slots__ = (
        "_closing",
        "_error_limit",
        "_first",
        "checked_rows",
        "forget_requests",
        "journal",
        "method_of",
    )

    isolates = True
    method_of: Callable[[int], str]
    """Set by the engine: returns the name of an input's record method."""
    forget_requests: Callable[[Any], None]
    """Set by the engine: states forget the requests of a key's record."""

    def __init__(self, *arguments: Any, error_rows: ErrorRows, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.journal = Journal()
        self.checked_rows = error_rows.checked_rows()
        """The rows of records that are done.

        `rows_out` has the running record's, after rows of no record, until a record ends: rows of
        the broadcast input, and what the loop's callbacks collect.
        """
        self._error_limit = error_rows.limit
        self._first: list[FailedRecord] = []
        self._closing = RecordDeadlines(cancelling.CLOSING_S)
        self.progress.times.append(self._closing)

    # -- the ends of records ------------------------------------------------------------------

    def emit(self) -> None:
        """Check the rows of the running record, which is done, and emit them.

        Rows of no record come before them. Rows of the broadcast input are not complete while it
        visits keys.
        """
        rows = self.rows_out
        if self.mark:
            self.checked_rows.check(rows[self.mark :])
            if not self.fails_batch:
                self.emit_unchecked()
            return
        if not self.checked_rows.add_usual(rows):
            self.checked_rows.add(rows)
        rows.clear()

    def emit_unchecked(self) -> None:
        self.checked_rows.add_unchecked(self.rows_out)
        self.rows_out.clear()

    @property
    def rows_ready(self) -> int:
        return len(self.checked_rows) + len(self.rows_out)

    def take_rows(self) -> Sequence[Any]:
        self.emit_unchecked()
        return self.checked_rows.take()

    def run_ready(self) -> None:
        while self.ready:
            record = self.ready.popleft()
            if record.stack or record.turns:
                self._resume(record)

    def _resume(self, record: Any) -> None:
        self.journal.last = None
        super()._resume(record)

    def step_of_child(self, child: Scope, run: Callable[..., Any], *arguments: Any) -> Any:
        self.journal.last = None
        try:
            return super().step_of_child(child, run, *arguments)
        finally:
            record: Any = child.record
            if record.failed:
                # It was cancelled with its record, and leaves nothing behind either.
                undo(record.log)
                record.log = None
                record.rows = record.rows and record.rows[:1]

    def _hold_back(self, record: Any) -> None:
        super()._hold_back(record)
        self._keep_changes(record)

    def _keep_changes(self, record: Any) -> None:
        last, self.journal.last = self.journal.last, None
        if last is not None:
            record.log = last if record.log is None else (record.log, undo, last)

    def _finish(self, record: Any) -> None:
        rows_out = self.rows_out
        if (
            record.rows is None
            and record.error is None
            and not record.unread
            and not record.calls
            and self.checked_rows.add_usual(rows_out)
        ):
            rows_out.clear()
            # What `Scheduler._finish` does, without the call: every record that waits comes here.
            if self.deadlines is not None:
                self.deadlines.remove(record)
            record.driver = None
            del self.busy[record.key]
            if record.waiting:
                self.admission.start_next(record)
            return
        self._examine(record)
        super()._finish(record)

    def _examine(self, record: Any) -> None:
        """Emit the rows of a record that has run to its end.

        It fails if a child, its code or a row has failed.
        """
        if not record.failed:
            try:
                if record.unread:
                    raise_unread(record)
                if record.calls:
                    raise_unawaited(record)
                if record.error is None:
                    self._emit_all(record)
                    return
            except Exception as raised:  # noqa: BLE001 - a child raised it, or a row does not fit
                record.error = record.error or raised
            self._drop(record, record.error)
        self.rows_out += record.rows
        record.rows = None
        self.emit_unchecked()

    def _emit_all(self, record: Any) -> None:
        """Emit the rows that the record has kept, and its last ones."""
        if record.rows is not None:
            self.rows_out[self.mark : self.mark] = record.rows
            record.rows = None
        self.emit()

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
            record.open -= 1
            self._fail_step(record, error)
            self._go_on(record)
            return
        row = self._failed_row(error, self.row, self.context._key, self.side)
        self.journal.undo()
        del self.rows_out[self.mark :]
        self.rows_out.append(row)
        self.emit_unchecked()
        self.tail = FRESH

    def _fail_step(self, record: Any, error: Exception) -> None:
        if record.ending:  # the first error counts
            cancelling.cancel_state_waits(record)
            return
        if self.fails_batch or not fails_alone(error):
            raise error
        if self.awaits is not None and cancelling.is_under_way(record):
            self._cancel(record, error)
        else:
            self._drop(record, error)

    def _cancel(self, record: Any, error: Exception) -> None:
        """Let a record run its ``finally`` blocks before it fails."""
        record.error = record.error or error
        record.ending = True
        self._closing.add(record)
        running: Any = self.current
        self.current = None
        cancelling.cancel(record)
        self.current = running

    def _end_cancelled(self, record: Any) -> None:
        if record.failed:
            return
        cancelling.cancel_children(record)
        if not cancelling.is_under_way(record):
            self._drop_apart(record, record.error)

    def _drop_apart(self, record: Any, error: Exception) -> None:
        """Drop a record between steps of other records."""
        context = self.context
        before = self.current, context._key, context._group
        self._drop(record, error)
        self.current, context._key, context._group = before

    def end_late(self, record: Any, deadlines: RecordDeadlines) -> None:
        if self.fails_batch:
            super().end_late(record, deadlines)
        self.mark, self.journal.last = len(self.rows_out), None
        if deadlines is self._closing:
            cancelling.close_by_force(record)
            self._drop_apart(record, record.error)
        else:
            self._fail_step(record, self._timeout_error(record, deadlines))
        if not record.open:
            self._finish(record)

    def _timeout_error(self, record: Any, deadlines: RecordDeadlines) -> RecordTimeoutError:
        return RecordTimeoutError(
            f"it took longer than record_timeout={deadlines.limit_s:g} s, and waits for "
            f"{self.waited_for(record)}"
        )

    def _take_answer(self, record: Any, request: Any, answer: Any) -> None:
        self.mark = len(self.rows_out)
        self.journal.last = None
        try:
            super()._take_answer(record, request, answer)
            self._keep_changes(record)
        except Exception as error:  # noqa: BLE001 - a reduce function may run
            self._drop(record, error)
            self.current = None
            self._finish(record)

    def _drop(self, record: Any, error: Exception) -> None:
        """End a record at once: drop its pending calls, and put back its changes."""
        context, before = self.context, self.dropped_reads
        self.current, context._key, context._group = record, record.key, record.group
        row = self._failed_row(record.error or error, record.row, record.key, record.side)
        record.failed = True
        self._closing.remove(record)
        turns, record.turns = record.turns, []
        for child in tuple(record.children or ()):
            child.cancel()
        for coroutine in (record.driver, *(record.driven or ())):
            if coroutine is not None:
                cancelling.close_quietly(coroutine)
        for *_, callback, value in turns:
            if callback is None:
                value._claimed = True
                callbacks, value._callbacks = value._callbacks, None
                value.__class__ = Dropped
                self._fail_followers(record, callbacks or ())
        turns.clear()
        record.stack.clear()
        record.turns.clear()
        self.forget_requests(record.key)
        # Not before: a coroutine that is closed may run its `finally`.
        self.journal.undo()
        undo(record.log)
        record.log = None
        del self.rows_out[self.mark :]
        # It failed before it could await them.
        record.unread = None
        close_unawaited(record)
        record.rows = [row]
        record.open = 0
        record.error = None
        self.dropped_reads = before
        self.current = None

    def _fail_followers(self, failed: Any, callbacks: Any) -> None:
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
        if self.counters.failed > self._error_limit:
            raise too_many_failures_error(self.describe(), self._error_limit, self._first)
        return row


def _follow(key: Any) -> None:
    raise failed_record_error(key)
