"""One operator fills several tables, errors among them, although a batch stops between two."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "kind string, totals struct<user string, total long>, alarms struct<user string, n long>"
STOPS_IN = 1


class Accounts(KeyedProcessFunction):
    """Adds numbers up; a negative one fails, and a large sum is an alarm."""

    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    async def process_element(self, row, ctx):
        total = await self.total.async_value() + row.n
        await self.total.async_update(total)
        if row.n < 0:
            raise ValueError("negative")
        yield "totals", (row.user, total), None
        if total > 100:
            yield "alarms", None, (row.user, row.n)


class Stopped(Exception):
    """Stops the query between two tables."""


def writer(folder, *, stops):
    def write(batch, batch_id):
        batch.persist()
        tables = {kind: batch.where(f"kind = '{kind}'") for kind in ("totals", "alarms")}
        tables = {kind: rows.select(f"{kind}.*") for kind, rows in tables.items()}
        tables["errors"] = batch.where("error is not null").select("error.*")
        for kind, rows in tables.items():
            if stops and (batch_id, kind) == (STOPS_IN, "alarms"):
                raise Stopped
            rows.write.mode("overwrite").parquet(f"{folder}/{kind}/batch={batch_id}")
        batch.unpersist()

    return write


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_batch_that_stops_between_two_tables_fills_each_once(stage, spark, backend):
    stage.put({"user": "ann", "n": 60}, {"user": "bob", "n": 10})
    stage.put({"user": "ann", "n": 70}, {"user": "bob", "n": -1}, {"user": "bob", "n": 95})

    def run(parallelism, *, stops):
        accounts = keyed(
            stage.source(),
            "user",
            uid="accounts",
            backend=backend,
            parallelism=parallelism,
            state_dir=stage.state,
            on_error="column",
        )
        output = accounts.process(Accounts(), SCHEMA)
        stage.each_batch(writer(stage.folder, stops=stops), output)

    def table(kind, *columns):
        rows = spark.read.parquet(f"{stage.folder}/{kind}").select(*columns).collect()
        return sorted(map(tuple, rows))

    with pytest.raises(Exception, match="Stopped"):
        run(2, stops=True)
    assert len(table("totals", "total")) == 4, "the batch has written its first table"
    run(3, stops=False)
    assert table("totals", "user", "total") == [
        ("ann", 60),
        ("ann", 130),
        ("bob", 10),
        ("bob", 105),
    ]
    assert table("alarms", "user", "n") == [("ann", 70), ("bob", 95)]
    assert table("errors", "key", "message") == [("bob", "negative")]
