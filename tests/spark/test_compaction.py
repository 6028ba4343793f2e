"""Files of the lsm backend are compacted in the background, in Spark's own workers."""

from __future__ import annotations

import time

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


def results(operator):
    """Return the folders of the compactions that are done."""
    return {path.parent.name for path in operator.glob("data/*/compaction-*/result")}


def live_folders(operator):
    """Return the folders of the files of the newest version."""
    with open_version(open_storage(operator), uid="kinds") as reader:
        return {file.name.split("/")[2] for parent in reader.parents for file in parent.files}


def test_results_are_found_and_installed_by_whichever_worker_comes_next(stage):
    """The third version's job is submitted at the latest, since nearly all is overwritten."""
    stage.spark.conf.set("spark.forebay.state.backend", "lsm")

    def run(batches, parallelism=2):
        for _ in range(batches):
            stage.put(*[{"user": user} for user in USERS])
        counted = keyed(stage.source(), "user", uid="kinds", parallelism=parallelism)
        stage.run(counted.process(Kinds(), SCHEMA))

    run(3)
    operator = stage.operators()["kinds"]
    deadline = time.monotonic() + 100
    while not results(operator):  # of a thread of a worker
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run(1)
    assert results(operator) & live_folders(operator)
    run(1, parallelism=1)
    assert stage.rows(SCHEMA) == sorted((user, n) for user in USERS for n in range(1, 6))


@pytest.mark.slow
def test_a_worker_that_ends_with_its_task_completes_its_compactions_before(stage):
    """Spark kills such a process at once, and the next one finds the results."""
    conf = stage.spark._jsc.sc().conf()
    stage.spark.conf.set("spark.forebay.state.backend", "lsm")

    def run(batches):
        for _ in range(batches):
            stage.put(*[{"user": user} for user in USERS])
        counted = keyed(stage.source(), "user", uid="kinds", parallelism=1)
        stage.run(counted.process(Kinds(), SCHEMA))

    conf.set("spark.python.worker.reuse", "false")
    try:
        run(3)
        operator = stage.operators()["kinds"]
        found = results(operator)
        assert found
        run(1)
    finally:
        conf.remove("spark.python.worker.reuse")
    assert found & live_folders(operator)
    assert stage.rows(SCHEMA) == sorted((user, n) for user in USERS for n in range(1, 5))
