"""Tasks of an import of DataFrames, without Spark: what they answer, and what they leave."""

from __future__ import annotations

import gc
import pickle
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest

from forebay_engine.timers.watermark import TimerClocks
from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime.importing import table_task
from forebay_spark_runtime.importing.dataframes import FirstVersionPlan
from forebay_spark_runtime.importing.table_task import PartAnswer, TableTask
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.migration import Lineage
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_processor.importing.declared_states import DeclaredStates
from forebay_state_processor.importing.first_version import Position
from forebay_state_processor.importing.tables import TableLayout
from forebay_state_processor.reading import open_state

DESCRIPTION = {
    "name": "n",
    "kind": "value",
    "key": {"type": "str"},
    "value": {"type": "int"},
    "user_key": None,
    "ttl": False,
}
DECLARED = DeclaredStates(
    uid="counts",
    key=KeyType({"type": "str"}),
    lineages={"n": Lineage(DESCRIPTION, [{"value": {"type": "int"}, "user_key": None}])},
    ttl_us={},
    has_timers=True,
)
LAYOUTS = [
    TableLayout(columns=["key", "value"], state="n"),
    TableLayout(columns=["key", "domain", "time"], is_timers=True),
]
INT = pa.int32()
TIMER = pa.struct({"key": pa.string(), "domain": pa.string(), "time": pa.timestamp("us", "UTC")})
PARTS = 2
LSM = pytest.param(
    "lsm", marks=pytest.mark.skipif(not find_spec("forebay_backend_lsm"), reason="needs lsm")
)
"""Not every cell of tox installs it."""


@pytest.fixture
def plan(tmp_path):
    made = FirstVersionPlan(
        declared=DECLARED,
        uid="counts",
        layouts=LAYOUTS,
        state_dir=str(tmp_path),
        query="visits",
        settings=resolve_settings({}),
        parallelism=PARTS,
        max_parallelism=8,
        now_us=5,
        dry_run=False,
    )
    return pickle.loads(pickle.dumps(made))  # as Spark sends it


def batch(*rows, timers=(), value=INT):
    """Return rows of both tables, alternately, as the shuffle mixes them."""
    row = pa.struct({"key": pa.string(), "value": value})
    mixed = [(0, {"key": key, "value": n}, None) for key, n in rows]
    for at, (key, time) in enumerate(timers):
        mixed.insert(2 * at, (1, None, {"key": key, "domain": "event_time", "time": time}))
    columns = [[one[at] for one in mixed] for at in range(3)]
    kinds = (pa.int32(), row, TIMER)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["table", "row_0", "row_1"])


def keys_of(subtask, count):
    """Return keys of a subtask's key groups."""
    keys = (str(n) for n in range(100))
    return [key for key in keys if subtask_of(key_group_of(key, 8), PARTS, 8) == subtask][:count]


def test_the_parts_of_all_tasks_are_a_version(plan, tmp_path):
    made = []
    for subtask in range(PARTS):
        keys = keys_of(subtask, 6)
        rows = [(key, int(key)) for key in keys]
        batches = [batch(*rows[:4], timers=[(keys[0], 7)]), batch(*rows[4:])]
        (sent,) = plan.answer(subtask, iter(batches)).batch().to_pylist()
        answer = PartAnswer.of_row(sent | {"rows": dict(sent["rows"])})
        assert (answer.rows, answer.timers, answer.fault) == ({"n": 6}, 1, None)
        made.append(answer.part)
    plan.operator.publish(made, None)
    with open_state(str(tmp_path), query="visits", uid="counts") as snapshot:
        found = {row.key: row.value for row in snapshot.scan("n")}
        assert found == {key: int(key) for part in range(PARTS) for key in keys_of(part, 6)}
        assert {timer.key for timer in snapshot.timers()} == {keys_of(0, 1)[0], keys_of(1, 1)[0]}


def test_a_row_that_does_not_fit_is_named_by_its_key_and_nothing_is_written(plan, tmp_path):
    good, twice = keys_of(0, 2)
    (other,) = keys_of(1, 1)
    answers = [
        plan.answer(0, iter([batch((good, 1), (twice, 2)), batch((twice, 3))])),
        plan.answer(0, iter([batch((good, None))])),
        plan.answer(0, iter([batch((good, 1.5), value=pa.float64())])),
        plan.answer(0, iter([batch((good, 1), (other, 2))])),
    ]
    assert [one.part for one in answers] == [None] * 4
    start = "the table of state 'n', key "
    said = [
        f"{start}{twice!r}: the key {twice!r} comes twice",
        f"{start}{good!r}: state 'n'",
        f"{start}{good!r}: state 'n'",
        f"{start}{other!r}: the key is of key group {key_group_of(other, 8)}, but its column's",
    ]
    for answer, beginning in zip(answers, said, strict=True):
        assert answer.fault.startswith(beginning)
    assert not list(tmp_path.iterdir())


class Sale(NamedTuple):
    shop: str
    amount: int


class Sales(KeyedProcessFunction):
    def open(self, context):
        context.get_state(ValueStateDescriptor("last", Sale))
        context.get_list_state(ListStateDescriptor("amounts", int))
        ttl = StateTtlConfig(timedelta(hours=1))
        context.get_map_state(MapStateDescriptor("by_day", str, tuple[int, int], ttl=ttl))

    def process_element(self, row, ctx):
        raise AssertionError

    def on_timer(self, at, ctx):
        raise AssertionError


INSTANT = pa.timestamp("us", "UTC")
PAIR = pa.struct({"n": pa.int64(), "total": pa.int64()})
SALES = {
    "last": {"value": pa.struct({"amount": pa.int32(), "shop": pa.string()})},
    "amounts": {"value": pa.list_(pa.int64())},
    "by_day": {"value": pa.map_(pa.string(), PAIR), "written": pa.map_(pa.string(), INSTANT)},
    None: {"domain": pa.string(), "time": INSTANT},
}
"""State → its columns besides the key; ``None``: timers."""


def at(minutes):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)


SALES_ROWS = [
    ("last", {"key": "ann", "value": {"shop": "tea", "amount": 3}}),
    ("last", {"key": "bob", "value": {"shop": "rum", "amount": 4}}),
    ("amounts", {"key": "ann", "value": [1, 2]}),
    (
        "by_day",
        {
            "key": "ann",
            "value": [("sunday", {"n": 1, "total": 9}), ("monday", {"n": 1, "total": 5})],
            "written": [("sunday", at(59)), ("monday", at(61))],
        },
    ),
    (None, {"key": "bob", "domain": "event_time", "time": at(200)}),
]


def batch_of_sales(state, row):
    """Return one row, as the shuffle sends it."""
    kinds = [pa.struct({"key": pa.string(), **columns}) for columns in SALES.values()]
    number = [*SALES].index(state)
    arrays = [pa.array([row if at == number else None], kind) for at, kind in enumerate(kinds)]
    names = ["table", *(f"row_{at}" for at in range(len(kinds)))]
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), *arrays], names=names)


@pytest.mark.parametrize("backend", ["heap", LSM])
def test_a_version_may_have_a_place_in_a_query(tmp_path, monkeypatch, backend):
    backends = {**plugins().backends(), **plugins().compaction_services()}
    declared = DeclaredStates.of(
        Sales(), key=KeyType.of(str), uid="sales", backend=plugins().backend(backend)
    )
    plan = FirstVersionPlan(
        declared=declared,
        uid="sales",
        layouts=[
            TableLayout(columns=["key", *columns], state=state, is_timers=state is None)
            for state, columns in SALES.items()
        ],
        state_dir=str(tmp_path),
        query="query",
        settings=resolve_settings({"spark.forebay.state.backend": backend}, backends=backends),
        parallelism=PARTS,
        max_parallelism=8,
        now_us=7_200_000_000,
        dry_run=False,
        position=Position(version=3, batch_ms=7_200_000, watermark_us=5),
    )
    made = []
    for subtask in range(PARTS):
        context = SimpleNamespace(partitionId=lambda subtask=subtask: subtask)
        monkeypatch.setattr(table_task, "TaskContext", SimpleNamespace(get=lambda c=context: c))
        mine = [
            batch_of_sales(state, row)
            for state, row in SALES_ROWS
            if subtask_of(key_group_of(row["key"], 8), PARTS, 8) == subtask
        ]
        (answer,) = TableTask(plan)(iter(mine))
        (sent,) = answer.to_pylist()
        made.append(PartAnswer.of_row(sent | {"rows": dict(sent["rows"])}).part)
    assert gc.isenabled()
    clocks = [TimerClocks.loaded(part.times) for part in made]
    assert [(one.now_us, one.watermark_us) for one in clocks] == [(7_200_000_000, 5)] * PARTS
    plan.operator.publish(made, None)
    with open_state(str(tmp_path), query="query", uid="sales") as snapshot:
        assert snapshot.version == 3
        assert snapshot.get("last", "ann") == ("tea", 3)
        assert snapshot.get("last", "bob") == ("rum", 4)
        assert snapshot.get("amounts", "ann") == [1, 2]
        assert snapshot.get("by_day", "ann") == {"monday": (1, 5)}  # sunday has expired
        (timer,) = snapshot.timers()
        assert (timer.key, timer.domain, timer.time) == ("bob", "event_time", at(200))
