"""Records that could fail alone and do not: a few calls more than others, nothing kept."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from forebay_engine.isolation.failed_record import ErrorRows
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

KEYS = [str(number % 10) for number in range(50)]


class Plain(KeyedProcessFunction[Any, Any, Any]):
    """Counts the rows of each key."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, row: Any, ctx: Any) -> Any:
        count = self.count.value() + 1
        self.count.update(count)
        return [(row, count)]


class Awaiting(Plain):
    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.count.async_value() + 1
        await self.count.async_update(count)
        return [(row, count)]


class Chained(Plain):
    def process_element(self, row: Any, ctx: Any) -> Any:
        def counted(count: int) -> Any:
            ctx.collect((row, count + 1))
            return self.count.async_update(count + 1)

        self.count.async_value().then_compose(counted)


def _calls(function: Any, error_rows: ErrorRows | None) -> int:
    """Return the number of calls of Python functions for the records of `KEYS`, in memory."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    job = KeyedJob(ReferenceBackend, memory_storage(), error_rows=error_rows)
    with job.subtask(function) as subtask:
        for counts in (None, count):
            sys.setprofile(counts)
            try:
                subtask.process(KEYS, KEYS, [0] * len(KEYS))
            finally:
                sys.setprofile(None)
            subtask.drain()
        assert len(subtask.take_rows()) == 2 * len(KEYS)
    return calls


@pytest.mark.parametrize(("function", "more"), [(Plain, 1), (Awaiting, 1), (Chained, 1)])
def test_a_record_that_does_not_fail_costs_few_calls(function: Any, more: int) -> None:
    # What takes the row, and tests it where there is a schema.
    extra = _calls(function(), ErrorRows()) - _calls(function(), None)
    assert round(extra / len(KEYS)) == more
