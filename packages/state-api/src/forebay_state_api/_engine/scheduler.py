"""Which piece of user code runs next, and when reads go out to the backend's threads.

A record that never waits leaves no trace here. One that does is held as a `Record` under its key
until its function and every future that it made have ended; later records of that key queue behind
it. Reads are collected into batches, which go out when they are full or when nothing else can run:
no access waits for a timer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

import attrs

from forebay_state_api.context import NO_KEY, RuntimeContext
from forebay_state_api.errors import ForebayError, FunctionError, PluginError, StateAccessError
from forebay_state_api.futures import StateFuture, pending

_log = logging.getLogger(__name__)

READ_THREADS: Final = 4
"""Threads that execute batches of reads, for backends whose tables are not resident."""

OWN_THREADS: Final = "forebay-"
"""How the names of Forebay's own threads begin: none of them completes a user's future."""

POLL_EVERY: Final = 32
"""While records wait, answers are looked for after so many admissions."""


class Record:
    """A record in flight: its key and namespace, and what keeps it from ending."""

    __slots__ = ("driver", "group", "key", "namespace", "open", "scheduler", "side", "waiting")

    def __init__(self, scheduler: Scheduler, key: Any, group: int, side: int) -> None:
        self.scheduler = scheduler
        self.key = key
        self.group = group
        self.side = side
        """The input that the record came from."""
        self.namespace: Any = None
        self.open = 1
        """Continuations and requests to come, plus one while the record method runs."""
        self.waiting: deque[Entry] = deque()
        """Later records of the key, in order."""
        self.driver: Any = None
        """The suspended coroutine that the record method runs in."""


Entry = tuple[Any, Any, int, int]
"""A record to be started: (row, key, key group, input side)."""

ReadMany = Callable[[Any, list[Any]], Sequence[Any]]


class Inbox(Protocol):
    """What is to run on the task thread next: a `queue.SimpleQueue`, or `Reads`."""

    def put(self, item: Callable[[], object], /) -> None:
        """Have ``item`` run. Callable from any thread."""

    def get_nowait(self) -> Callable[[], object]:
        """What is to run, or `queue.Empty`."""

    def get(self, *, timeout: float | None = None) -> Callable[[], object]:
        """What is to run; waits, and raises `queue.Empty` after ``timeout`` seconds."""


class Reads(Executor, Inbox):
    """Carries reads out and says in which order they are answered."""


@attrs.frozen(slots=True)
class _Request:
    record: Record
    argument: Any
    future: StateFuture[Any]
    arrive: Callable[[Any], Any]
    """Runs on the task thread with the answer; gives the value of the future."""


@attrs.define
class Counters:
    """What the scheduler saw during a micro-batch."""

    requests: int = 0
    """Reads that went to the backend, read-ahead left out."""
    batches: int = 0
    """Batches in which they went."""
    largest_in_flight: int = 0
    """The most records that were held or queued at once."""


class Scheduler:
    """The in-flight records and requests of one subtask.

    All methods but `post` and `is_task_thread` are for the task thread: the one that entered the
    engine last.
    """

    def __init__(
        self,
        context: RuntimeContext,
        *,
        in_flight_limit: int,
        batch_size: int,
        drain_timeout_s: float,
    ) -> None:
        self.context = context
        self.ready: deque[StateFuture[Any]] = deque()
        self.busy: dict[Any, Record] = {}
        self.blocked = 0
        self.current: Record | None = None
        self.side = 0
        """The input that rows are being taken from."""
        self.start: Callable[[Entry], None]
        """Set by the engine: runs a record that was queued."""
        self.bind_namespace: Callable[[Any], None]
        """Set by the engine: makes a namespace the current one."""
        self.describe: Callable[[], str]
        """Set by the engine: function, operator, key, batch and partition, for errors."""
        self.counters = Counters()
        self._limit = in_flight_limit
        self._batch_size = batch_size
        self._drain_timeout_s = drain_timeout_s
        self._queued: dict[tuple[int, Any], tuple[ReadMany, Any, list[_Request]]] = {}
        self._queued_count = 0
        self._outstanding = 0
        self._inbox: Inbox = queue.SimpleQueue()
        self._executor: Executor | None = None
        self._task_thread = threading.get_ident()
        self._admitted = 0
        self._restarting = False

    # -- records ------------------------------------------------------------------------------

    def current_record(self) -> Record:
        """The record whose code is running, put on hold if it was not yet."""
        record = self.current
        if record is None:
            key = self.context._key
            if key is NO_KEY:
                message = (
                    "there is no current record: a namespace is set, and futures of states are "
                    "waited for, per record, in the record method or in callbacks of its futures, "
                    "not in open() or close()"
                )
                raise StateAccessError(message)
            record = self.current = Record(self, key, self.context._group, self.side)
            self.busy[key] = record
            in_flight = len(self.busy) + self.blocked
            self.counters.largest_in_flight = max(self.counters.largest_in_flight, in_flight)
        return record

    def hold(self) -> Record:
        """The current record, with one more continuation to come."""
        record = self.current_record()
        record.open += 1
        return record

    def leave(self) -> None:
        """The current record's method has returned."""
        record = self._set_aside()
        record.open -= 1
        if not record.open:
            self._finish(record)

    def suspend(self, driver: Any) -> None:
        """The current record's method waits inside ``driver``."""
        record = self._set_aside()
        record.driver = driver

    def _set_aside(self) -> Record:
        record = self.current_record()
        self.current = None
        record.namespace = self.context._namespace
        if record.namespace is not None:
            self.bind_namespace(None)
        return record

    def resume(self, record: Record, callback: Callable[[Any], object], value: Any) -> None:
        """Run a continuation with the record's key, namespace and context restored."""
        context = self.context
        before = (self.current, context._key, context._group, context._namespace)
        self._restore(record, record.key, record.group, record.namespace)
        callback(value)
        record.namespace = context._namespace
        self._restore(*before)
        record.open -= 1
        if not record.open:
            self._finish(record)

    def _restore(self, record: Record | None, key: Any, group: int, namespace: Any) -> None:
        context = self.context
        self.current = record
        context._key = key
        context._group = group
        if context._namespace != namespace:
            self.bind_namespace(namespace)

    def _finish(self, record: Record) -> None:
        """Free the key and start the records that waited for it."""
        del self.busy[record.key]
        waiting = record.waiting
        while waiting:
            entry = waiting.popleft()
            self.blocked -= 1
            self._restarting = True
            self.start(entry)
            self._restarting = False
            holder = self.busy.get(record.key)
            if holder is not None:
                holder.waiting = waiting
                return

    def must_wait(self, row: Any, key: Any, group: int, side: int) -> bool:
        """Queue the record if its key is held; make room where too many are in flight."""
        if self._restarting:
            # It has waited: its key is free, and it was counted when it came.
            self._restarting = False
            return False
        holder = self.busy.get(key)
        if holder is not None:
            holder.waiting.append((row, key, group, side))
            self.blocked += 1
        self._admitted += 1
        if len(self.busy) + self.blocked >= self._limit:
            self.run_until(lambda: len(self.busy) + self.blocked < self._limit)
        elif self._admitted % POLL_EVERY == 0:
            self._turn()
        return holder is not None

    # -- reads --------------------------------------------------------------------------------

    def read(
        self,
        owner: object,
        read_many: ReadMany,
        namespace: Any,
        argument: Any,
        arrive: Callable[[Any], Any],
    ) -> StateFuture[Any]:
        """A future of ``arrive(answer)``, the answer coming from ``read_many`` on some thread.

        Requests of one ``owner`` and namespace go out in one call: an owner has one ``read_many``.
        """
        future = pending()
        request = _Request(self.hold(), argument, future, arrive)
        batch = self._queued.get((id(owner), namespace))
        if batch is None:
            batch = self._queued[id(owner), namespace] = (read_many, namespace, [])
        batch[2].append(request)
        self._queued_count += 1
        if self._queued_count >= self._batch_size:
            self.send()
        return future

    def send(self) -> None:
        """Hand the queued requests to the backend's threads."""
        batches, self._queued, self._queued_count = list(self._queued.values()), {}, 0
        for read_many, namespace, requests in batches:
            self._outstanding += 1
            self.counters.batches += 1
            self.counters.requests += len(requests)
            self.executor().submit(self._execute, read_many, namespace, requests)

    def read_through(self, reads: Reads) -> None:
        """Have ``reads`` carry out all reads from now on, instead of threads; for tests."""
        self._executor = self._inbox = reads

    def executor(self) -> Executor:
        """The threads for reads, started when the first one is needed."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="forebay-read")
        return self._executor

    def _execute(self, read_many: ReadMany, namespace: Any, requests: list[_Request]) -> None:
        try:
            answers = read_many(namespace, [request.argument for request in requests])
            _check_count(len(requests), len(answers))
        except BaseException as error:  # noqa: BLE001 - it is raised again on the task thread
            self._inbox.put(partial(self._fail, error))
        else:
            self._inbox.put(partial(self._answer, requests, answers))

    def _fail(self, error: BaseException) -> None:
        self._outstanding -= 1
        if isinstance(error, Exception) and not isinstance(error, ForebayError):
            message = f"the state backend failed in a read: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        raise error

    def _answer(self, requests: list[_Request], answers: Sequence[Any]) -> None:
        self._outstanding -= 1
        for request, answer in zip(requests, answers, strict=True):
            record = request.record
            if not request.future._done:
                request.future._fulfil(request.arrive(answer))
            record.open -= 1
            if not record.open:
                self._finish(record)

    # -- progress -----------------------------------------------------------------------------

    def is_task_thread(self) -> bool:
        """Whether the caller runs on the task thread."""
        return threading.get_ident() == self._task_thread

    def enter(self) -> None:
        """Make this thread the task thread."""
        self._task_thread = threading.get_ident()

    def post(self, action: Callable[[], object]) -> None:
        """Have ``action`` run on the task thread. Callable from any thread."""
        self._inbox.put(action)

    @property
    def idle(self) -> bool:
        """No record is in flight."""
        return not self.busy and not self.ready

    @property
    def waiting_requests(self) -> int:
        """Requests that were not answered yet; batches under way count as one."""
        return self._queued_count + self._outstanding

    def _turn(self) -> bool:
        """Run everything that can run now; whether there was anything."""
        moved = False
        while True:
            while self.ready:
                self.ready.popleft()._deliver()
                moved = True
            try:
                arrival = self._inbox.get_nowait()
            except queue.Empty:
                return moved
            arrival()
            moved = True

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run what can run, sending requests and waiting for answers, until ``done()``."""
        while not done():
            if self._turn():
                continue
            if self._queued_count:
                self.send()
            elif self._outstanding:
                self._inbox.get()()
            else:
                self._await_foreign()

    def advance(self) -> None:
        """Run what can run now and send what was asked for, without waiting."""
        self._turn()
        self.send()

    def settle(self) -> None:
        """Until no request is out and nothing can run; records may wait for other threads."""
        self.run_until(lambda: not self.waiting_requests and not self.ready)

    def drain(self) -> None:
        """Until no record is in flight and no request is out."""
        self.run_until(lambda: self.idle and not self.waiting_requests)

    def _await_foreign(self) -> None:
        """Only another thread can complete what the records wait for: give it time."""
        if not self._other_threads():
            raise self._stuck("and no other thread lives that could")
        try:
            arrival = self._inbox.get(timeout=self._drain_timeout_s)
        except queue.Empty:
            limit = f"within the drain timeout of {self._drain_timeout_s:g} s"
            raise self._stuck(limit) from None
        arrival()

    def _other_threads(self) -> bool:
        return any(
            thread.ident != self._task_thread and not thread.name.startswith(OWN_THREADS)
            for thread in threading.enumerate()
        )

    def _stuck(self, why: str) -> FunctionError:
        self.current = record = next(iter(self.busy.values()))
        self.context._key = record.key
        waiting = len(self.busy)
        return FunctionError(
            f"{self.describe()} waits for a StateFuture that nobody completed, {why}; "
            f"{waiting} record(s) wait in this subtask"
        )

    def close(self) -> None:
        """Let go of the threads; requests under way end unheard, coroutines are closed."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        for record in self.busy.values():
            if record.driver is not None:
                _close(record.driver)
        self.busy.clear()


def _close(driver: Any) -> None:
    """End a suspended coroutine; what its ``finally`` raises comes too late to matter."""
    try:
        driver.close()
    except Exception:  # noqa: BLE001 - any code of the user's may stand there
        _log.debug("a record that was given up failed as it was closed", exc_info=True)


def _check_count(asked: int, answered: int) -> None:
    if asked != answered:
        message = f"it was asked for {asked} cells and answered {answered}"
        raise ValueError(message)
