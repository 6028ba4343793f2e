"""Errors that fail a record, and those that fail the batch, with ``on_error="column"``."""

from __future__ import annotations

import asyncio
import gc
import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import ClassVar, NamedTuple

import pytest

from forebay_engine.isolation.checked_rows import CheckedRows
from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api import (
    CheckpointListener,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    ConfigurationError,
    FunctionError,
    OutputSchemaError,
    PluginError,
    StorageError,
)
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.opening import open_storage
from forebay_testing import FunctionHarness, KeyedJob
from forebay_testing.reference import ReferenceBackend, ReferenceTable

SEEN = ValueStateDescriptor("seen", int)


class Reading(NamedTuple):
    key: str
    value: int


class Raises(KeyedProcessFunction):
    """Counts; raises ``error`` for the value 0; with ``catch`` it catches errors of reads."""

    def __init__(self, error: Exception | None = None, *, catch: bool = False) -> None:
        self.error = error
        self.catch = catch

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int))

    def process_element(self, row, ctx):
        try:
            n = (self.n.value() or 0) + 1
        except Exception:
            if not self.catch:
                raise
            n = 100
        self.n.update(n)
        if row.value == 0 and self.error is not None:
            raise self.error
        yield row.key, n


ROWS = [Reading("a", 1), Reading("a", 0), Reading("a", 2)]


def test_the_harness_returns_failed_records_in_their_places():
    with FunctionHarness(Raises(LookupError("gone")), "key", on_error="column") as harness:
        first, failed, last = harness.process(ROWS)
        assert (first, last) == (("a", 1), ("a", 2))
        assert isinstance(failed, FailedRecord)
        assert (failed.type, failed.message, failed.key) == ("LookupError", "gone", "a")
        assert json.loads(failed.row) == {"key": "a", "value": 0}
        assert failed.line.endswith("in process_element")
        assert harness.metrics.failed == 1
        assert harness.state(ValueStateDescriptor("n", int), "a") == 2


@pytest.mark.parametrize("error", [StorageError("full"), ConfigurationError("no"), MemoryError()])
def test_errors_that_are_not_of_one_row_fail_the_batch(error):
    with FunctionHarness(Raises(error), "key", on_error="column") as harness:
        with pytest.raises((StorageError, ConfigurationError, FunctionError)):
            harness.process(ROWS)
        assert harness.version == 0


def test_too_many_failures_fail_the_batch_and_name_the_first():
    function = Raises(LookupError("gone"))
    with FunctionHarness(function, "key", on_error="column", error_limit=1) as harness:
        assert len(harness.process([Reading("a", 0)])) == 1
        with pytest.raises(FunctionError, match="more than error_limit=1 records") as caught:
            harness.process([Reading("a", 0), Reading("b", 0)])
        assert "process_element, key b: LookupError: gone" in str(caught.value)
        assert harness.version == 1


def test_each_subtask_has_the_error_limit_for_itself():
    of_subtask = {0: [], 1: []}
    for key in "abcdefghijklmnop":
        of_subtask[subtask_of(key_group_of(key, 128), 2, 128)].append(Reading(key, 0))
    one, other = of_subtask[0][:3], of_subtask[1][:2]
    with FunctionHarness(
        Raises(LookupError()), "key", parallelism=2, on_error="column", error_limit=2
    ) as harness:
        assert len(harness.process([*one[:2], *other])) == 4
        with pytest.raises(FunctionError, match="more than error_limit=2 records"):
            harness.process(one)


def test_a_value_that_is_no_row_fails_its_record():
    with FunctionHarness(lambda row, ctx: [row.value or (1,)], "key", on_error="column") as harness:
        failed, good = harness.process([Reading("a", 1), Reading("a", 0)])
        assert (failed.type, good) == ("OutputSchemaError", (1,))


def test_a_flat_map_that_fails_emits_none_of_its_rows():
    class Repeated(FlatMapFunction):
        def flat_map(self, row):
            yield row.key, row.value
            yield row.key, 10 // row.value

    with FunctionHarness(Repeated(), "key", on_error="column") as harness:
        first, second, failed, *last = harness.process(ROWS)
        assert [first, second, *last] == [("a", 1), ("a", 10), ("a", 2), ("a", 5)]
        assert (failed.type, failed.method) == ("ZeroDivisionError", "flat_map")


@pytest.mark.parametrize("late_answers", [1, 2])
def test_a_future_of_a_failed_record_fails_whoever_awaits_it_later(late_answers):
    class Leaves(KeyedProcessFunction):
        def open(self, context):
            self.n = context.get_state(ValueStateDescriptor("n", int))

        async def process_element(self, row, ctx):
            if row.key == "fails":
                self.left = self.n.async_value()
                raise LookupError("gone")
            for _ in range(row.value):
                await self.n.async_value()
            yield row.key, await self.left

    rows = [Reading("fails", 1), Reading("later", 1), Reading("last", 3)]
    with FunctionHarness(Leaves(), "key", on_error="column", late_answers=late_answers) as harness:
        found = harness.process(rows)
    messages = {one.key: one.message for one in found}
    assert messages.pop("fails") == "gone"
    assert sorted(messages) == ["last", "later"]
    assert all("record of key 'fails', which has failed" in one for one in messages.values())


@pytest.mark.parametrize("late_answers", [1, 2])
def test_records_that_wait_for_a_future_of_a_failed_one_fail_too(late_answers):
    class Shares(KeyedProcessFunction):
        def open(self, context):
            names = ("one", "other", "last")
            states = [context.get_state(ValueStateDescriptor(name, int)) for name in names]
            self.one, self.other, self.last = states
            self.shared = None

        async def process_element(self, row, ctx):
            await self.other.async_update(row.value)
            if row.key == "fails":
                one, self.shared = self.one.async_value(), self.last.async_value()
                await one
                raise LookupError("gone")
            if self.shared is not None and row.key == "follows":
                await self.shared
            yield row.key, row.value

    rows = [Reading("fails", 1), Reading("follows", 2), Reading("stays", 3)]
    with FunctionHarness(Shares(), "key", on_error="column", late_answers=late_answers) as harness:
        harness.process([Reading(key, 0) for key in ("follows", "stays")])
        found = harness.process(rows)
        failed = {one.key: one for one in found if isinstance(one, FailedRecord)}
        assert sorted(failed) == ["fails", "follows"]
        assert failed["fails"].message == "gone"
        assert "StateFuture of the record of key 'fails', which has failed" in (
            failed["follows"].message
        )
        assert [one for one in found if not isinstance(one, FailedRecord)] == [("stays", 3)]
        other = ValueStateDescriptor("other", int)
        assert [harness.state(other, row.key) for row in rows] == [None, 0, 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on_error": "drop"}, "on_error is"),
        ({"error_limit": 1}, "error_limit= goes with"),
        ({"on_error": "column", "error_limit": True}, "error_limit is a number"),
        ({"on_error": "column", "error_column": "e"}, "error_column= goes with schema="),
        ({"error_column": "e"}, "error_column= goes with on_error"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        FunctionHarness(Raises(), "key", **arguments)


# -- backends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("catch", [False, True])
@pytest.mark.parametrize("error_rows", [None, ErrorRows()])
def test_an_error_of_the_backend_is_not_the_functions(monkeypatch, catch, error_rows):
    def fail(self, namespace, keys):
        raise KeyError("of the backend")

    monkeypatch.setattr(ReferenceTable, "get_many", fail)
    settings = EngineSettings(read_ahead=False)
    storage = open_storage("memory://broken")
    job = KeyedJob(ReferenceBackend, storage, settings=settings, error_rows=error_rows)
    with pytest.raises(PluginError, match=r"state backend failed in a read: KeyError"):
        job.run(Raises(catch=catch), ROWS)


# -- what describes a record ------------------------------------------------------------------


def test_a_row_is_json_that_spark_reads():
    class Row(NamedTuple):
        at: datetime
        raw: bytes
        price: Decimal
        tags: list

    row = Row(datetime(2024, 1, 1, tzinfo=UTC), b"\x00", Decimal("1.50"), [None, 1.5, {"a": 1}])
    failed = FailedRecord.of(ValueError("\ud83d"), method="map", key=("a", 1), given=row)
    assert json.loads(failed.row) == {
        "at": "2024-01-01T00:00:00+00:00",
        "raw": "AA==",
        "price": "1.50",
        "tags": [None, 1.5, {"a": 1}],
    }
    assert (failed.key, failed.message, failed.line) == ('["a", 1]', "\\ud83d", None)


# -- the rows of records that end -------------------------------------------------------------


class Emits(KeyedBroadcastProcessFunction):
    """Emits each row's value, in a row of its own; raises for the value 0."""

    def open(self, ctx):
        self.seen = ctx.get_state(SEEN)

    def process_element(self, row, ctx):
        if row.value == 0:
            raise ValueError("zero")
        self.seen.update(row.value)
        return [(row.value,)]

    def process_broadcast_element(self, row, ctx):
        ctx.collect((row,))
        ctx.apply_to_keyed_state(SEEN, lambda key, state: [(key, state.value())])
        ctx.collect((row,))


class WaitsBehindRows(Emits):
    """Its visits of keys wait for state."""

    def process_broadcast_element(self, row, ctx):
        async def visit(key, state):
            return [(key, await state.async_value())]

        ctx.collect((row,))
        ctx.apply_to_keyed_state(SEEN, visit)
        ctx.collect((row,))


def emitted(rows, broadcast=(), checked_rows=CheckedRows, function=Emits):
    """Return the rows that come of ``rows`` and then of ``broadcast``."""
    job = KeyedJob(
        ReferenceBackend,
        open_storage("memory://emitted"),
        error_rows=ErrorRows(checked_rows=checked_rows),
    )
    with job.subtask(function()) as subtask:
        subtask.process(rows, [row.key for row in rows], [0] * len(rows))
        subtask.process_broadcast(broadcast)
        subtask.drain()
        ready = subtask.rows_ready
        taken = list(subtask.take_rows())
        assert (ready, subtask.rows_ready) == (len(taken), 0)
    return taken


@pytest.mark.parametrize("function", [Emits, WaitsBehindRows])
def test_rows_keep_their_order_whoever_emits_them(function):
    rows = [Reading("a", 1), Reading("b", 0), Reading("a", 2), Reading("b", 3)]
    first, failed, *others = emitted(rows, broadcast=["x", "y"], function=function)
    assert (first, failed.type) == ((1,), "ValueError")
    assert others[:2] == [(2,), (3,)]
    visited = [("a", 2), ("b", 3)]
    assert others[2:] == [("x",), *visited, ("x",), ("y",), *visited, ("y",)]


class CollectsApart(KeyedProcessFunction, CheckpointListener):
    """Collects rows while no record runs; raises for the value 0."""

    def open(self, ctx):
        self.ctx = ctx

    def notify_checkpoint_complete(self, version):
        self.ctx.collect(("notified",))

    async def process_element(self, row, ctx):
        if row.value == 0:
            raise ValueError("zero")
        if row.value == 1:
            asyncio.get_running_loop().call_soon(ctx.collect, ("soon",))
            await asyncio.sleep(0)
        return [(row.value,)]


@pytest.mark.parametrize("on_error", ["fail", "column"])
def test_rows_of_no_record_are_emitted_with_all_others(on_error):
    failing, failed = ([0], ["ValueError"]) if on_error == "column" else ([], [])
    with FunctionHarness(CollectsApart(), "key", on_error=on_error) as harness:
        for before in ([], ["notified"]):
            given = [Reading("a", value) for value in (1, 2, *failing, 3)]
            rows = [getattr(row, "type", None) or row[0] for row in harness.process(given)]
            assert rows == [*before, "soon", 1, 2, *failed, 3]
            assert harness.metrics.rows_out == len(rows)


def test_the_rows_of_records_are_admitted_and_others_are_not():
    admitted = []
    emitted([Reading("a", 1), Reading("b", 0)], ["x"], partial(CheckedRows, admitted.append))
    assert admitted == [(1,), ("a", 1)]


def test_a_record_that_emits_a_row_that_does_not_fit_emits_nothing_else():
    def admit(row):
        if row == (2,):
            raise OutputSchemaError("two")

    class EmitsTwo(Emits):
        def process_element(self, row, ctx):
            yield (row.value,)
            yield (row.value + 1,)

    job = KeyedJob(
        ReferenceBackend,
        open_storage("memory://misfit"),
        error_rows=ErrorRows(checked_rows=partial(CheckedRows, admit)),
    )
    with job.subtask(EmitsTwo()) as subtask:
        rows = [Reading("a", 1), Reading("a", 5)]
        subtask.process(rows, ["a", "a"], [0, 0])
        subtask.drain()
        failed, *others = subtask.take_rows()
    assert (failed.message, others) == ("two", [(5,), (6,)])


class LeavesATask(KeyedProcessFunction):
    """Adds each value to a sum, which raises for 0; a task of the record takes its time to end."""

    ended: ClassVar[list[str]] = []

    def open(self, ctx):
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", self._add, int))

    @staticmethod
    def _add(one, other):
        if other == 0:
            raise ValueError("zero")
        return one + other

    async def _task(self):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            self.ended.append("task")

    async def process_element(self, row, ctx):
        if row.value == 0:
            task = asyncio.create_task(self._task())
            await asyncio.sleep(0)
        await self.sum.async_add(row.value)
        if row.value == 0:
            await task
        return [(row.key, await self.sum.async_get())]


def test_a_task_ends_its_finally_after_an_answer_has_failed_its_record():
    LeavesATask.ended.clear()
    with FunctionHarness(LeavesATask(), "key", on_error="column", late_answers=1) as harness:
        harness.process([Reading("a", 1)])
        failed, last = harness.process([Reading("a", 0), Reading("a", 3)])
    assert (failed.message, last, LeavesATask.ended) == ("zero", ("a", 4), ["task"])


async def asked():
    return 1


async def lost():
    raise KeyError("lost")


class FailsBeforeItAwaits(KeyedProcessFunction):
    """Raises below 2, where it has a call or a failed task that it would have awaited."""

    def __init__(self, begins):
        self.begins = begins

    async def process_element(self, row, ctx):
        begun = self.begins(ctx)
        for _ in range(5 * row.value):
            await asyncio.sleep(0)
        if row.value < 2:
            raise ValueError("its own")
        await asyncio.gather(begun, return_exceptions=True)
        yield row.key, row.value


@pytest.mark.parametrize(
    "begins",
    [lambda ctx: ctx.call(asked), lambda _: asyncio.create_task(lost())],
    ids=["a call", "a task"],
)
def test_a_record_fails_by_its_own_error_before_it_awaits_what_it_has_begun(begins, recwarn):
    rows = [Reading("a", 0), Reading("b", 1), Reading("c", 2)]
    with FunctionHarness(FailsBeforeItAwaits(begins), "key", on_error="column") as harness:
        out = harness.process(rows)
    assert [one.message for one in out if isinstance(one, FailedRecord)] == ["its own"] * 2
    assert ("c", 2) in out
    for row in rows[:2]:
        with (
            FunctionHarness(FailsBeforeItAwaits(begins), "key") as harness,
            pytest.raises(FunctionError, match="its own"),
        ):
            harness.process([row, rows[2]])
    gc.collect()
    assert [str(one.message) for one in recwarn] == []
