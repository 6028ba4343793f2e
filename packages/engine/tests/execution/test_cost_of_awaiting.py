"""Records that awaited leave nothing behind, and the loop turns for them now and then."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Iterator
from typing import Any

import pytest

from forebay_engine.execution import awaitables as awaits
from forebay_engine.execution.record import Record
from forebay_engine.execution.record_steps import RecordSteps
from forebay_engine.execution.record_task import RecordTask
from forebay_state_api import KeyedProcessFunction
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long

ROWS = [{"k": str(number)} for number in range(200)]


class Waits(KeyedProcessFunction[Any, Any, Any]):
    """Awaits ``work(ctx)``."""

    def __init__(self, work: Any) -> None:
        self.work = work

    async def process_element(self, row: Any, ctx: Any) -> Any:
        await self.work(ctx)
        return [(row["k"],)]


async def _sleep(_: Any) -> None:
    await asyncio.sleep(0)


async def _timeout(_: Any) -> None:
    async with asyncio.timeout(100):
        await asyncio.sleep(0.001)


async def _children(_: Any) -> None:
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0.001))


async def _call(ctx: Any) -> None:
    await ctx.call(asyncio.sleep, 0)


def _of_records() -> list[Any]:
    return [found for found in gc.get_objects() if _is_of_a_record(found)]


def _is_of_a_record(found: Any) -> bool:
    if type(found) is RecordTask:
        return found._steps is not None  # not the task that serves the next record
    return isinstance(found, (Record, RecordSteps))


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("work", [_sleep, _timeout, _children, _call])
def test_a_record_that_has_ended_is_freed_without_the_collector(work: Any) -> None:
    before = _of_records()
    with FunctionHarness(Waits(work), "k") as h:
        assert len(h.process(ROWS)) == len(ROWS)
        left = [found for found in _of_records() if not any(found is one for one in before)]
    assert left == []


class Counts(KeyedProcessFunction[Any, Any, Any]):
    """Emits how many records had begun when a record's turn of the loop was over."""

    def open(self, context: Any) -> None:
        self.begun = 0

    async def process_element(self, row: Any, ctx: Any) -> Any:
        self.begun += 1
        await asyncio.sleep(0)
        return [(self.begun,)]


@pytest.mark.parametrize(("every_s", "first"), [(0.0, range(32, 65)), (math.inf, [200])])
def test_the_loop_turns_between_records_when_its_time_has_come(
    monkeypatch: Any, every_s: float, first: Any
) -> None:
    monkeypatch.setattr(awaits, "TURN_EVERY_S", every_s)
    with FunctionHarness(Counts(), "k") as h:
        assert min(h.process(ROWS))[0] in first
