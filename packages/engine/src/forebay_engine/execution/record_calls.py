"""``ctx.call``: the calls that records make by their function's `Calls`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.calls.call_permits import CallPermit, CallPermits
from forebay_engine.calls.caller import Caller, ReplaceableClient
from forebay_engine.calls.worker_slots import Sweeper, WorkerSlot
from forebay_engine.execution.waiting_lines import waiting_lines
from forebay_state_api.calls.declared import Calls
from forebay_state_api.metrics.calls import CallMetrics

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record
    from forebay_engine.execution.scheduler import Scheduler

_SHOWN: Final = 3
"""The most calls with a permit that an error shows."""


@attrs.define(eq=False)
class CallTry:
    """A try of a ``ctx.call``."""

    fn: Callable[..., Any]
    """The function that it calls."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: Any = None
    """The record's key."""
    attempt: int = 0
    """1 for the first try, 2 for the first retry or a hedge of the first one, and so on."""

    async def make(self) -> Any:
        """Make one try; raise `TypeError` for a function that cannot be awaited."""
        answer = self.fn(*self.args, **self.kwargs)
        if not inspect.isawaitable(answer):
            raise TypeError(
                f"ctx.call({self.fn!r:.200}, ...) takes a function whose result can be awaited; "
                f"it returned {type(answer).__name__}. Make it async, or call it with "
                "ctx.call(asyncio.to_thread, function, ...)"
            )
        return await answer


@attrs.define(eq=False)
class RecordScope:
    """The record and the namespace for which code runs."""

    record: Record
    namespace: Any
    state_wait: Any = None


class RecordSlot(WorkerSlot):
    """The state of one ``ctx.call``."""

    __slots__ = ("_scope",)

    def __init__(self, task: asyncio.Task[Any], scope: RecordScope) -> None:
        super().__init__(task, str)
        self._scope = scope

    def fixed_call(self) -> None:
        """Return ``None``: code of a record has ``ctx.idempotency_key``."""

    def begin_hedge(self) -> None:
        """Start the second try, as a task of the record."""
        scheduler: Any = self._scope.record.scheduler
        scheduler.run_in_scope(self._scope, super().begin_hedge)


class _RecordCaller(Caller):
    """Makes the tries of calls whose last error goes to the record's own code."""

    def given_up(
        self,
        index: int,  # noqa: ARG002 - a record makes calls, and they have no numbers
        row: Any,  # noqa: ARG002 - the error goes to the record's own code
        error: BaseException,
        tries: int,
        *,
        in_time: bool,
    ) -> Any:
        """Raise the last error, which says how many tries there were."""
        self.counts.failed += 1
        if not in_time and not isinstance(error, TimeoutError):
            error.add_note(self.no_time_left())
        if tries > 1:
            error.add_note(f"raised by try {tries} of a ctx.call")
        raise error


class RecordCalls:
    """Makes the calls of one subtask's records."""

    def __init__(
        self,
        scheduler: Scheduler,
        calls: Calls,
        *,
        in_flight: int | None,
        client: ReplaceableClient,
    ) -> None:
        """``in_flight`` bounds the tries at one time; ``client`` represents all clients."""
        assert scheduler.awaits is not None
        self.counts = CallMetrics()
        self._scheduler = scheduler
        self._stand_in = calls.stand_in
        self._slots: set[WorkerSlot] = set()
        self._permits = None if in_flight is None else CallPermits(in_flight)
        clock = scheduler.awaits.loop.time
        self._sweeper = Sweeper(self._slots, clock)
        self._caller = _RecordCaller(
            self._made,
            calls.policy,
            client=client,
            counts=self.counts,
            sweeper=self._sweeper,
            clock=clock,
            describe=str,
            permits=self._permits,
        )
        scheduler.describe_calls = self._permits_taken

    async def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the answer of a call, or raise the error of its last try."""
        task: Any = asyncio.current_task()
        scheduler = self._scheduler
        record = scheduler.current_record()
        scope = RecordScope(record, scheduler.context._namespace)
        slot = RecordSlot(task, scope)
        self._slots.add(slot)
        try:
            return await self._caller.one(slot, 0, CallTry(fn, args, kwargs, record.key))
        finally:
            self._slots.discard(slot)
            if slot.hedge is not None:
                slot.hedge.cancel()

    async def _made(self, one: CallTry, _: Any) -> Any:
        if self._stand_in is None:
            return await one.make()
        one.attempt += 1
        return await self._stand_in(attrs.evolve(one))

    def _permits_taken(self) -> str:
        """Describe the calls that have the permits, for the error of a record that is late."""
        permits = self._permits
        if permits is None or not permits.waiting:
            return ""
        shown = "".join(f"\n  {_described(permit)}" for permit in permits.used[:_SHOWN])
        return (
            f"; {len(permits.waiting)} call(s) wait for a permit, and all {permits.number} of "
            f"calls_in_flight are taken, by{shown}"
        )

    def close(self) -> None:
        """Stop the timer of deadlines, after the last record."""
        self._sweeper.stop()
        self._scheduler.describe_calls = str

    def counted(self) -> CallMetrics:
        """Return the counts so far."""
        self._caller.count_latencies()
        return self.counts


def _described(permit: CallPermit) -> str:
    """Return whose permit it is, and the line where the call waits."""
    one: CallTry = permit.argument
    lines = waiting_lines(permit.steps)[-1:]
    return " at ".join([f"ctx.call({one.fn!r:.200}, ...) of the key {one.key!r:.200}", *lines])
