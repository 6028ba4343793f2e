"""Where answers wait for their turn: the rows that were taken and have not gone out.

Rows come in segments of about a thousand. An answer is put into its segment; whole segments go out
from the head (ordered), or what has been answered goes out as it is (unordered). At most ``limit``
rows are between the first one without an answer and the last one taken, so that memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeAlias

PENDING: Final = object()
"""In place of an answer that is not there yet."""

EMIT_ROWS: Final = 1_024
"""Finished rows that an unordered window gathers before it lets them go."""


class RowSegment:
    """Consecutive rows of the input, and their answers."""

    __slots__ = ("answers", "data", "done", "first", "keys", "left", "rows", "unread")

    def __init__(self, first: int, rows: list[Any], data: Any = None, keys: Any = None) -> None:
        """``first`` is the index of the first row; ``data`` is the caller's, and goes out again."""
        self.first = first
        self.rows = rows
        self.data = data
        self.keys = keys
        self.answers: list[Any] = [PENDING] * len(rows)
        self.left = len(rows)
        self.done: list[int] = []
        """Unordered only: positions answered and not gone out, as they were answered."""
        self.unread: Iterator[int] = iter(range(len(rows)))
        """The positions of the rows that nobody has taken; shared by all workers."""


Emit: TypeAlias = Callable[[RowSegment, "list[int] | None"], None]
"""Takes what goes out: the positions of a segment, ``None`` for all of them in order."""


class AnswerWindow(Protocol):
    """What the workers need of a window."""

    open_below: int
    """Rows of smaller indexes may be called; for others `enter` is awaited first."""

    def add(self, segment: RowSegment) -> None:
        """The next segment; its rows are about to be taken."""

    def put(self, segment: RowSegment, position: int, answer: Any) -> None:
        """The answer of a row."""

    async def enter(self, index: int) -> None:
        """Wait until a row may be called."""

    def blocked(self) -> int:
        """How many answers wait for an earlier one."""

    def behind(self, index: int) -> int:
        """How many rows were called from the first one without an answer on, before a row."""

    def first_open(self) -> int | None:
        """Index of the first row that has no answer; ``None`` if all that were taken have one."""

    def leave(self) -> list[tuple[RowSegment, int]]:
        """Let go what can go; return the other rows that were taken, in order, and forget them.

        In order, these are all rows from the first one without an answer on.
        """


class _Gate:
    """Rows that wait until the window has moved on, in the order of their indexes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open_below = limit
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """Rows that wait to be called, a heap; while there are any, `look` is called after each
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
        """See how far the window has moved on, and open it so far."""
        raise NotImplementedError

    def _open(self, floor: int) -> None:
        self.open_below = floor + self._limit
        waiting = self.waiting
        while waiting and waiting[0][0] < self.open_below:
            turn = heappop(waiting)[-1]
            if not turn.done():
                turn.set_result(None)


class OrderedWindow(_Gate):
    """Answers go out in the order of the rows."""

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
        """So many answers, not counted before, are in the segment."""
        segment.left -= answers
        if not segment.left:
            self._let_go()

    def blocked(self) -> int:
        """Answers behind the first row that has none."""
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
        """Find the first row without an answer; each row is passed over once."""
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
    """Answers go out as they come."""

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

    def behind(self, index: int) -> int:  # noqa: ARG002 - no row is behind another one
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
