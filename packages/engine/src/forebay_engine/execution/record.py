"""A record in flight: its key, its pending steps and requests, and their order.

User code runs in steps, each to its end: the method up to its return or an ``await``, a callback,
a resumed coroutine. The requests of a record are numbered as they are made, and complete in that
order; everything that depends on one runs before the next completes
(docs/decisions/0008-the-life-of-a-record.md).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay_state_api.job.futures import LAST

if TYPE_CHECKING:
    from forebay_state_api.job.futures import Promise, StateFuture
    from forebay_state_api.job.record_scope import Waiter

Turn = tuple[int, int, int, Any, Callable[[Any], object] | None, Any]
"""(number, position, tie, namespace, callback, value): a step to run in ``namespace``, or, if
``callback`` is ``None``, the promise ``value`` to complete once it is answered.

The smallest is next. A callback attached to a future that was already done has the number of the
request that completed last, and the position `LAST`.
"""

Step = tuple[Any, Callable[[Any], object], Any]
"""(namespace, callback, value)."""

Entry = tuple[Any, Any, int, int]
"""A record to start: (row, key, key group, input side)."""


class Record:
    """A record in flight."""

    __slots__ = (
        "calls",
        "children",
        "completed",
        "driven",
        "driver",
        "ending",
        "error",
        "failed",
        "group",
        "idempotency_key",
        "issued",
        "key",
        "log",
        "loop_waits",
        "namespace",
        "open",
        "pushed",
        "reached",
        "row",
        "rows",
        "scheduler",
        "side",
        "stack",
        "turns",
        "unread",
        "waiting",
    )

    def __init__(self, scheduler: Waiter, key: Any, group: int, side: int) -> None:
        self.scheduler = scheduler
        self.key = key
        self.group = group
        self.side = side
        """The input that the record came from."""
        self.row: Any
        """Its input row, or the time of its timer; set by the scheduler."""
        self.namespace: Any
        """The namespace in which it began: its timer's; set by the scheduler."""
        self.idempotency_key: str | None = None
        """The key that its calls send to a service, once it has asked for it."""
        self.open = 1
        """Steps and requests to come, plus one while the record method runs."""
        self.waiting: deque[Entry] | None = None
        """Later records of the key, in order."""
        self.driver: Any = None
        """The suspended coroutine in which the record method runs, or its steps."""
        self.driven: set[Any] | None = None
        """The other coroutines that its code has returned and that have not ended, or their steps.
        """
        self.stack: list[Step] = []
        """Steps that depend on the request that completes now; the last runs next, before turns."""
        self.turns: list[Turn] = []
        """A heap of steps to run and requests to complete."""
        self.issued = 0
        """The number of the last request."""
        self.completed = 0
        """Requests up to this number have completed."""
        self.reached = 0
        """The steps that depend on the last of them have run up to this position."""
        self.pushed = 0
        """The number of turns pushed so far; it breaks ties in the order of attachment."""
        self.loop_waits = 0
        """The futures of the loop that it waits for, and its children."""
        self.children: set[Any] | None = None
        """Unfinished tasks that the record's code has created."""
        self.unread: list[Any] | None = None
        """Failed tasks whose errors were not retrieved so far."""
        self.calls: list[Any] | None = None
        """The calls of ``ctx.call`` of the record, or at least the ones not awaited so far."""
        self.rows: list[Any] | None = None
        """Rows that it emitted; the scheduler emits them when it ends."""
        # The rest is for records that fail alone; here, because a call that adds it costs more.
        self.log: Any = None
        """The last entry of the journal about its changes."""
        self.error: Exception | None = None
        """An error with which it fails at its end, even if its code caught it."""
        self.ending = False
        """Whether it was cancelled, and fails once its coroutines and children are done."""
        self.failed = False
        """Whether it has failed: nothing of it runs any more."""

    def number(self, future: StateFuture[Any]) -> None:
        """Make ``future`` the next request."""
        self.issued += 1
        future._record = self
        future._number = self.issued
        future._position = LAST

    def push_request(self, promise: Promise[Any]) -> None:
        """Number a request that completes once it is answered."""
        self.issued += 1
        self.open += 1
        heapq.heappush(self.turns, (self.issued, 0, 0, None, None, promise))

    def has_completed(self, number: int, position: int) -> bool:
        """Return whether a request, or a combination at a position of its number, has completed."""
        if number == self.completed:
            return position == LAST or position <= self.reached
        return number < self.completed

    def advance_to(self, number: int, position: int) -> None:
        """Note that the steps up to this one have run."""
        if number > self.completed:
            self.completed, self.reached = number, position
        elif number == self.completed and position > self.reached:
            self.reached = position

    def push(
        self,
        number: int,
        position: int,
        namespace: Any,
        callback: Callable[[Any], object],
        value: Any,
    ) -> None:
        """Schedule a step that was counted in `open`; with `LAST`, after all of ``number``."""
        self.pushed += 1
        if self.has_completed(number, position):
            # It has completed: this is next, after the steps of the request completing now.
            number, position = self.completed, LAST
        elif position == LAST:
            position = self.pushed
        turn = (number, position, self.pushed, namespace, callback, value)
        heapq.heappush(self.turns, turn)

    def push_arrival(self, namespace: Any, callback: Callable[[Any], object], value: Any) -> None:
        """Schedule a step that was counted in `open`, after all requests made so far."""
        self.issued += 1
        self.push(self.issued, LAST, namespace, callback, value)

    def push_next(self, namespace: Any, callback: Callable[[Any], object], value: Any) -> None:
        """Schedule a step that was counted in `open`, before requests that have not completed."""
        self.push(0, LAST, namespace, callback, value)

    def next_is(self, namespace: Any, callback: Callable[[Any], object], value: Any) -> None:
        """Do as `push_arrival` or `push_next`, at less cost, where no step waits and none runs."""
        self.issued += 1
        self.pushed += 1
        self.completed, self.reached = self.issued, self.pushed
        self.stack.append((namespace, callback, value))
