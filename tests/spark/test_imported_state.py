"""DataFrames that become the first version of an operator, and the queries that begin with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import import_state
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading import open_state

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long, cities array<string>"
NAME = {"query": "visits", "uid": "counts"}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        ttl = StateTtlConfig(timedelta(days=3650))
        self.cities = context.get_list_state(ListStateDescriptor("cities", str, ttl=ttl))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value(), [*self.cities.get()]

    def on_timer(self, at, ctx):
        yield ctx.current_key, -1, []


def test_a_query_begins_with_dataframes(stage):
    users = stage.spark.createDataFrame(
        [("ann", 7, ["Rome"], [LONG_AGO]), ("bob", None, ["Oslo", "Bonn"], None)],
        "key string, n int, cities array<string>, `cities written` array<timestamp>",
    )
    timers = stage.spark.createDataFrame(
        [("eve", "processing_time", LONG_AGO)], "key string, domain string, time timestamp"
    )
    how = {**NAME, "function": Count, "parallelism": 3}
    tried = import_state(users, timers=timers, dry_run=True, **how)
    assert (tried.run, tried.rows, tried.timers) == (None, {"n": 1, "cities": 2}, 1)
    assert not list(stage.folder.glob("state/**/*"))
    done = import_state(users, timers=timers, savepoint="first", **how)
    assert done.rows == tried.rows
    with open_state(str(stage.state), version="first", **NAME) as snapshot:
        assert snapshot.run == done.run
        assert snapshot.rows_of("cities", ["ann"])[0].written == [LONG_AGO]
    with pytest.raises(ConfigurationError, match="has state already"):
        import_state(users, **how)
    stage.put({"user": "ann"}, {"user": "bob"}, {"user": "zoe"})
    stage.run(keyed(stage.source(), "user", **NAME).process(Count(), SCHEMA))
    assert sorted(stage.rows(SCHEMA)) == [
        ("ann", 8, ["Rome"]),
        ("bob", 1, ["Oslo", "Bonn"]),
        ("eve", -1, []),
        ("zoe", 1, []),
    ]


@pytest.mark.slow  # by default: test_imported_state.py of cli, and importing/test_table_task.py
def test_rows_that_do_not_fit_leave_nothing(stage):
    def refused(said, table, **how):
        with pytest.raises(ConfigurationError, match=said):
            import_state(table, **{**NAME, "function": Count, "parallelism": 4} | how)
        assert not [one for one in stage.folder.glob("state/**/*") if one.is_file()]

    make = stage.spark.createDataFrame
    many = [(str(n), n) for n in range(50)]
    twice = make([*many, ("7", 0)], "key string, value long")
    refused("the table of state 'n', key '7': the key '7' comes twice", {"n": twice})
    null = make([*many, ("x", None)], "key string, value long")
    refused("key 'x': state 'n'", {"n": null})
    refused(
        "key 5: a key of operator 'counts'",
        {"n": make([(5, 1)], "key int, value long")},
        key="string",
    )
    refused("cannot be a key", {"n": make([([5], 1)], "key array<int>, value long")})
    refused("it needs key, value", {"n": make([("a", 1)], "key string, n long")})
    refused("takes bounded DataFrames", {"n": stage.source("key string, value long")})
    refused("cannot be a savepoint|reserved for forks", {"n": null}, savepoint="fork a")
    refused("parallelism 4 is above", {"n": null}, max_parallelism=2)
