"""Runs the calls of one task: at most ``capacity`` workers, which share the input.

A worker takes a row, awaits the function in its own task and puts the answer into the window.
There is no task, timer or lock for a record. Workers are started one by one as rows wait and all
others are busy, so that a function that never waits is called by one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import takewhile
from typing import Any, Final

from forebay_spark_runtime.waiting.answer_window import (
    Emit,
    OrderedWindow,
    RowSegment,
    UnorderedWindow,
)
from forebay_spark_runtime.waiting.batched_calls import BatchCollector, call_together
from forebay_spark_runtime.waiting.caller import (
    MEASURED_TRIES,
    AsyncFunction,
    Caller,
    CallPolicy,
    NoClient,
    ReplaceableClient,
)
from forebay_spark_runtime.waiting.counts import Counts
from forebay_spark_runtime.waiting.current_call import CURRENT
from forebay_spark_runtime.waiting.input_queue import InputQueue
from forebay_spark_runtime.waiting.worker_slots import Sweeper, WorkerSlot

SAMPLED: Final = 8
"""Of a worker's bare calls, every so manyth is timed once thousands have been; a power of two."""


class CallEngine:
    """The calls of one task. Everything happens on the event loop that awaits `run`.

    Push the rows into ``input_queue`` and end it; answers come out through ``emit``.
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
    ) -> None:
        """``key_of`` gives a row's idempotency key, ``describe`` its name in errors.

        ``ready`` is awaited before each try, outside of its time. No call has some of the first
        ``rows_kept`` rows together with later ones.
        """
        self.counts = Counts()
        self.input_queue = InputQueue(taken=self._taken, spawn=self._spawn, clock=clock)
        self.on_taken: Callable[[], None] = lambda: None
        """Called when a segment was taken: there is room for another one."""
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
        self._caller = Caller(
            fn,
            policy,
            client=client or NoClient(),
            counts=self.counts,
            sweeper=self._sweeper,
            clock=clock,
            describe=describe,
            ready=ready,
        )
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
                policy.batch, self.input_queue, self._window, self._rows_kept
            )
            return self._work_in_batches
        if policy.keyed:
            return self._work_by_key
        bare = policy.bare and policy.ordered and self._caller.may_call_at_once
        return self._work_bare if bare else self._work_guarded

    async def run(self) -> None:
        """Make all calls; returns when every answer has gone out.

        The first failure cancels the other calls and is raised when they have ended; what has
        gone out by then is a correct prefix (ordered) or part (unordered) of the answers.
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
        """Nothing begins any more and nothing goes out, also where a call ignores its end."""
        self._stopped = self._caller.stopped = True
        self._workers = self._policy.capacity
        self.input_queue.stop()

    def leave(self) -> list[tuple[RowSegment, int]]:
        """End without the answers that are not there yet: their calls are cancelled.

        Returns the rows that have not gone out, in order; `run` returns soon after. Call it when
        the input_queue is spent.
        """
        left = self._window.leave()
        self.counts.carried += len(left)
        self._stop()
        for slot in tuple(self._slots):
            slot.task.cancel()
        return left

    @property
    def first_open(self) -> int | None:
        """Index of the first row, of those taken, that has no answer."""
        return self._window.first_open()

    def _go_out(self, segment: RowSegment, positions: list[int] | None) -> None:
        if not self._stopped:
            self._emit(segment, positions)

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self._caller.in_flight

    @property
    def blocked(self) -> int:
        """Answers that wait for an earlier one."""
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
            # Out of a task they would end the loop, and with it every call of the process.
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
        """Ordered, and nothing around the call: what costs time here, costs it for every record.

        A worker counts its answers and tells the window when it leaves the segment.
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
        """Rows within the window that wait for an earlier call of their key."""
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
        """The worker that calls for a key goes on with the rows that came for it meanwhile.

        Those rows wait beside the workers, so that they keep none of them from other keys' rows.
        A row has its place among those of its key from the moment in which it is taken: whoever
        waits for the window afterwards, the order is settled.
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
            await call_together(self._caller, slot, rows, self._window.put)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
