"""Tasks of an import of DataFrames, without Spark: what they answer, and what they leave."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime.importing.dataframes import FirstVersionPlan
from forebay_spark_runtime.importing.table_task import PartAnswer
from forebay_state_api.contract.migration import Lineage
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.settings import resolve_settings
from forebay_state_processor.importing.declared_states import DeclaredStates
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
        f"{start}{other!r}: the key is of key group {key_group_of(other, 8)}, and its column's",
    ]
    for answer, beginning in zip(answers, said, strict=True):
        assert answer.fault.startswith(beginning)
    assert not list(tmp_path.iterdir())
