"""Runs the calls of one task, with at most ``capacity`` workers that share the input.

A worker takes a row, awaits the function in its own task and puts the answer into the window. No
task, timer or lock is made for a record. A worker is started only when rows wait and all others are
busy, so that one worker makes all calls of a function that never waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import takewhile
from typing import Any, Final

from forebay_engine.calls.caller import MEASURED_TRIES, Caller, NoClient, ReplaceableClient
from forebay_engine.calls.current_call import CURRENT
from forebay_engine.calls.worker_slots import Sweeper, WorkerSlot
from forebay_spark_runtime.waiting.answer_window import (
    Emit,
    OrderedWindow,
    RowSegment,
    UnorderedWindow,
)
from forebay_spark_runtime.waiting.batched_calls import BatchCollector, call_together
from forebay_spark_runtime.waiting.input_queue import InputQueue
from forebay_spark_runtime.waiting.keeping import KeepingCaller, RowAnswers
from forebay_state_api.calls.policies import AsyncFunction, CallPolicy
from forebay_state_api.metrics.calls import CallMetrics

SAMPLED: Final = 8
"""After the first thousands of bare calls, every ``SAMPLED``-th is timed; a power of two."""


class CallEngine:
    """Makes the calls of one task, all on the event loop that awaits `run`.

    Push the rows into ``input_queue`` and end it; the answers are passed to ``emit``.
    """

    def __init__(
        self,
        fn: AsyncFunction,
        policy: CallPolicy,
        *,
        emit: Emit,
        client: ReplaceableClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        key_of: Callable[[int], str] = str,
        describe: Callable[[int], str] = "row {}".format,
        ready: Callable[[], Awaitable[None]] | None = None,
        rows_kept: int = 0,
        answers: RowAnswers | None = None,
    ) -> None:
        """Prepare the engine.

        :param fn: the user function of a row, or with ``policy.batch`` of rows, and the client.
        :param policy: how calls are made.
        :param emit: is called with the rows to be written.
        :param client: the client of the function; without it the function gets ``None``.
        :param clock: returns the time in seconds.
        :param key_of: returns the idempotency key of a row, from its index.
        :param describe: returns the description of a row in errors, from its index.
        :param ready: is awaited before each try; the wait is not part of the try's time.
        :param rows_kept: this number of first rows never share a call with later rows.
        :param answers: finds answers that are kept, and keeps the others; ``None`` for neither.
        """
        self.counts = CallMetrics()
        self.input_queue = InputQueue(taken=self._taken, spawn=self._spawn, clock=clock)
        self.on_taken: Callable[[], None] = lambda: None
        """Called when a segment is taken, so that the reader may push another one."""
        self._policy = policy
        self._rows_kept = rows_kept
        self._clock = clock
        self._key_of = key_of
        self._slots: list[WorkerSlot] = []
        self._sweeper = Sweeper(self._slots, clock)
        self._emit = emit
        make_window = OrderedWindow if policy.ordered else UnorderedWindow
        at_once = policy.capacity * (1 if policy.batch is None else policy.batch.size)
        self._window = make_window(at_once + policy.buffer, self._go_out)
        self._answers = answers
        make_caller = Caller if answers is None or policy.batch is not None else KeepingCaller
        self._caller = make_caller(
            fn,
            policy,
            client=client or NoClient(),
            counts=self.counts,
            sweeper=self._sweeper,
            clock=clock,
            describe=describe,
            ready=ready,
        )
        if isinstance(self._caller, KeepingCaller) and answers is not None:
            self._caller.answers = answers
        self._work = self._kind_of_work(policy)
        self._busy: dict[Any, deque[tuple[RowSegment, int]] | None] = {}
        self._workers = 0
        self._stopped = False
        self._ended = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    def _kind_of_work(
        self, policy: CallPolicy
    ) -> Callable[[WorkerSlot], Coroutine[Any, Any, None]]:
        if policy.batch is not None:
            self._collector = BatchCollector(
                policy.batch, self.input_queue, self._window, self._rows_kept, self._answers
            )
            return self._work_in_batches
        if policy.keyed:
            return self._work_by_key
        bare = policy.bare and policy.ordered and self._caller.may_call_at_once
        bare = bare and self._answers is None
        return self._work_bare if bare else self._work_guarded

    async def run(self) -> None:
        """Make all calls; returns when every answer has been emitted.

        The first failure cancels the other calls and is raised when they are done. The answers
        emitted by then are a correct prefix (ordered) or part (unordered) of all answers.
        """
        began = self._clock()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._spawn()
                await self._end()
        except BaseExceptionGroup as group:
            raise _first(group) from group.exceptions[0].__cause__
        finally:
            self._group = None
            self._sweeper.stop()
            await self._caller.close()
            self._caller.count_latencies()
            if self._answers is None:
                self.counts.tries = self.counts.tries or self.counts.rows
            self.counts.work_s = self._clock() - began
            if self.input_queue.ended_at is not None:
                self.counts.drain_s = max(self._clock() - self.input_queue.ended_at, 0.0)

    async def _end(self) -> None:
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._stop()
            raise

    def _stop(self) -> None:
        """Begin no more calls and emit no more answers, even if a call ignores its cancellation."""
        self._stopped = self._caller.stopped = True
        self._workers = self._policy.capacity
        self.input_queue.stop()

    def leave(self) -> list[tuple[RowSegment, int]]:
        """End without the missing answers: their calls are cancelled.

        Returns the rows that have not been emitted, in order; `run` returns soon after. Call it
        when the input queue is spent.
        """
        left = self._window.leave()
        self.counts.carried += len(left)
        self._stop()
        for slot in tuple(self._slots):
            slot.task.cancel()
        return left

    @property
    def first_open(self) -> int | None:
        """The index of the first taken row without an answer."""
        return self._window.first_open()

    def _go_out(self, segment: RowSegment, positions: list[int] | None) -> None:
        if not self._stopped:
            self._emit(segment, positions)

    @property
    def in_flight(self) -> int:
        """The number of pending calls."""
        return self._caller.in_flight

    @property
    def blocked(self) -> int:
        """The number of answers that wait for an earlier answer."""
        return self._window.blocked()

    def _taken(self, segment: RowSegment) -> None:
        self._note_blocked(self.blocked)
        self.counts.rows += len(segment.rows)
        self._window.add(segment)
        self.on_taken()

    def _note_blocked(self, blocked: int) -> None:
        self.counts.blocked_max = max(self.counts.blocked_max, blocked)

    def _spawn(self) -> bool:
        if self._group is None or self._workers == self._policy.capacity:
            return False
        self._workers += 1
        self._group.create_task(self._worker())
        return True

    async def _worker(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        slot = WorkerSlot(task, self._key_of)
        self._slots.append(slot)
        CURRENT.set(slot)
        try:
            await self._work(slot)
        except (SystemExit, KeyboardInterrupt) as error:
            # If a task raised them, they would end the loop and with it all calls of the process.
            self._stop()
            indexes = slot.indexes if isinstance(slot.indexes, int) else slot.indexes[0]
            raise self._caller.failure(indexes, error, slot.attempt) from error
        except BaseException:
            self._stop()
            raise
        finally:
            self._slots.remove(slot)
            if not self._slots:
                self._ended.set()

    async def _work_bare(self, slot: WorkerSlot) -> None:
        """Make ordered calls without limits: any time spent here is spent for every record.

        A worker counts its answers, and adds the count to the window when it leaves the segment.
        """
        input_queue, window, clock, caller = (
            self.input_queue,
            self._window,
            self._clock,
            self._caller,
        )
        assert isinstance(window, OrderedWindow)
        call, client, took, waiting = caller.fn, caller.client, caller.took.append, window.waiting
        mask = 0
        segment = await input_queue.after(None)
        while segment is not None:
            first, rows, answers, count = segment.first, segment.rows, segment.answers, 0
            caller.begin()
            try:
                for position in segment.unread:
                    slot.indexes = index = first + position
                    if index >= window.open_below:
                        caller.end()
                        await self._enter(index)
                        caller.begin()
                    if position & mask:
                        answers[position] = await call(rows[position], client.current)
                    else:
                        began = clock()
                        answers[position] = await call(rows[position], client.current)
                        took(clock() - began)
                    count += 1
                    if waiting:
                        window.look()
            except (Exception, asyncio.CancelledError) as error:
                cancelled = self._stopped or isinstance(error, asyncio.CancelledError)
                if cancelled and slot.task.cancelling():
                    raise asyncio.CancelledError from error
                assert isinstance(slot.indexes, int)
                raise caller.failure(slot.indexes, error, 1) from error
            caller.end()
            window.count(segment, count)
            if len(caller.took) >= MEASURED_TRIES:
                caller.count_latencies()
                mask = SAMPLED - 1
            segment = await input_queue.after(segment)

    async def _enter(self, index: int) -> None:
        behind = self._window.behind(index)
        self._note_blocked(behind - self.in_flight - self._waiting_for_their_key())
        await self._window.enter(index)

    def _waiting_for_their_key(self) -> int:
        """Return how many rows within the window wait for an earlier call of their key."""
        below = self._window.open_below
        waiting = 0
        for queue in filter(None, self._busy.values()):
            beyond = takewhile(lambda row: row[0].first + row[1] >= below, reversed(queue))
            waiting += len(queue) - sum(1 for _ in beyond)
        return waiting

    async def _work_guarded(self, slot: WorkerSlot) -> None:
        input_queue, window, answer_of = self.input_queue, self._window, self._caller.one
        put = window.put
        segment = await input_queue.after(None)
        while segment is not None:
            first, rows = segment.first, segment.rows
            for position in segment.unread:
                index = first + position
                if index >= window.open_below:
                    await self._enter(index)
                put(segment, position, await answer_of(slot, index, rows[position]))
            segment = await input_queue.after(segment)

    async def _work_by_key(self, slot: WorkerSlot) -> None:
        """Make the calls of each key one after another.

        A worker that makes a key's call goes on with the key's rows that arrived in the meantime.
        Those rows wait in a queue, not in a worker, so that other workers are free for other keys.
        A row gets its position among the rows of its key when it is taken, so that later waits for
        the window do not change the order.
        """
        input_queue, window, busy = self.input_queue, self._window, self._busy
        segment = await input_queue.after(None)
        while segment is not None:
            first, keys = segment.first, segment.keys
            for position in segment.unread:
                key = keys[position]
                if key not in busy:
                    busy[key] = None
                    await self._call_key(slot, key, segment, position)
                    continue
                queue = busy[key]
                if queue is None:
                    queue = busy[key] = deque()
                queue.append((segment, position))
                if first + position >= window.open_below:
                    await self._enter(first + position)
            segment = await input_queue.after(segment)

    async def _call_key(
        self, slot: WorkerSlot, key: Any, segment: RowSegment, position: int
    ) -> None:
        answer_of, window, busy = self._caller.one, self._window, self._busy
        put = window.put
        while True:
            index = segment.first + position
            if index >= window.open_below:
                await self._enter(index)
            put(segment, position, await answer_of(slot, index, segment.rows[position]))
            queue = busy[key]
            if not queue:
                del busy[key]
                return
            segment, position = queue.popleft()

    async def _work_in_batches(self, slot: WorkerSlot) -> None:
        while rows := await self._collector.next_rows():
            await call_together(self._caller, slot, rows, self._window.put, self._answers)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
