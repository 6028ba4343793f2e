"""The queue of input segments, which the reader fills and the workers share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from operator import length_hint

from forebay_spark_runtime.waiting.answer_window import RowSegment


class InputQueue:
    """Segments in order. All methods are called on the event loop's thread.

    Workers that find no row wait here. The number of workers that are woken is at most the number
    of rows and doubles from one wake-up to the next, so that a single worker makes all calls of a
    function that never waits.
    """

    def __init__(
        self,
        *,
        taken: Callable[[RowSegment], None],
        spawn: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """Make an empty queue.

        :param taken: is called with each segment before its first row is taken.
        :param spawn: starts a worker; returns whether it did.
        :param clock: returns the time in seconds.
        """
        self._taken = taken
        self._spawn = spawn
        self._segments: deque[RowSegment] = deque()
        self._current: RowSegment | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._held = False
        self._calling = False
        self._eager = 1
        self._clock = clock
        self.ended_at: float | None = None
        """The time at which `end` was called."""

    def push(self, segment: RowSegment) -> None:
        """Append a segment, which must have rows."""
        self._segments.append(segment)
        self._call()

    def end(self) -> None:
        """Mark the end of the input: no more segments will be pushed."""
        if self.ended_at is None:
            self.ended_at = self._clock()
        self._wake_all()

    def stop(self) -> None:
        """Drop the rows that have not been taken, and end."""
        self._segments.clear()
        if self._current is not None:
            deque(self._current.unread, maxlen=0)  # the iterator is in the workers' loops
        self.end()

    def hold(self, *, held: bool) -> None:
        """Stop, or resume, handing out segments; for as long as Spark does not read the output."""
        self._held = held
        if not held:
            self._call()
            if self.ended:
                self._wake_all()

    @property
    def ended(self) -> bool:
        """Whether the end of the input is known."""
        return self.ended_at is not None

    @property
    def is_spent(self) -> bool:
        """Whether workers have taken all rows that there will ever be."""
        current = self._current
        at_hand = current is not None and length_hint(current.unread)
        return self.ended and not self._segments and not at_hand

    @property
    def has_rows(self) -> bool:
        """Whether a row could be taken now."""
        current = self._current
        if current is not None and length_hint(current.unread):
            return True
        return bool(self._segments) and not self._held

    async def after(self, spent: RowSegment | None) -> RowSegment | None:
        """Return the segment to take rows from after ``spent``; ``None`` at the end.

        Other workers may take its last row before the caller does; then the caller asks again.
        """
        if spent is not None:
            # A function that never waits must also let other tasks run.
            await asyncio.sleep(0)
        while True:
            segment = self.at_hand()
            if segment is not None:
                self._call_soon()
                return segment
            if self.ended and not self._segments:
                return None
            await self.arrival()

    def at_hand(self) -> RowSegment | None:
        """Return the segment that has unread rows, or ``None``."""
        current = self._current
        if current is not None and length_hint(current.unread):
            return current
        self._current = None
        if self._segments and not self._held:
            self._current = current = self._segments.popleft()
            self._taken(current)
            return current
        return None

    async def arrival(self) -> None:
        """Wait until there may be rows, or the input is at its end."""
        turn = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._idle:
                self._idle.remove(turn)
            raise

    def _call_soon(self) -> None:
        if not self._calling:
            self._calling = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        """Wake workers for the rows in the queue; the workers that start will wake more."""
        self._calling = False
        if not self.has_rows:
            self._eager = 1
            return
        current = self._current
        rows = 0 if current is None else length_hint(current.unread)
        rows += sum(len(segment.rows) for segment in self._segments)
        for _ in range(min(self._eager, rows)):
            if not self._call_one():
                return
        self._eager *= 2

    def _call_one(self) -> bool:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return self._spawn()

    def _wake_all(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
