"""Reads on their way to the backend: collected into batches, and executed on threads.

A batch is sent when it is full or when no record can go on: no read waits for a timer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Protocol

import attrs

from forebay_state_api.errors import ForebayError, PluginError
from forebay_state_api.job.futures import Promise
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.threads import ReadThreads

READ_THREADS: Final = 4
"""Threads that execute batches of reads, for backends whose tables are not resident."""

ReadMany = Callable[[Any, list[Any]], Sequence[Any]]


class Inbox(Protocol):
    """The queue of actions for the task thread: a `queue.SimpleQueue`, or `ReadExecutor`."""

    def put(self, item: Callable[[], object], /) -> None:
        """Add an action. Callable from any thread."""

    def get_nowait(self) -> Callable[[], object]:
        """Return the next action, or raise `queue.Empty`."""

    def get(self, *, timeout: float | None = None) -> Callable[[], object]:
        """Return the next action; wait, and raise `queue.Empty` after ``timeout`` seconds."""


class ReadExecutor(Executor, Inbox):
    """Executes reads, and decides in which order they are answered."""


@attrs.frozen(slots=True)
class Request:
    """A read whose answer a record waits for."""

    promise: Promise[Any]
    argument: Any
    arrive: Callable[[Any], Any]
    """Runs on the task thread with the answer; returns the value of the promise."""


class ReadRequests:
    """The reads of one subtask that have no answer yet."""

    def __init__(
        self,
        batch_size: int,
        counters: EngineMetrics,
        *,
        post: Callable[[Callable[[], object]], None],
        answer: Callable[[list[Request], Sequence[Any]], None],
    ) -> None:
        """``post`` runs an action on the task thread, where ``answer`` takes a batch's answers."""
        self._batch_size = batch_size
        self._counters = counters
        self._post = post
        self._answer = answer
        self._queued: dict[tuple[int, Any], tuple[ReadMany, Any, list[Request]]] = {}
        self._executor: Executor | None = None
        self.queued = 0
        """Reads that have not been sent."""
        self._sent: dict[int, list[Request]] = {}
        """Batches that have been sent and not answered, by number.

        The threads get their arguments only: a future that nobody keeps goes when it is answered.
        """
        self._numbers = itertools.count()

    def add(self, owner: object, read_many: ReadMany, namespace: Any, request: Request) -> None:
        """Queue a read. Reads of one ``owner`` and namespace are sent in one call."""
        batch = self._queued.get((id(owner), namespace))
        if batch is None:
            batch = self._queued[id(owner), namespace] = (read_many, namespace, [])
        batch[2].append(request)
        self.queued += 1
        if self.queued >= self._batch_size:
            self.send()

    def send(self) -> None:
        """Send the queued reads to the backend's threads."""
        batches, self._queued, self.queued = list(self._queued.values()), {}, 0
        for read_many, namespace, requests in batches:
            number = next(self._numbers)
            self._sent[number] = requests
            self._counters.request_batches += 1
            self._counters.requests += len(requests)
            arguments = [request.argument for request in requests]
            self.executor().submit(self._execute, number, read_many, namespace, arguments)

    @property
    def outstanding(self) -> int:
        """Batches that have been sent and not answered."""
        return len(self._sent)

    def executor(self) -> Executor:
        """The threads for reads, started on demand."""
        if self._executor is None:
            self._executor = ReadThreads(READ_THREADS, "forebay-read")
        return self._executor

    def execute_in(self, executor: Executor, *, instead: bool) -> None:
        """Let ``executor`` execute reads from now on, ``instead`` of a previous one."""
        if self._executor is None or instead:
            self._executor = executor

    def close(self) -> None:
        """Release the threads; the answers of pending reads are ignored."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def _execute(
        self, number: int, read_many: ReadMany, namespace: Any, arguments: list[Any]
    ) -> None:
        try:
            answers = read_many(namespace, arguments)
            _check_count(len(arguments), len(answers))
        except BaseException as error:  # noqa: BLE001 - raised again on the task thread
            self._post(partial(self._fail, number, error))
        else:
            self._post(partial(self._answered, number, answers))

    def _answered(self, number: int, answers: Sequence[Any]) -> None:
        self._answer(self._sent.pop(number), answers)

    def _fail(self, number: int, error: BaseException) -> None:
        del self._sent[number]
        if isinstance(error, Exception) and not isinstance(error, ForebayError):
            raise PluginError(
                f"the state backend failed in a read: {type(error).__name__}: {error}"
            ) from error
        raise error


def _check_count(asked: int, answered: int) -> None:
    if asked != answered:
        raise ValueError(f"it was asked for {asked} cells and answered {answered}")
