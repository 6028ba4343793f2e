"""State that is mended while its query is stopped, on Spark."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import replace_state as replace_on_spark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.importing import replace_state
from forebay_state_api.reading import open_state

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


def rows_by_user(stage):
    """Return user → the counts of all batches, sorted."""
    found = {}
    for user, n in stage.rows(SCHEMA):
        found.setdefault(user, []).append(n)
    return found


def test_a_restarted_query_goes_on_from_the_mended_state(stage):
    def run():
        stage.put({"user": "ann"}, {"user": "bob"})
        query = stage.run(keyed(stage.source(), "user", uid="counts").process(Count(), SCHEMA))
        return {"query": query.id, "uid": "counts"}

    run()
    name = run()
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
    done = replace_on_spark({"n": rows}, **how, **name)
    assert (done.version, done.rows) == (3, {"n": 2})
    run()
    assert rows_by_user(stage) == {"ann": [1, 1, 2, 41], "bob": [1, 1, 2, 8]}
