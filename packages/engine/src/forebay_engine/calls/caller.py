"""Makes the tries of one record, or batch of records, until there is an answer.

The worker that took a record makes all of its tries and waits between them. No timer or other task
can answer for the record: in any race it has one owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from forebay_engine.calls.call_permits import CallPermit, CallPermits
from forebay_engine.calls.current_call import CURRENT
from forebay_engine.calls.operator_clients import is_closed
from forebay_engine.calls.rate import RateLimiter
from forebay_engine.calls.retry import RecordTries, RetryPolicy, later
from forebay_engine.calls.worker_slots import NEVER, Sweeper, WorkerSlot
from forebay_state_api.calls.errors import ClientBrokenError
from forebay_state_api.calls.policies import AsyncFunction, CallPolicy, Verdict
from forebay_state_api.errors import FunctionError
from forebay_state_api.metrics.calls import CallMetrics

MEASURED_TRIES: Final = 4_096
"""The number of durations that are collected before they are added to the histogram."""


class ReplaceableClient(Protocol):
    """The client that functions get, which may have to be replaced."""

    @property
    def current(self) -> Any:
        """The client that the function gets; ``None`` without resources."""

    @property
    def opening(self) -> bool:
        """Whether a replacement of ``current`` is being opened; no call begins until it is open."""

    async def opened(self) -> None:
        """Wait until a replacement is open."""

    async def replace(self, broken: Any) -> None:
        """Replace ``broken``, unless it has been replaced already."""


class NoClient:
    """The client of a function without resources: ``None``."""

    current: Any = None
    opening = False

    async def opened(self) -> None:
        """Return at once."""

    async def replace(self, broken: Any) -> None:
        """Do nothing."""


class Caller:
    """Makes the calls of all workers of one task."""

    def __init__(
        self,
        fn: AsyncFunction,
        policy: CallPolicy,
        *,
        client: ReplaceableClient,
        counts: CallMetrics,
        sweeper: Sweeper,
        clock: Callable[[], float],
        describe: Callable[[int], str],
        ready: Callable[[], Awaitable[None]] | None = None,
        permits: CallPermits | None = None,
    ) -> None:
        """Prepare the caller; the parameters are documented at `CallEngine`.

        ``permits`` bounds the calls in flight, where their number is not the number of workers. A
        try takes one before its turn of the rate, and a hedge starts only if one is free at once.
        Calls that a try makes use its permit, so they never wait for what it holds.
        """
        self.fn = fn
        self.client = client
        self.policy = policy
        self.counts = counts
        self.took: list[float] = []
        self.in_flight = 0
        self.stopped = False
        """Set when the task is to end: a call that ignores its cancellation has no outcome."""
        self.now = clock
        self._sweeper = sweeper
        self.describe = describe
        self._ready = ready
        self._permits = permits
        self._limiter = None if policy.rate is None else RateLimiter(policy.rate, clock)
        self._retries = RetryPolicy(policy.retry)
        self._checks_answers = policy.retry is not None and policy.retry.on_result is not None
        self._hedged: set[asyncio.Task[Any]] = set()

    @property
    def may_call_at_once(self) -> bool:
        """Whether a try never has to wait before it begins."""
        return self._limiter is None and self._ready is None

    async def one(self, slot: WorkerSlot, index: int, row: Any) -> Any:
        """Return the answer for a row, or the result of ``on_error`` if it fails."""
        slot.indexes = index
        slot.attempt = 1
        end = NEVER
        record: RecordTries | None = None
        while True:
            answer, error, end = await self.attempt(slot, row, end)
            verdict: Verdict | None = None
            if error is None:
                refused = self._retries.refusal(answer) if self._checks_answers else None
                if refused is None:
                    return answer
                error, verdict = refused
            record = record or RecordTries()
            replaced = await self.replaced(slot.client, error)
            delay = self.delay_s(error, record, verdict, replaced=replaced)
            if delay is None or self.now() + delay >= end:
                return self.given_up(index, row, error, slot.attempt, in_time=delay is None)
            await self.wait(slot, delay)

    async def attempt(self, slot: WorkerSlot, argument: Any, end: float) -> tuple[Any, Any, float]:
        """Make one try as soon as it is allowed.

        Returns the answer, the error, and the time at which all tries must be done. The timeout
        runs from the beginning of the first try; the wait for its turn does not count.
        """
        if self._permits is None:
            return await self._attempt(slot, argument, end)
        slot.permit = permit = await self._permits.take(argument)
        try:
            return await self._attempt(slot, argument, end)
        finally:
            permit.give_back()

    async def _attempt(self, slot: WorkerSlot, argument: Any, end: float) -> tuple[Any, Any, float]:
        if self._limiter is not None or self._ready is not None or self.client.opening:
            await self._turn()
        started = self.now()
        if slot.attempt == 1 and self.policy.timeout is not None:
            end = started + self.policy.timeout
        if started >= end:
            return None, self._no_time_error("timeout", self.policy.timeout), end
        answer, error = await self._try(slot, argument, started, end)
        return answer, error, end

    async def _try(
        self, slot: WorkerSlot, argument: Any, started: float, end: float
    ) -> tuple[Any, BaseException | None]:
        """Make one call; cancel it when its time is over."""
        limit = self.policy.try_timeout
        deadline = end if limit is None else min(started + limit, end)
        sweeper = self._sweeper
        slot.deadline = deadline
        if deadline < sweeper.wake:
            sweeper.arm(deadline)
        if self.policy.hedge is not None:
            self._prepare_hedge(slot, argument, started + self.policy.hedge)
        error: BaseException | None = None
        answer: Any = None
        slot.client = client = self.client.current
        self.begin()
        self.counts.tries += 1
        try:
            answer = await _running(self.fn(argument, client), slot.permit)
        except asyncio.CancelledError as cancelled:
            error = _why_cancelled(slot, cancelled)
        except Exception as raised:  # noqa: BLE001 - the retry policy decides what happens to it
            error = raised
        if slot.hedge is not None or slot.hedge_won:
            answer, error = await self._with_hedge(slot, answer, error)
        self.end()
        slot.deadline = slot.hedge_at = NEVER
        if slot.expired:
            error = self._timeout_error(slot, error, overall=deadline >= end)
        self._took(self.now() - started)
        if self.stopped:
            raise asyncio.CancelledError
        return answer, error

    def _took(self, duration_s: float) -> None:
        self.took.append(duration_s)
        if len(self.took) >= MEASURED_TRIES:
            self.count_latencies()

    def begin(self) -> None:
        """Count a call that begins."""
        self.in_flight += 1
        self.counts.in_flight_max = max(self.counts.in_flight_max, self.in_flight)

    def end(self) -> None:
        """Count a call that ends."""
        self.in_flight -= 1

    def count_latencies(self) -> None:
        """Move the measured durations into the histogram."""
        self.counts.latency.add(self.took)
        self.took.clear()

    def _timeout_error(
        self, slot: WorkerSlot, error: BaseException | None, *, overall: bool
    ) -> TimeoutError:
        """Return the error of a call that timed out, whatever its function did afterwards."""
        slot.expired = False
        _take_back(slot)
        self.counts.timeouts += 1
        limit = self.policy.timeout if overall else self.policy.try_timeout
        late = self._no_time_error("timeout" if overall else "try_timeout", limit)
        late.__cause__ = error
        return late

    def _no_time_error(self, which: str, limit: float | None) -> TimeoutError:
        return TimeoutError(f"no answer within the {which} of {limit:g} s")

    async def _turn(self) -> None:
        if self._limiter is None:
            await self._prepared()
        else:
            await self._limiter.acquire(self._prepared)

    async def _prepared(self) -> None:
        """Wait until the client is open and a thread is free."""
        while True:
            if self.client.opening:
                await self.client.opened()
            if self._ready is not None:
                await self._ready()
            if not self.client.opening:
                return

    async def replaced(self, client: Any, error: BaseException) -> bool:
        """Replace the ``client`` of a call if it is what failed; return whether it was replaced."""
        if client is None or not (isinstance(error, ClientBrokenError) or is_closed(client)):
            return False
        await self.client.replace(client)
        return True

    def delay_s(
        self,
        error: BaseException,
        record: RecordTries,
        verdict: Verdict | None = None,
        *,
        replaced: bool = False,
    ) -> float | None:
        """Return the seconds until a record's next try; see `RetryPolicy.delay_s`."""
        if later(error) is not None:
            self.counts.laters += 1
        return self._retries.delay_s(error, record, True if replaced else verdict)

    def refusal(self, answer: Any) -> tuple[Exception, Verdict] | None:
        """Return the error for a refused answer; see `RetryPolicy.refusal`."""
        return self._retries.refusal(answer)

    async def wait(self, slot: WorkerSlot, delay: float) -> None:
        """Wait ``delay`` seconds for the next try."""
        self.counts.retries += 1
        await asyncio.sleep(delay)
        slot.attempt += 1

    def given_up(
        self, index: int, row: Any, error: BaseException, tries: int, *, in_time: bool
    ) -> Any:
        """Return the result of ``on_error``; without it, raise the error that fails the batch."""
        if not in_time and not isinstance(error, TimeoutError):
            error.add_note(self.no_time_left())
        if self.policy.on_error is None:
            raise self.failure(index, error, tries) from error
        self.counts.failed += 1
        try:
            return self.policy.on_error(row, error, tries)
        except Exception as raised:
            raise FunctionError(
                f"on_error raised {type(raised).__name__}: {raised} for {self.describe(index)}"
            ) from raised

    def no_time_left(self) -> str:
        """Return the note about an error after which the timeout allows no other try."""
        return f"the timeout of {self.policy.timeout:g} s leaves no time for another try"

    def failure(self, index: int, error: BaseException, tries: int) -> FunctionError:
        """Return the error that fails the micro-batch."""
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        times = "" if tries == 1 else f" at try {tries}"
        return FunctionError(
            f"{self.describe(index)} raised {type(error).__name__}: {error}{notes}{times}. The "
            "micro-batch fails and is run again; on_error= keeps failing rows in it"
        )

    # --- hedging -------------------------------------------------------------------------------

    def _prepare_hedge(self, slot: WorkerSlot, argument: Any, at: float) -> None:
        """Set the sweeper to start a second call at ``at``, if that is allowed then.

        The second call is not made while the client is being replaced, or if the rate has no turn
        for it at once: if it waited for a turn, it would take another row's.
        """
        fixed = slot.fixed_call()

        def start() -> asyncio.Task[Any] | None:
            limiter, permits = self._limiter, self._permits
            if self.client.opening or (permits is not None and not permits.free):
                return None
            if not (limiter is None or limiter.acquire_at_once()):
                return None
            self.counts.hedges += 1
            permit = None if permits is None else permits.take_free(argument)
            task = asyncio.get_running_loop().create_task(second(permit))
            self._hedged.add(task)
            task.add_done_callback(lambda done: self._hedge_done(slot, done, permit))
            return task

        async def second(permit: CallPermit | None) -> Any:
            if fixed is not None:
                CURRENT.set(fixed)
            try:
                return await _running(self.fn(argument, self.client.current), permit)
            except (SystemExit, KeyboardInterrupt) as error:
                raise RuntimeError(f"the second call raised {type(error).__name__}") from error

        slot.start_hedge = start
        slot.hedge_at = at
        if at < self._sweeper.wake:
            self._sweeper.arm(at)

    def _hedge_done(
        self, slot: WorkerSlot, task: asyncio.Task[Any], permit: CallPermit | None
    ) -> None:
        self._hedged.discard(task)
        if permit is not None:
            permit.give_back()
        won = not task.cancelled() and task.exception() is None
        if won and slot.hedge is task and not slot.expired:
            slot.deadline = NEVER
            slot.hedge_won = True
            slot.task.cancel()

    async def _with_hedge(
        self, slot: WorkerSlot, answer: Any, error: BaseException | None
    ) -> tuple[Any, BaseException | None]:
        """Choose between the first call, which is done, and the second one."""
        hedge = slot.hedge
        if slot.hedge_won:
            # The first call may be done by itself at the same moment.
            slot.hedge_won = False
            _take_back(slot)
            self.counts.hedges_won += 1
            assert hedge is not None
            answer, error = hedge.result(), None
        elif hedge is not None and error is not None and not slot.expired:
            slot.hedge = None
            answer, error = await self._second_chance(slot, hedge, error)
        slot.hedge = None
        if hedge is not None:
            hedge.cancel()
        return answer, error

    async def _second_chance(
        self, slot: WorkerSlot, hedge: asyncio.Task[Any], error: BaseException
    ) -> tuple[Any, BaseException | None]:
        """Await the second call after the first one failed, within the same time limit."""
        try:
            answer = await hedge
        except asyncio.CancelledError:
            if not slot.expired and slot.task.cancelling():
                raise
            return None, error
        except Exception:  # noqa: BLE001 - the first call's error is reported
            return None, error
        self.counts.hedges_won += 1
        return answer, None

    async def close(self) -> None:
        """Cancel the remaining second calls and wait until they are done."""
        for task in tuple(self._hedged):
            task.cancel()
        await asyncio.gather(*self._hedged, return_exceptions=True)


def _running(tried: Awaitable[Any], permit: CallPermit | None) -> Awaitable[Any]:
    return tried if permit is None else permit.running(tried)


def _why_cancelled(slot: WorkerSlot, cancelled: asyncio.CancelledError) -> BaseException | None:
    """Return the error of a cancelled call; ``None`` if the second call has answered.

    Raises ``cancelled`` if the whole task is being cancelled.
    """
    if slot.expired:
        return cancelled
    if slot.hedge_won:
        return None
    if slot.task.cancelling():
        raise cancelled
    error = RuntimeError("the call was cancelled by something that it waited for")
    error.__cause__ = cancelled
    return error


def _take_back(slot: WorkerSlot) -> None:
    """Undo the sweeper's cancellation, unless the task was cancelled from outside as well."""
    if slot.task.uncancel():
        raise asyncio.CancelledError
