"""Calls for several rows at once, and the retries of their failed rows."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Callable
from typing import Any, TypeGuard

from forebay_engine.calls.caller import Caller
from forebay_engine.calls.retry import RecordTries
from forebay_engine.calls.worker_slots import NEVER, WorkerSlot
from forebay_engine.journal.call_journal import NOT_KEPT
from forebay_spark_runtime.waiting.answer_window import AnswerWindow, RowSegment
from forebay_spark_runtime.waiting.input_queue import InputQueue
from forebay_spark_runtime.waiting.keeping import RowAnswers
from forebay_state_api.calls.policies import Batch, Verdict, seconds
from forebay_state_api.errors import FunctionError


class OpenRow:
    """A row of a batched call that has no answer yet."""

    __slots__ = ("index", "name", "position", "record", "row", "segment")

    def __init__(self, segment: RowSegment, position: int) -> None:
        self.segment = segment
        self.position = position
        self.index = segment.first + position
        self.row = segment.rows[position]
        self.record = RecordTries()
        self.name = b""
        """The name of the row's call, if its answer is to be kept."""


class BatchCollector:
    """Collects the rows of one call after another; one worker collects at a time."""

    def __init__(
        self,
        batch: Batch,
        input_queue: InputQueue,
        window: AnswerWindow,
        rows_kept: int = 0,
        answers: RowAnswers | None = None,
    ) -> None:
        """Prepare it; the first ``rows_kept`` rows never share a call with later rows.

        Rows that have an answer among ``answers`` share no call.
        """
        self._answers = answers
        self._rows_kept = rows_kept
        self._size = batch.size
        self._within = seconds(batch.within, "Batch.within")
        self._feed = input_queue
        self._window = window
        self._turn = asyncio.Lock()

    async def next_rows(self) -> list[OpenRow]:
        """Return the rows of the next call; empty at the end of the input."""
        async with self._turn:
            rows: list[OpenRow] = []
            while not rows and (segment := await self._feed.after(None)) is not None:
                await self._collect(segment, rows)
            return rows

    async def _collect(self, segment: RowSegment | None, rows: list[OpenRow]) -> None:
        while self._fits(segment, rows) and await self._take(segment, rows):
            segment = self._feed.at_hand()
            if segment is None and self._within and rows and not self._feed.ended:
                segment = await self._more()

    def _fits(self, segment: RowSegment | None, rows: list[OpenRow]) -> TypeGuard[RowSegment]:
        if segment is None or not rows:
            return segment is not None
        return (segment.first < self._rows_kept) == (rows[0].index < self._rows_kept)

    async def _take(self, segment: RowSegment, rows: list[OpenRow]) -> bool:
        """Take the rows that fit; return whether the call could take more."""
        for position in segment.unread:
            row = OpenRow(segment, position)
            if row.index >= self._window.open_below:
                await self._window.enter(row.index)
            if self._answers is not None:
                row.name, answer = await self._answers.find(row.row)
                if answer is not NOT_KEPT:
                    self._window.put(segment, position, answer)
                    continue
            rows.append(row)
            if len(rows) == self._size:
                return False
        return True

    async def _more(self) -> RowSegment | None:
        """Wait for more rows, as long as a call with rows may wait."""
        try:
            async with asyncio.timeout(self._within):
                while (segment := self._feed.at_hand()) is None and not self._feed.ended:
                    await self._feed.arrival()
        except TimeoutError:  # the call is made with the rows it has
            return None
        return segment


async def call_together(
    caller: Caller,
    slot: WorkerSlot,
    waiting: list[OpenRow],
    put: Callable[[RowSegment, int, Any], None],
    answers: RowAnswers | None = None,
) -> None:
    """Make calls for some rows until each has its answer; ``put`` gets answers as they arrive.

    Failed rows are tried again together, after the longest of their delays. Each row has its own
    count of failures.
    """
    slot.attempt = 1
    end = NEVER
    while waiting:
        slot.indexes = [one.index for one in waiting]
        answer, error, end = await caller.attempt(slot, [one.row for one in waiting], end)
        outcomes = _outcomes(caller, waiting, answer, error)
        failed: list[tuple[OpenRow, BaseException, Verdict | None]] = []
        for one, outcome in zip(waiting, outcomes, strict=True):
            refused = _refused(caller, outcome)
            if refused is None:
                kept = outcome if answers is None else answers.keep(one.name, outcome)
                put(one.segment, one.position, kept)
            else:
                failed.append((one, *refused))
        waiting = await _again(caller, slot, failed, end, put)


def _refused(caller: Caller, outcome: Any) -> tuple[BaseException, Verdict | None] | None:
    if isinstance(outcome, BaseException):
        return outcome, None
    return caller.refusal(outcome)


async def _again(
    caller: Caller,
    slot: WorkerSlot,
    failed: list[tuple[OpenRow, BaseException, Verdict | None]],
    end: float,
    put: Callable[[RowSegment, int, Any], None],
) -> list[OpenRow]:
    """Answer the rows that are not retried.

    Wait for the next try of the other rows, and return them.
    """
    waiting, longest = [], 0.0
    for one, error, verdict in failed:
        replaced = await caller.replaced(slot.client, error)
        delay = caller.delay_s(error, one.record, verdict, replaced=replaced)
        if delay is None or caller.now() + delay >= end:
            in_time = delay is None
            made = caller.given_up(one.index, one.row, error, slot.attempt, in_time=in_time)
            put(one.segment, one.position, made)
        else:
            waiting.append(one)
            longest = max(longest, delay)
    if waiting:
        await caller.wait(slot, longest)
    return waiting


def _outcomes(
    caller: Caller, waiting: list[OpenRow], answer: Any, error: BaseException | None
) -> list[Any]:
    if error is not None:
        return [error] * len(waiting)
    if isinstance(answer, list | tuple) and len(answer) == len(waiting):
        return list(answer)
    got = f"{len(answer)}" if isinstance(answer, list | tuple) else reprlib.repr(answer)
    raise FunctionError(
        f"{caller.describe(waiting[0].index)}: with batch= a function returns a list with one "
        f"outcome for each of its {len(waiting)} rows; it returned {got}"
    )
