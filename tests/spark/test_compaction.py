"""Files of the lsm backend are compacted in the background, in Spark's own workers."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.versions.reader import open_version

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(12)]
BATCHES = 15


class Kinds(KeyedProcessFunction):
    """Counts the rows of a key in three kinds of state, which must agree."""

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("value", int, default=0))
        self.list = context.get_list_state(ListStateDescriptor("list", int))
        self.map = context.get_map_state(MapStateDescriptor("map", str, int))

    async def process_element(self, row, ctx):
        n = await self.value.async_value() + 1
        await self.value.async_update(n)
        await self.list.async_add(n)
        await self.map.async_put(f"entry {n}", n)
        kept = [one async for one in await self.list.async_get()]
        entries = [one async for one in await self.map.async_values()]
        assert kept == sorted(entries) == list(range(1, n + 1))
        yield row.user, n


def test_results_are_found_and_installed_by_whichever_worker_comes_next(stage):
    stage.spark.conf.set("spark.forebay.state.backend", "lsm")
    stage.spark.conf.set("spark.forebay.lsm.max-runs", "4")
    for parallelism in (2, 1):
        for _ in range(BATCHES):
            stage.put(*[{"user": user} for user in USERS])
        stage.run(
            keyed(stage.source(), "user", uid="kinds", parallelism=parallelism).process(
                Kinds(), SCHEMA
            )
        )
    expected = [(user, n) for user in USERS for n in range(1, 2 * BATCHES + 1)]
    assert stage.rows(SCHEMA) == sorted(expected)
    operator = stage.operators()["kinds"]
    assert list(operator.glob("data/*/compaction-*/result"))
    with open_version(open_storage(operator), uid="kinds") as reader:
        files = [file for parent in reader.parents for file in parent.files]
    assert any("/compaction-" in file.name for file in files)
    assert len(files) <= 5
