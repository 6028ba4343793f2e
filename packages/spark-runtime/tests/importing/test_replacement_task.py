"""Tasks that edit the parts of a version, without Spark: together they do what one process does."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.publishing import ImportTarget
from forebay_spark_runtime.importing.replacing import ReplacementPlan
from forebay_spark_runtime.importing.table_task import PartAnswer
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing.replacing import publish_copy, replace_version
from forebay_state_processor.importing.tables import Tables
from forebay_state_processor.reading import open_state
from forebay_testing import KeyedJob
from forebay_testing.clock import ManualClock

PARTS, GROUPS = 2, 8
LATER = datetime(2040, 1, 1, tzinfo=UTC)
TIMES = pa.timestamp("us", "UTC")


class Keep(KeyedProcessFunction):
    """Only the first subtask declares the state ``n``."""

    def open(self, context):
        self.n = None
        if not context.subtask_index:
            self.n = context.get_state(ValueStateDescriptor("n", int))
        self.seen = context.get_list_state(ListStateDescriptor("seen", str))

    def process_element(self, row, ctx):
        if self.n is not None:
            self.n.update(1)
        self.seen.add(row[0])
        ctx.timers.replace_processing_time(ctx.timers.processing_time + timedelta(hours=1))
        yield row

    def on_timer(self, at, ctx):
        yield ctx.current_key


def subtask(key):
    return subtask_of(key_group_of(key, GROUPS), PARTS, GROUPS)


ALL = [f"user {n}" for n in range(12)]
FIRST, SECOND = ([key for key in ALL if subtask(key) == number] for number in range(PARTS))


@pytest.fixture(params=[ALL, FIRST], ids=["all", "one subtask"])
def version(request, tmp_path):
    """A version of two queries, which has these keys."""
    for query in ("tasks", "one process"):
        storage, clock = open_storage(str(tmp_path)), ManualClock()
        how = {"parallelism": PARTS, "max_parallelism": GROUPS, "key_type": str, "clock": clock}
        job = KeyedJob(HeapBackend, storage, query=query, **how)
        job.run(Keep(), [(key, 1) for key in request.param])
    return str(tmp_path)


def opened(state_dir, query):
    how = {"provisional": True, "show_expired": True}
    conf = {"spark.forebay.state.dir": state_dir}
    return open_state(state_dir, query=query, uid="operator", conf=conf, **how)


def content(snapshot):
    rows = {name: sorted(snapshot.scan(name), key=lambda row: row.key) for name in snapshot.states}
    return rows, sorted(snapshot.timers(), key=lambda timer: timer.key)


def rows_of_part(number, tables):
    """Yield the rows of a subtask, as the shuffle sends them."""
    names = [f"row_{at}" for at in range(len(tables))]
    for at, table in enumerate(tables):
        mine = [row for row in table.to_pylist() if subtask(row["key"]) == number]
        columns = [
            pa.array(mine if one is table else [None] * len(mine), pa.struct(list(one.schema)))
            for one in tables
        ]
        numbers = pa.array([at] * len(mine), pa.int32())
        yield pa.RecordBatch.from_arrays([numbers, *columns], names=["table", *names])


def answers(snapshot, states, timers, removed):
    """Yield what the tasks answer, as Spark sends them and their answers."""
    layouts = Tables.of(states, timers).layouts
    plan = ReplacementPlan.of(snapshot, layouts, without_keys=removed, dry_run=False)
    tables = [*states.values(), *([] if timers is None else [timers])]
    for number in range(PARTS):
        task = pickle.loads(pickle.dumps(plan))
        (sent,) = task.answer(number, rows_of_part(number, tables)).batch().to_pylist()
        yield PartAnswer.of_row(sent | {"rows": dict(sent["rows"])})


@pytest.mark.parametrize("with_timers", [False, True])
def test_tasks_edit_a_version_as_one_process_does(version, with_timers):
    states = {"n": pa.table({"key": ALL[1:], "value": range(1, 12)})}
    timers = None
    if with_timers:
        columns = {"key": ALL[2:6], "domain": ["event_time"] * 4}
        timers = pa.table({**columns, "time": pa.array([LATER] * 4, TIMES)})
    removed = [FIRST[1], SECOND[1]]
    with opened(version, "tasks") as snapshot:
        target = ImportTarget.replacing(snapshot.source.storage, snapshot.opened.reader)
        found = [*answers(snapshot, states, timers, removed)]
        assert [one.fault for one in found] == [None] * PARTS
        assert sum(one.rows["n"] for one in found) == 11
        publish_copy(snapshot, target, [one.part for one in found])
    with opened(version, "one process") as snapshot:
        replace_version(snapshot, Tables.of(states, timers), without_keys=removed)
    with opened(version, "tasks") as by_tasks, opened(version, "one process") as by_one:
        assert content(by_tasks) == content(by_one)
        for manifest in by_tasks.manifests:
            assert {"n", "seen"} <= manifest.descriptions.keys()
        kept = {*ALL[1:]} - {*removed}
        assert {row.key for row in by_tasks.scan("n")} == kept
        assert {timer.key for timer in by_tasks.timers()} <= {*ALL} - {*removed}
