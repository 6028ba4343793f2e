"""Let records go on: run what can run, send reads, and wait for what is to arrive.

What arrives are answers of storage, turns of the loop, futures that other threads complete, and the
times at which records are late.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from forebay_engine.execution.awaitables import Awaits, WakingInbox
from forebay_engine.execution.cancelling import may_be_cancelled, quietly
from forebay_engine.execution.read_requests import Inbox, ReadRequests
from forebay_engine.execution.task_thread import others_live
from forebay_engine.execution.waiting_lines import awaited_by, where_it_waits
from forebay_state_api.errors import FunctionError
from forebay_state_api.metrics.phases import Phase

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record
    from forebay_engine.execution.record_deadlines import RecordDeadlines
    from forebay_engine.execution.subtask_metrics import SubtaskMetrics
    from forebay_state_api.job.context import RuntimeContext


class StepsOfRecords(Protocol):
    """The scheduler, which runs the steps of records."""

    awaits: Awaits | None
    busy: dict[Any, Record]
    ready: deque[Record]
    current: Record | None
    reads: ReadRequests
    subtask_metrics: SubtaskMetrics
    task_thread: int
    describe: Callable[[], str]
    describe_calls: Callable[[], str]

    @property
    def context(self) -> RuntimeContext:
        """The current key and namespace."""

    def run_ready(self) -> None:
        """Run the records that can go on."""

    def end_late(self, record: Any, deadlines: RecordDeadlines) -> None:
        """Handle a record that takes too long."""


class Progress:
    """The waits of one subtask: what its thread does when no record can begin."""

    def __init__(self, scheduler: StepsOfRecords, *, drain_timeout_s: float) -> None:
        self._scheduler = scheduler
        self._reads = scheduler.reads
        self._drain_timeout_s = drain_timeout_s
        self._waking_inbox = WakingInbox()
        self.inbox: Inbox = self._waking_inbox
        """Actions for the task thread."""
        self.times: list[RecordDeadlines] = []
        self.put_off: deque[Record] = deque()
        """Records that are done, and keep their keys until fewer records are calling."""
        self.start_put_off: Callable[[], bool]
        """Set by `Admission`: starts records that were put off; returns whether any has."""

    def wake_by(self, awaits: Awaits) -> None:
        """Let the end of a wait in a loop, too, make records go on."""
        self._waking_inbox.awaits = awaits
        for deadlines in self.times:
            deadlines.wake(awaits.loop, awaits.woke)

    def close(self) -> None:
        """Forget the times of records."""
        for deadlines in self.times:
            deadlines.close()

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        scheduler = self._scheduler
        on_loop = scheduler.awaits is not None and scheduler.awaits.in_flight
        return not scheduler.busy and not scheduler.ready and not on_loop

    @property
    def waiting_requests(self) -> int:
        """The number of requests without an answer; a batch in progress counts as one."""
        return self._reads.queued + self._reads.outstanding

    # -- without waiting ----------------------------------------------------------------------

    def poll(self) -> None:
        """Run what has arrived, and let the loop turn now and then."""
        awaits = self._scheduler.awaits
        if awaits is not None and awaits.turn_is_due():
            awaits.turn()
        self._run_arrived()

    def advance(self) -> None:
        """Run the steps that can run now and send requests, without waiting."""
        self._turn_loop()
        self._run_arrived()
        self._reads.send()

    def arrived(self) -> Callable[[], object] | None:
        """Return the next action for this thread, if one has arrived."""
        try:
            return self.inbox.get_nowait()
        except queue.Empty:
            return None

    def _turn_loop(self) -> bool:
        """Let the loop turn if something is in flight on it; return whether anything ended."""
        awaits = self._scheduler.awaits
        if awaits is None or not awaits.in_flight:
            return False
        in_flight = awaits.in_flight
        awaits.turn()
        return awaits.in_flight != in_flight

    def _run_arrived(self) -> bool:
        """Run everything that can run now; return whether there was anything."""
        scheduler, moved = self._scheduler, False
        for deadlines in self.times:
            for record in deadlines.past():
                scheduler.end_late(record, deadlines)
                moved = True
        while True:
            if scheduler.ready:
                scheduler.run_ready()
                moved = True
            if self.put_off and self.start_put_off():
                moved = True
                continue
            arrival = self.arrived()
            if arrival is None:
                return moved
            arrival()
            moved = True

    # -- waiting ------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run steps, send requests and wait for answers, until ``done()``."""
        reads = self._reads
        while not done():
            if self._run_arrived():
                continue
            if reads.queued:
                if not self._turn_loop():  # what is ready there may add to the batch
                    reads.send()
            elif reads.outstanding:
                self._await_answer()
            else:
                self._await_completion()

    def settle(self) -> None:
        """Run until no request is pending and nothing can run; records may wait for threads."""
        ready = self._scheduler.ready
        self.run_until(lambda: not self.waiting_requests and not ready)

    def drain(self) -> None:
        """Run until no record is in flight and no request is pending."""
        self.run_until(lambda: self.idle and not self.waiting_requests)

    def wait_quietly(self, timeout_s: float) -> bool:
        """Wait for what a cancelled record awaits; return false if nothing can arrive."""
        awaits = self._scheduler.awaits
        if self._reads.queued:
            self._reads.send()
            return True
        if self._reads.outstanding:
            quietly(self._await_answer, timeout_s)
            return True
        if awaits is None or not self._loop_may_wake(awaits):
            return False
        awaits.wait(self._waking_inbox, timeout_s)
        return True

    def _await_answer(self, timeout_s: float | None = None) -> None:
        """Wait for an answer of storage; the loop turns meanwhile."""
        awaits, clock = self._scheduler.awaits, self._scheduler.subtask_metrics.clock
        arrival: Callable[[], object] | None = None
        before = clock.switch(Phase.STATE_WAIT)
        try:
            if awaits is not None and isinstance(self.inbox, WakingInbox):
                awaits.wait(self.inbox, timeout_s)
            else:
                arrival = self.inbox.get(timeout=timeout_s or self._left_s())
        except queue.Empty:
            return  # a record is late
        finally:
            clock.switch(before)
        if arrival is not None:
            arrival()

    def _await_completion(self) -> None:
        """Wait for futures of the loop, or for futures that other threads complete."""
        clock, awaits = self._scheduler.subtask_metrics.clock, self._scheduler.awaits
        if awaits is not None and self._loop_may_wake(awaits):
            before = clock.switch(Phase.CALL_WAIT)
            try:
                answered = awaits.wait(self._waking_inbox, self._drain_timeout_s)
            finally:
                clock.switch(before)
            if not answered:
                raise self._unanswered_error()
            return
        if not others_live(self._scheduler.task_thread):
            raise self._stuck_error("and no other thread lives that could")
        left = self._left_s()
        timeout = self._drain_timeout_s if left is None else min(left, self._drain_timeout_s)
        try:
            with clock.during(Phase.CALL_WAIT):
                arrival = self.inbox.get(timeout=timeout)
        except queue.Empty:
            if timeout == left:
                return  # a record is late
            limit = f"within the drain timeout of {self._drain_timeout_s:g} s"
            raise self._stuck_error(limit) from None
        arrival()

    def _loop_may_wake(self, awaits: Awaits) -> bool:
        """Return whether a turn of the loop may let a record go on."""
        return bool(awaits.in_flight) or any(map(may_be_cancelled, self._scheduler.busy.values()))

    def _left_s(self) -> float | None:
        """Return the seconds until the first record is late; ``None`` if there is no limit."""
        return min((s for one in self.times if (s := one.left_s()) is not None), default=None)

    # -- failures -----------------------------------------------------------------------------

    def _stuck_error(self, why: str) -> FunctionError:
        """Return the error for futures that cannot complete, or that did not in time."""
        busy = self._scheduler.busy
        self._blame(next(iter(busy.values()), None))
        return FunctionError(
            f"{self._scheduler.describe()} waits for a StateFuture that nobody completed, {why}; "
            f"{len(busy)} record(s) wait in this subtask"
        )

    def _unanswered_error(self) -> FunctionError:
        """Return the error for futures of the loop that took longer than the drain timeout."""
        scheduler = self._scheduler
        record = next((one for one in scheduler.busy.values() if one.open), None)
        self._blame(record)
        return FunctionError(
            f"{scheduler.describe()} waits for {awaited_by(record)}, which did not end within the "
            f"drain timeout of {self._drain_timeout_s:g} s; {len(scheduler.busy)} record(s) wait "
            f"in this subtask{where_it_waits(record)}{scheduler.describe_calls()}"
        )

    def _blame(self, record: Record | None) -> None:
        """Let an error name a record, if there is one."""
        if record is not None:
            self._scheduler.current, self._scheduler.context._key = record, record.key
