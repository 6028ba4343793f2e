"""The tasks of an import, on Arrow batches as Spark sends them."""

from __future__ import annotations

import gc
from datetime import timedelta
from importlib.util import find_spec
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest

from forebay_engine.versions.format.key_types import KeyType
from forebay_engine.versions.publishing import ImportedPart, ImportTarget, publish
from forebay_spark_runtime.importing import part_task
from forebay_spark_runtime.importing.mapping import TakenState
from forebay_spark_runtime.importing.part_task import CheckTask, ImportPlan, WriteTask
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_processor.importing.declared_states import DeclaredStates
from forebay_state_processor.importing.subtask_part import NO_WATERMARK
from forebay_state_processor.reading import open_state

LSM = pytest.param(
    "lsm", marks=pytest.mark.skipif(not find_spec("forebay_backend_lsm"), reason="needs lsm")
)
"""Not every cell of tox installs it."""
GROUPS = 8
HOUR_US = 3_600_000_000


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


SALE = pa.struct({"amount": pa.int32(), "shop": pa.string()})
PAIR = pa.struct({"n": pa.int64(), "total": pa.int64()})
KINDS = (
    SALE,
    pa.list_(pa.struct({"n": pa.int64()})),
    pa.map_(
        pa.struct({"day": pa.string()}),
        pa.struct({"value": PAIR, "ttlExpirationMs": pa.int64()}),
    ),
    pa.int64(),
)
"""The types of the variables' columns, and of timers."""


def plan(tmp_path, backend):
    backends = {**plugins().backends(), **plugins().compaction_services()}
    return ImportPlan(
        declared=DeclaredStates.of(
            Sales(),
            key=KeyType.of(str),
            uid="sales",
            backend=plugins().backend(backend),
        ),
        taken=[
            TakenState(variable="last", state="last", ttl_us=None),
            TakenState(variable="amounts", state="amounts", ttl_us=None),
            TakenState(variable="days", state="by_day", ttl_us=HOUR_US),
        ],
        domain=TimeDomain.EVENT_TIME,
        state_dir=str(tmp_path),
        query="query",
        settings=resolve_settings({"spark.forebay.state.backend": backend}, backends=backends),
        version=3,
        parallelism=2,
        max_parallelism=GROUPS,
        now_us=2 * HOUR_US,
        watermark_us=NO_WATERMARK,
    )


def batch(*rows):
    """Return a batch of (state, key, content)."""
    numbers, keys, _ = zip(*rows, strict=True)
    columns = {
        "state": pa.array(numbers, pa.int32()),
        "key_group": pa.array([key_group_of(key or "", GROUPS) for key in keys], pa.int32()),
        "key": pa.StructArray.from_arrays([pa.array(keys, pa.string())], names=["user"]),
    }
    for at, kind in enumerate(KINDS):
        values = [one if number == at else None for number, _, one in rows]
        columns[f"content_{at}"] = pa.array(values, kind)
    return pa.RecordBatch.from_pydict(columns)


def day(name, total, expires_ms):
    """Return an entry of Spark's map."""
    value = {"n": 1, "total": total}
    return ({"day": name}, {"value": value, "ttlExpirationMs": expires_ms})


ROWS = [
    (0, "ann", {"shop": "tea", "amount": 3}),
    (0, "bob", {"shop": "rum", "amount": 4}),
    (1, "ann", [{"n": 1}, {"n": 2}]),
    (2, "ann", [day("sunday", 9, 7_000_000), day("monday", 5, 8_000_000)]),
    (3, "bob", 9_000),
]


def written(monkeypatch, plan, subtask):
    """Let a task write the rows of one subtask."""
    context = SimpleNamespace(partitionId=lambda: subtask)
    monkeypatch.setattr(part_task, "TaskContext", SimpleNamespace(get=lambda: context))
    mine = [row for row in ROWS if subtask_of(key_group_of(row[1], GROUPS), 2, GROUPS) == subtask]
    (answer,) = WriteTask(plan)(iter([batch(row) for row in mine]))
    return ImportedPart.unpacked(answer.column("part")[0].as_py())


@pytest.mark.parametrize("backend", ["heap", LSM])
def test_all_parts_are_one_version(tmp_path, monkeypatch, backend):
    one = plan(tmp_path, backend)
    parts = [written(monkeypatch, one, subtask) for subtask in range(2)]
    assert all(part.descriptions.keys() >= {"last", "amounts", "by_day"} for part in parts)
    target = ImportTarget(version=3, max_parallelism=GROUPS, parallelism=2)
    storage = one.reading().storage
    publish(storage, target, parts, uid="sales", backend=backend, now_us=one.now_us)
    with open_state(str(tmp_path), query="query", uid="sales") as snapshot:
        assert snapshot.version == 3
        assert snapshot.get("last", "ann") == ("tea", 3)
        assert snapshot.get("last", "bob") == ("rum", 4)
        assert snapshot.get("amounts", "ann") == [1, 2]
        assert snapshot.get("by_day", "ann") == {"monday": (1, 5)}  # sunday has expired
        (timer,) = snapshot.timers()
        assert (timer.key, timer.domain, timer.time.timestamp()) == ("bob", "event_time", 9)
    assert gc.isenabled()


def test_rows_of_all_states_are_counted(tmp_path):
    (answer,) = CheckTask(plan(tmp_path, "heap"))(iter([batch(*ROWS), batch(*ROWS[:1])]))
    assert answer.column("rows")[0].as_py() == [3, 1, 1, 1]
    assert answer.column("faults")[0].as_py() == []
    assert not list(tmp_path.iterdir())


def test_a_row_that_does_not_fit_is_named_with_its_key(tmp_path):
    bad = [(0, "bob", {"shop": None, "amount": 4}), (1, None, [{"n": 1}])]
    batches = [batch(*ROWS, one) for one in bad]
    (answer,) = CheckTask(plan(tmp_path, "heap"))(iter(batches))
    first, second = answer.column("faults")[0].as_py()
    assert first.startswith("last, key {'user': 'bob'}: state 'last': expected Sale(")
    assert second == "amounts, key {'user': None}: the key column 'user' is null"
