"""The window of rows between input and output, in which answers wait for their turn.

Rows come in segments of about a thousand, and an answer is stored in its segment. The ordered
window emits whole segments from the head; the unordered window emits rows as they are answered. At
most ``limit`` rows are between the first row without an answer and the last row taken, so that
memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeAlias

PENDING: Final = object()
"""The placeholder of an answer that is still missing."""

EMIT_ROWS: Final = 1_024
"""Answered rows that an unordered window gathers before it emits them."""


class RowSegment:
    """Consecutive rows of the input, and their answers."""

    __slots__ = ("answers", "data", "done", "first", "keys", "left", "rows", "unread")

    def __init__(self, first: int, rows: list[Any], data: Any = None, keys: Any = None) -> None:
        """Make a segment without answers.

        :param first: the index of the first row.
        :param rows: the rows.
        :param data: an object of the caller's, which is emitted with the segment.
        :param keys: the key of each row, for calls in key order.
        """
        self.first = first
        self.rows = rows
        self.data = data
        self.keys = keys
        self.answers: list[Any] = [PENDING] * len(rows)
        self.left = len(rows)
        self.done: list[int] = []
        """Unordered only: positions answered and not emitted, in the order of the answers."""
        self.unread: Iterator[int] = iter(range(len(rows)))
        """The positions of the rows that have not been taken; shared by all workers."""


Emit: TypeAlias = Callable[[RowSegment, "list[int] | None"], None]
"""Called with a segment and the positions to be written; ``None`` means all, in order."""


class AnswerWindow(Protocol):
    """The window's interface for the workers."""

    open_below: int
    """Calls for rows with smaller indexes may begin; for other rows, `enter` is awaited first."""

    def add(self, segment: RowSegment) -> None:
        """Add the next segment, whose rows are about to be taken."""

    def put(self, segment: RowSegment, position: int, answer: Any) -> None:
        """Store the answer of a row."""

    async def enter(self, index: int) -> None:
        """Wait until the call for a row may begin."""

    def blocked(self) -> int:
        """Return how many answers wait for an earlier answer."""

    def behind(self, index: int) -> int:
        """Return how many rows before ``index`` wait to be emitted, answered or being called."""

    def first_open(self) -> int | None:
        """Return the index of the first row without an answer; ``None`` if all taken have one."""

    def leave(self) -> list[tuple[RowSegment, int]]:
        """Emit the rows that can be emitted; return the other rows that were taken, in order.

        The window forgets them. The ordered window returns all rows from the first one without an
        answer on.
        """


class _Gate:
    """Rows that wait until the window has advanced, in the order of their indexes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open_below = limit
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """Heap of the rows whose calls wait; while it is not empty, `look` is called after each
        answer."""
        self._entered = 0

    async def enter(self, index: int) -> None:
        self.look()
        while index >= self.open_below:
            turn = asyncio.get_running_loop().create_future()
            self._entered += 1
            heappush(self.waiting, (index, self._entered, turn))
            await turn

    def look(self) -> None:
        """Find how far the window has advanced, and open it up to there."""
        raise NotImplementedError

    def _open(self, floor: int) -> None:
        self.open_below = floor + self._limit
        waiting = self.waiting
        while waiting and waiting[0][0] < self.open_below:
            turn = heappop(waiting)[-1]
            if not turn.done():
                turn.set_result(None)


class OrderedWindow(_Gate):
    """Emits answers in the order of the rows."""

    def __init__(self, limit: int, emit: Emit) -> None:
        super().__init__(limit)
        self._emit = emit
        self._segments: deque[RowSegment] = deque()
        self._head = 0

    def add(self, segment: RowSegment) -> None:
        self._segments.append(segment)

    def put(self, segment: RowSegment, position: int, answer: Any) -> None:
        segment.answers[position] = answer
        self.count(segment, 1)
        if self.waiting:
            self.look()

    def count(self, segment: RowSegment, answers: int) -> None:
        """Count ``answers`` more answers in the segment."""
        segment.left -= answers
        if not segment.left:
            self._let_go()

    def blocked(self) -> int:
        """Return the number of answers after the first row that has no answer."""
        self.look()
        if not self._segments:
            return 0
        answered = sum(len(one.rows) - one.answers.count(PENDING) for one in self._segments)
        return answered - (self._head - self._segments[0].first)

    def _let_go(self) -> None:
        segments = self._segments
        while segments and not segments[0].left:
            segment = segments.popleft()
            self._head = segment.first + len(segment.rows)
            self._emit(segment, None)

    def look(self) -> None:
        """Find the first row without an answer; each row is examined once."""
        for segment in self._segments:
            position = max(self._head - segment.first, 0)
            answers, end = segment.answers, len(segment.answers)
            while position < end and answers[position] is not PENDING:
                position += 1
            self._head = max(self._head, segment.first + position)
            if position < end:
                break
        self._open(self._head)

    def behind(self, index: int) -> int:
        self.look()
        return min(index, self.open_below) - self._head

    def first_open(self) -> int | None:
        self.look()
        end = self._segments[-1].first + len(self._segments[-1].rows) if self._segments else 0
        return self._head if self._head < end else None

    def leave(self) -> list[tuple[RowSegment, int]]:
        self.look()
        left: list[tuple[RowSegment, int]] = []
        for segment in self._segments:
            gone = min(max(self._head - segment.first, 0), len(segment.rows))
            if gone:
                self._emit(segment, None if gone == len(segment.rows) else list(range(gone)))
            left += [(segment, position) for position in range(gone, len(segment.rows))]
        self._segments.clear()
        return left


class UnorderedWindow(_Gate):
    """Emits answers in the order in which they arrive."""

    def __init__(self, limit: int, emit: Emit) -> None:
        super().__init__(limit)
        self._emit = emit
        self._segments: list[RowSegment] = []
        self._finished = 0
        self._ready = 0

    def add(self, segment: RowSegment) -> None:
        self._segments.append(segment)

    def put(self, segment: RowSegment, position: int, answer: Any) -> None:
        segment.answers[position] = answer
        segment.done.append(position)
        segment.left -= 1
        self._finished += 1
        self._ready += 1
        if not segment.left:
            self._segments.remove(segment)
            self._let_go(segment)
        elif self._ready >= EMIT_ROWS:
            for one in self._segments:
                self._let_go(one)
        self.open_below = self._finished + self._limit
        if self.waiting:
            self.look()

    def blocked(self) -> int:
        return 0

    def behind(self, index: int) -> int:  # noqa: ARG002 - no row waits for another one
        return 0

    def first_open(self) -> int | None:
        rows = (one.first + position for one in self._segments for position in _without_answer(one))
        return min(rows, default=None)

    def leave(self) -> list[tuple[RowSegment, int]]:
        segments = sorted(self._segments, key=lambda one: one.first)
        self._segments.clear()
        for segment in segments:
            self._let_go(segment)
        return [(one, position) for one in segments for position in _without_answer(one)]

    def _let_go(self, segment: RowSegment) -> None:
        if segment.done:
            self._ready -= len(segment.done)
            done, segment.done = segment.done, []
            self._emit(segment, done)

    def look(self) -> None:
        self._open(self._finished)


def _without_answer(segment: RowSegment) -> Iterator[int]:
    return (n for n, answer in enumerate(segment.answers) if answer is PENDING)
