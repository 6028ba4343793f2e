"""Late rows: processed, dropped or described, by the event time alone and before the function."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api import (
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_testing import FunctionHarness, LateRow

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
COUNT = ValueStateDescriptor("n", int, default=0)


class Visit(NamedTuple):
    user: str
    at: datetime | None


def visit(user, minute):
    return Visit(user, None if minute is None else NOON + timedelta(minutes=minute))


def minute_of(row):
    """The minute of a row, or that of a late row in brackets."""
    if isinstance(row, LateRow):
        return [datetime.fromisoformat(json.loads(row.row)["at"]).minute]
    return row[1]


class Counts(KeyedProcessFunction):
    """Counts the rows that it gets; asks about each whether it is late, and drops it."""

    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        if row.at is not None and ctx.timers.drop_late(row.at):
            return
        yield row.user, None if row.at is None else row.at.minute

    def on_timer(self, at, ctx): ...


class Waits(Counts):
    """Also waits for its state."""

    async def process_element(self, row, ctx):
        await self.n.async_update(await self.n.async_value() + 1)
        if row.at is None or not ctx.timers.drop_late(row.at):
            yield row.user, None if row.at is None else row.at.minute


class InColumns(KeyedBatchFunction):
    def process_batch(self, rows, ctx):
        assert len(rows)
        minutes = [None if at is None else at.minute for at in rows["at"].to_pylist()]
        shown = [
            minute if late is not True else f"late {minute}"
            for minute, late in zip(minutes, rows.is_late.to_pylist(), strict=True)
        ]
        return {"user": rows["user"], "minute": [None if n is None else str(n) for n in shown]}


ROWS = [visit("a", 5), visit("a", 11), visit("b", None), visit("b", 10), visit("b", 12)]


@pytest.mark.parametrize("function", [Counts(), Waits()], ids=["plain", "async"])
@pytest.mark.parametrize("late_answers", [None, 1])
@pytest.mark.parametrize(
    ("late", "expected", "got", "dropped"),
    [
        ("process", [11, None, 12], 5, 2),
        ("drop", [11, None, 12], 3, 2),
        ("column", [[5], [10], 11, None, 12], 3, 0),
    ],
)
def test_rows_are_late_by_their_event_time_alone(
    function, late_answers, late, expected, got, dropped
):
    with FunctionHarness(
        function, "user", event_time="at", late=late, late_answers=late_answers
    ) as harness:
        assert len(harness.process([visit("a", 10), visit("b", 3)])) == 2
        assert sorted(map(minute_of, harness.process(ROWS)), key=repr) == sorted(expected, key=repr)
        counted = harness.metrics
        assert (counted.records, counted.late_rows, counted.late_rows_dropped) == (got, 2, dropped)
        assert counted.rows_out == len(expected)
        assert harness.state(COUNT, "a") + harness.state(COUNT, "b") == 2 + got


@pytest.mark.parametrize("late", ["process", "drop", "column"])
@pytest.mark.parametrize("cuts", [0, 3, None])
def test_a_batch_function_gets_no_late_rows(late, cuts):
    with FunctionHarness(InColumns(), "user", event_time="at", late=late, cuts=cuts) as harness:
        harness.process([visit("a", 10)])
        shown = [minute_of(row) for row in harness.process(ROWS)]
        own = ["11", None, "12"]
        assert [one for one in shown if one in own] == own
        others = {"process": ["late 5", "late 10"], "drop": [], "column": [[5], [10]]}
        assert [one for one in shown if one not in own] == others[late]
        assert harness.process([visit("a", 1)]) != [] or late == "drop"
        assert harness.metrics.late_rows == 1


def test_a_late_row_is_described():
    with FunctionHarness(
        Counts(), "user", event_time="at", late="column", allowed_lateness=60
    ) as harness:
        harness.process([visit("a", 10)])
        [late] = harness.process([visit("a", 9)])
        assert json.loads(late.row) == {"user": "a", "at": "2024-05-01T12:09:00+00:00"}
        assert (late.input, late.watermark) == (1, NOON + timedelta(minutes=9))


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        yield 1, row.at.minute

    def process_element2(self, row, ctx):
        yield 2, row.at.minute


def test_a_late_row_has_the_number_of_its_input():
    with FunctionHarness(Both(), "user", event_time="at", late="column") as harness:
        harness.process([visit("a", 10)], [visit("a", 20)])
        found = harness.process([visit("a", 5), visit("a", 11)], [visit("a", 6), visit("a", 21)])
        late = [(one.input, minute_of(one)) for one in found if isinstance(one, LateRow)]
        assert late == [(1, [5]), (2, [6])]
        assert [one for one in found if not isinstance(one, LateRow)] == [(1, 11), (2, 21)]


class Ruled(KeyedBroadcastProcessFunction):
    process_element = Both.process_element1

    def process_broadcast_element(self, row, ctx):
        yield 0, row.at.minute


def test_broadcast_rows_are_never_late():
    with FunctionHarness(Ruled(), "user", event_time="at", late="drop") as harness:
        harness.process([visit("a", 10)])
        assert harness.process([visit("a", 5)], [visit("rule", 1)]) == [(0, 1)]


def test_late_rows_are_activity():
    """A subtask with late rows alone holds the watermark, as one with other rows does."""
    of_subtask = {subtask_of(key_group_of(user, 128), 2, 128): user for user in "abcdefgh"}
    slow, fast = of_subtask[0], of_subtask[1]
    with FunctionHarness(Counts(), "user", event_time="at", late="drop", parallelism=2) as harness:
        harness.process([visit(slow, 10), visit(fast, 10)])
        harness.process([visit(slow, 1), visit(fast, 30)])
        assert harness.process([visit(fast, 20)]) == [(fast, 20)], "the watermark is still 12:10"


def test_it_is_independent_of_errors_and_their_limit():
    class Fails(Counts):
        def process_element(self, row, ctx):
            raise ValueError(row.at.minute)

    with FunctionHarness(
        Fails(), "user", event_time="at", late="column", on_error="column", error_limit=1
    ) as harness:
        harness.process([visit("a", 10)])
        kinds = [type(row) for row in harness.process([*[visit("a", 1)] * 5, visit("a", 11)])]
        assert kinds == [LateRow] * 5 + [FailedRecord]
        assert harness.metrics.failed == 1


def test_a_row_that_comes_late_again_is_late_again_after_a_rescale():
    with FunctionHarness(Counts(), "user", event_time="at", late="drop") as harness:
        harness.process([visit("a", 10)])
        assert harness.process([visit("a", 10)]) == []
        harness.restart(parallelism=3)
        assert harness.process([visit("a", 10), visit("a", 11)]) == [("a", 11)]


def test_wrong_arguments():
    with pytest.raises(ConfigurationError, match='late is "process", "drop" or "column"'):
        FunctionHarness(Counts(), "user", event_time="at", late=True)
    with pytest.raises(ConfigurationError, match='late="drop" goes with event_time='):
        FunctionHarness(Counts(), "user", late="drop")
