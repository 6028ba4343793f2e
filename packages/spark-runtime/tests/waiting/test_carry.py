"""Rows left for the next micro-batch: how they are left, stored and called again."""

from __future__ import annotations

import asyncio
import types
from pathlib import Path

import pyarrow as pa
import pytest

from forebay_spark_runtime import current_call
from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_spark_runtime.waiting import carry_job
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.arrow_in import InputLayout
from forebay_spark_runtime.waiting.carry_job import CarryJob
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_spark_runtime.waiting.pending_rows import carried_batch, packed_row
from forebay_spark_runtime.waiting.spec import WaitSpec, pickled
from forebay_state_api.calls.policies import Batch, CallPolicy, Retry
from forebay_state_api.errors import ConfigurationError, FunctionError, StateMigrationError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings


def leave(virtual_loop, fn, rows, keys=None, **policy):
    """Return the emitted answers and the rows left 5 s after all rows were taken."""
    out = []
    keys = keys or [None] * len(rows)

    def emit(segment, positions):
        positions = range(len(segment.rows)) if positions is None else positions
        out.extend(segment.answers[position] for position in positions)

    async def run():
        loop = asyncio.get_running_loop()
        engine = CallEngine(fn, CallPolicy(capacity=10, **policy), emit=emit, clock=loop.time)
        running = loop.create_task(engine.run())
        for start in range(0, len(rows), 4):
            part = slice(start, start + 4)
            engine.input_queue.push(RowSegment(start, rows[part], None, keys[part]))
        engine.input_queue.end()
        await asyncio.sleep(5)
        assert engine.input_queue.is_spent
        left = engine.leave()
        await running
        assert engine.counts.carried == len(left)
        return [segment.first + position for segment, position in left]

    with asyncio.Runner(loop_factory=virtual_loop) as runner:
        return out, runner.run(run())


async def slow_from_100(row, client):
    del client
    await asyncio.sleep(1000 if row >= 100 else 1)
    return row


@pytest.mark.parametrize("policy", [{}, {"timeout": 5000.0}], ids=["bare", "guarded"])
class TestLeaving:
    def test_in_order_everything_from_the_first_late_row_on_is_left(self, virtual_loop, policy):
        out, left = leave(virtual_loop, slow_from_100, [0, 1, 2, 3, 4, 100, 6, 7, 8], **policy)
        assert out == [0, 1, 2, 3, 4]
        assert left == [5, 6, 7, 8]

    def test_out_of_order_only_late_rows_are_left(self, virtual_loop, policy):
        rows = [0, 100, 2, 3, 4, 101, 6]
        out, left = leave(virtual_loop, slow_from_100, rows, ordered=False, **policy)
        assert sorted(out) == [0, 2, 3, 4, 6]
        assert left == [1, 5]

    def test_nothing_is_left_when_all_have_answered(self, virtual_loop, policy):
        out, left = leave(virtual_loop, slow_from_100, list(range(9)), **policy)
        assert (out, left) == (list(range(9)), [])

    def test_a_call_that_makes_something_of_its_cancellation_has_no_outcome(
        self, virtual_loop, policy
    ):
        async def stubborn(row, client):
            try:
                return await slow_from_100(row, client)
            except asyncio.CancelledError:
                if row == 100:
                    return "late"
                raise LookupError(row) from None

        out, left = leave(virtual_loop, stubborn, [0, 100, 101], **policy)
        assert (out, left) == ([0], [1, 2])


class TestLeavingWithMore:
    """Policies with several calls under way, or rows that wait for their turn."""

    @pytest.mark.parametrize(("ordered", "answered"), [(True, [0]), (False, [0, 2])])
    def test_both_calls_of_a_hedged_row_end(self, virtual_loop, ordered, answered):
        under_way, most = set(), []

        async def ask(row, client):
            call = object()
            under_way.add(call)
            most.append(len(under_way))
            try:
                return await slow_from_100(row, client)
            finally:
                under_way.discard(call)

        out, left = leave(virtual_loop, ask, [0, 100, 2], ordered=ordered, hedge=2.0)
        assert sorted(out) == answered
        assert left == ([1, 2] if ordered else [1])
        assert len(most) == 4, "the late row was called twice"
        assert not under_way

    def test_a_hedge_that_answers_is_no_late_row(self, virtual_loop):
        called = []

        async def first_is_late(row, client):
            called.append(row)
            await slow_from_100(row if called.count(row) == 1 else 0, client)
            return row

        out, left = leave(virtual_loop, first_is_late, [0, 100, 2], hedge=2.0)
        assert (out, left) == ([0, 100, 2], [])

    @pytest.mark.parametrize(
        ("ordered", "gone", "stay"), [(True, 3, [3, 4, 5, 6]), (False, 4, [3, 4, 5])]
    )
    def test_rows_that_were_called_together(self, virtual_loop, ordered, gone, stay):
        async def ask(rows, client):
            await slow_from_100(max(rows), client)
            return rows

        rows = [0, 1, 2, 100, 4, 5, 6]
        out, left = leave(virtual_loop, ask, rows, ordered=ordered, batch=Batch(3))
        assert sorted(out) == sorted(set(rows) - {rows[n] for n in stay})
        assert left == stay

    def test_a_row_of_a_call_together_that_is_to_be_tried_again(self, virtual_loop):
        async def ask(rows, client):
            return [LookupError(row) if row == 1 else row for row in rows]

        policy = {"ordered": False, "batch": Batch(3), "retry": Retry(3, delay=1000.0)}
        out, left = leave(virtual_loop, ask, [0, 1, 2, 3], **policy)
        assert (sorted(out), left) == ([0, 2, 3], [1])

    @pytest.mark.parametrize("ordered", [True, False])
    def test_rows_behind_a_late_one_of_their_key_are_left_without_a_call(
        self, virtual_loop, ordered
    ):
        called = []

        async def ask(row, client):
            called.append(row)
            return await slow_from_100(row, client)

        rows, keys = [0, 100, 2, 3, 4, 5], ["b", "a", "a", "b", "a", "c"]
        out, left = leave(virtual_loop, ask, rows, keys, ordered=ordered, keyed=True)
        assert sorted(called) == [0, 3, 5, 100]
        assert sorted(out) == ([0] if ordered else [0, 3, 5])
        assert left == ([1, 2, 3, 4, 5] if ordered else [1, 2, 4])


class Task:
    """A fake of Spark's ``TaskContext``."""

    def __init__(self, batch, subtask, attempt, **properties):
        self._batch, self._subtask, self._attempt = batch, subtask, attempt
        self._properties = properties

    def getLocalProperty(self, name):
        known = {
            "sql.streaming.queryId": "query",
            "streaming.sql.batchId": str(self._batch),
            "spark.app.id": "app",
            "spark.jobGroup.id": "run",
            **self._properties,
        }
        return known.get(name)

    def partitionId(self):
        return self._subtask

    def taskAttemptId(self):
        return self._attempt

    def attemptNumber(self):
        return 0


class Query:
    """Runs micro-batches of a carrying wait without Spark; ``calls`` are their keys and rows."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.batch = 0
        self.attempts = 0
        self.late = set()
        self.failing = set()
        self.calls = []
        self.run_name = "first"

    def job(self, schema, parallelism, **more):
        async def ask(row, client):
            del client
            self.calls.append((current_call().key, row.id))
            if row.id in self.failing:
                raise LookupError(row.id)
            await asyncio.sleep(60 if row.id in self.late else 0)
            return f"a{row.id}"

        async def ask_together(rows, client):
            del client
            self.calls += zip(current_call().keys, [row.id for row in rows], strict=True)
            await asyncio.sleep(60 if self.late.intersection(row.id for row in rows) else 0)
            return [f"a{row.id}" for row in rows]

        spec = WaitSpec(
            name="ask",
            function_name="ask",
            fn=ask_together if "batch" in more else ask,
            asynchronous=True,
            policy=CallPolicy(**{"capacity": 10, **more}),
            on_error="fail",
            key=None,
            resources=None,
        )
        known = {**plugins().backends(), **plugins().compaction_services()}
        settings = resolve_settings({}, overrides={}, backends=known)
        options = KeyedOptions(
            uid="wait",
            parallelism=parallelism,
            max_parallelism=128,
            batch=MicroBatch(),
            state_dir=str(self.folder),
            order_by=(),
            new_state=False,
            settings=settings,
            keyed_uuid=self.run_name,
        )
        names = tuple(schema.names)
        return spec, CarryJob(
            spec=b"",
            name="ask",
            layout=pickled(
                InputLayout(names=names, shown=tuple(range(len(names))), key=None), "ask"
            ),
            schema=pa.schema([("answer", pa.string())]),
            names=[*names, "answer"],
            types=["string"],
            time_zone="UTC",
            query="query",
            batch_id=None,
            metrics=None,
            options=options,
            columns=[(field.name, str(field.type)) for field in schema],
            carry_after_s=0.05,
        )

    def run(self, ids, parallelism=1, kind=None, *, commit=True, properties=None, **more):
        """Run one micro-batch; return its output rows, subtask by subtask."""
        schema = pa.schema([("id", kind or pa.int64())])
        spec, job = self.job(schema, parallelism, **more)
        key = (lambda row: row.id % 2) if more.get("keyed") else None
        layout = InputLayout(names=("id",), shown=(0,), key=key)
        # The function is not pickled, so that the test sees its calls.
        self.monkeypatch.setattr(CarryJob, "unpickled", lambda _: (spec, layout))
        out = []
        for subtask in range(parallelism):
            own = [one for one in ids if one % parallelism == subtask]
            batch = pa.record_batch(
                [pa.array(own, schema.field(0).type), pa.array([subtask] * len(own), pa.int32())],
                names=["id", "__partition"],
            )
            self.attempts += 1
            task = Task(self.batch, subtask, self.attempts, **(properties or {}))
            self.monkeypatch.setattr(
                carry_job, "TaskContext", types.SimpleNamespace(get=lambda task=task: task)
            )
            for made in job(iter([batch])):
                out += [tuple(row.values()) for row in made.to_pylist()]
        if commit:
            self.batch += 1
        return out

    def restart(self):
        self.run_name += "+"


@pytest.fixture
def query(tmp_path, monkeypatch):
    return Query(tmp_path, monkeypatch)


def answered(*ids):
    return [(one, f"a{one}") for one in ids]


class TestCarrying:
    def test_late_rows_go_out_first_in_the_next_batch_under_their_first_key(self, query):
        query.late = {2}
        assert query.run([0, 1, 2, 3]) == answered(0, 1)
        query.late = set()
        assert query.run([4, 5]) == answered(2, 3, 4, 5)
        keys = {}
        for key, row in query.calls:
            keys.setdefault(row, set()).add(key)
        assert keys[2] == {"query/0/ask/0/2"}
        assert keys[3] == {"query/0/ask/0/3"}
        assert keys[4] == {"query/1/ask/0/0"}

    def test_rows_go_out_without_new_ones(self, query):
        query.late = {1}
        assert query.run([0, 1]) == answered(0)
        query.late = set()
        assert query.run([]) == answered(1)
        assert query.run([]) == []

    @pytest.mark.long
    def test_a_repeated_batch_carries_the_same_rows(self, query):
        query.late = {1}
        query.run([0, 1])
        query.late = {3}
        first = query.run([2, 3], commit=False)
        query.restart()
        assert query.run([2, 3]) == first == answered(1, 2)
        query.late = set()
        assert query.run([]) == answered(3)

    @pytest.mark.long
    @pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 5), (4, 3), (8, 1)])
    def test_no_row_is_lost_or_doubled_by_a_rescale(self, query, before, after):
        query.late = set(range(8, 16))
        out = query.run(list(range(16)), before)
        query.late = set()
        query.restart()
        out += query.run(list(range(16, 20)), after)
        assert sorted(out) == answered(*range(20))

    def test_out_of_order_only_late_rows_are_carried(self, query):
        query.late = {1}
        assert query.run([0, 1, 2], ordered=False) == answered(0, 2)
        query.late = set()
        assert sorted(query.run([3], ordered=False)) == answered(1, 3)

    @pytest.mark.long
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize(
        "policy",
        [{"batch": Batch(2)}, {"keyed": True}, {"hedge": 0.01}, {"hedge": 0.01, "batch": Batch(3)}],
        ids=["batch", "key", "hedge", "hedge and batch"],
    )
    def test_no_row_is_lost_doubled_or_called_under_another_key(self, query, policy, ordered):
        out, due = [], 0
        for late in ({2, 3}, set(), {9}, {12, 13, 14}, set()):
            query.late = late
            first, due = due, due + 4
            gone = query.run(range(first, due), ordered=ordered, **policy)
            assert not {one for one, _ in gone} & late
            out += gone
        assert sorted(out) == answered(*range(due))
        assert out == sorted(out) or not ordered
        keys = {}
        for key, row in query.calls:
            keys.setdefault(row, set()).add(key)
        assert keys == {row: {f"query/{row // 4}/ask/0/{row % 4}"} for row in range(due)}

    def test_the_order_of_a_key_goes_on_in_the_next_batch(self, query):
        query.late = {0}
        query.run([0, 1, 2, 3], keyed=True, ordered=False)
        query.late, query.calls = set(), []
        query.run([4, 5, 6], keyed=True, ordered=False)
        even = [row for _, row in query.calls if row % 2 == 0]
        assert even == [0, 2, 4, 6]

    def test_pending_rows_of_other_columns_are_refused_and_none_are_fine(self, query):
        query.late = {1}
        query.run([0, 1])
        query.restart()
        with pytest.raises(StateMigrationError, match=r"1 rows.*id int64.*id int32.*carry_after"):
            query.run([2], kind=pa.int32())
        query.late = set()
        assert query.run([2]) == answered(1, 2)
        query.restart()
        assert query.run([3], kind=pa.int32()) == answered(3)

    def test_other_arrow_types_of_the_same_columns_are_cast(self, query):
        stored = pa.record_batch([pa.array(["x"])], names=["s"])
        wanted = pa.schema([("s", pa.large_string())])
        batch = carried_batch([packed_row(stored), packed_row(stored)], wanted)
        assert batch.schema == wanted
        assert batch.to_pylist() == [{"s": "x"}, {"s": "x"}]

    def test_a_query_that_ends_by_itself_is_refused(self, query):
        with pytest.raises(ConfigurationError, match="availableNow"):
            query.run([0], properties={query_listener.ENDS: "true"})

    def test_a_failed_call_fails_the_batch_and_stores_nothing(self, query):
        query.late = {1}
        query.run([0, 1])
        query.late, query.failing = set(), {2}
        with pytest.raises(FunctionError, match="raised LookupError"):
            query.run([2], commit=False)
        query.failing = set()
        assert query.run([2]) == answered(1, 2)
