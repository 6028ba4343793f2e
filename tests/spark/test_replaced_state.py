"""State that is mended while its query is stopped, on Spark."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_engine.versions import publishing as imported
from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import replace_state as replace_on_spark
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_processor.importing import open_next, replace_state
from forebay_state_processor.reading import open_state
from forebay_testing.storage import Crash

from .functions import Count

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


def rows_by_user(stage):
    """Return user → the counts of all batches, sorted."""
    found = {}
    for user, n in stage.rows(SCHEMA):
        found.setdefault(user, []).append(n)
    return found


def dies(*_):
    raise Crash


def test_a_restarted_query_goes_on_from_the_mended_state(stage, monkeypatch):
    def run(batches=1):
        for _ in range(batches):
            stage.put({"user": "ann"}, {"user": "bob"})
        query = stage.run(keyed(stage.source(), "user", uid="counts").process(Count(), SCHEMA))
        return {"query": query.id, "uid": "counts"}

    name = run(batches=2)
    state_dir = str(stage.folder / "state")
    with open_state(state_dir, provisional=True, **name) as snapshot:
        table = snapshot.to_arrow("n").read_all()
    edited = table.set_column(table.column_names.index("value"), "value", [[40] * 2])
    how = {"checkpoint": str(stage.checkpoint), "tables": {"n": edited}}
    done = replace_state(state_dir, without_keys=["bob"], **how, **name)
    assert (done.version, done.rows) == (2, {"n": 2})
    run()
    assert rows_by_user(stage) == {"ann": [1, 2, 41], "bob": [1, 1, 2]}

    rows = stage.spark.createDataFrame([("ann", 100), ("bob", 7)], "key string, value long")
    how = {"checkpoint": str(stage.checkpoint), "without_keys": ["ann"]}
    with monkeypatch.context() as patched:
        patched.setattr(imported, "put_manifest", dies)
        with pytest.raises(Crash):
            replace_on_spark({"n": rows}, **how, **name)
    with open_state(state_dir, **name) as snapshot:  # what the query committed
        assert (snapshot.version, snapshot.get_many("n", ["ann", "bob"])) == (3, [41, 1])
    done = replace_on_spark({"n": rows}, **how, **name)
    assert (done.version, done.rows) == (3, {"n": 2})
    run()
    assert rows_by_user(stage) == {"ann": [1, 1, 2, 41], "bob": [1, 1, 2, 8]}


TTL = StateTtlConfig(timedelta(hours=1))
LISTED = "user string, n long, seen array<long>"
TABLE = (
    "key string, namespace string, key_group int, n long, `n written` timestamp, "
    "`n expires` timestamp, seen array<long>, `seen written` array<timestamp>, "
    "`seen expires` array<timestamp>"
)


class Aging(KeyedProcessFunction):
    """Counts and lists rows; both expire after an hour."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, ttl=TTL))
        self.seen = context.get_list_state(ListStateDescriptor("seen", int, ttl=TTL))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.seen.add(n)
        yield row.user, n, [*self.seen.get()]


def edited(row):
    """Let a value and an element expire, change a value, and remove one."""
    if row["key"] == "old value":
        row["n written"] -= 2 * TTL.ttl
    elif row["key"] == "old element":
        row["seen written"][0] -= 2 * TTL.ttl
    elif row["key"] == "fifty":
        row["n"] = 50
    elif row["key"] == "nothing":
        row["n"] = None
    return row


def test_the_table_of_an_operator_with_ttl_replaces_both_parts(stage):
    stage.spark.conf.set("spark.forebay.state.backend", "lsm")
    changed = {
        "old value": (1, [1, 2, 1]),
        "old element": (3, [2, 3]),
        "fifty": (51, [1, 2, 51]),
        "nothing": (1, [1, 2, 1]),
        "no row": (1, [1]),
    }
    users = [*changed, *(f"user {n}" for n in range(6))]

    def run(batches=1):
        for _ in range(batches):
            stage.put(*({"user": user} for user in users))
        keyed_rows = keyed(stage.source(), "user", uid="aging", parallelism=2)
        query = stage.run(keyed_rows.process(Aging(), LISTED))
        return {"query": query.id, "uid": "aging", "checkpoint": str(stage.checkpoint)}

    name = run(batches=2)
    with open_next(str(stage.folder / "state"), **name) as snapshot:
        assert len(snapshot.manifests) == 2
        in_parts = [
            [key for key in users if snapshot.key_group_of(key) in one.made.range]
            for one in snapshot.manifests
        ]
        assert all(in_parts)
        rows = snapshot.table().read_all().to_pylist()
    for row in rows:
        assert row["n expires"] == row["n written"] + TTL.ttl
        assert row["seen expires"] == [at + TTL.ttl for at in row["seen written"]]
    given = [tuple(edited(row).values()) for row in rows if row["key"] != "no row"]
    done = replace_on_spark(stage.spark.createDataFrame(given, TABLE), **name)
    assert done.rows == {"n": len(users) - 2, "seen": len(users) - 1}
    before = stage.rows(LISTED)
    run()
    after = sorted((user, *changed.get(user, (3, [1, 2, 3]))) for user in users)
    assert sorted(stage.rows(LISTED)) == sorted([*before, *after])
