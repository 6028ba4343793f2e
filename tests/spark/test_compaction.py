"""Files of the lsm backend are compacted in the background, in Spark's own workers."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from datetime import UTC, datetime

import pytest

from forebay_engine.versions.choosing.reader import open_version
from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver import service_outages
from forebay_spark_runtime.driver.service_outages import OperatorRun, packed_reports, report_outage
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage

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


@contextlib.contextmanager
def sent_to(address, stage, *, reuse):
    """Send all compactions to the gateway at ``address``."""
    spark, of_application = stage.spark, stage.spark._jsc.sc().conf()
    given = {
        "spark.forebay.state.backend": "lsm",
        "spark.forebay.compaction.service": "ray",
        "spark.forebay.compaction.remote.address": address,
        "spark.forebay.compaction.remote.min-bytes": "0",
    }
    of_application.set("spark.python.worker.reuse", reuse)
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        of_application.remove("spark.python.worker.reuse")
        for name in given:
            spark.conf.unset(name)


@pytest.mark.parametrize(
    ("reuse", "is_listening"),
    [("true", False), pytest.param("false", True, marks=pytest.mark.slow)],
)
def test_a_query_that_gets_nothing_from_its_gateway_says_so_once(
    stage, caplog, reuse, is_listening
):
    """Not in each process: each task that compacts may have its own, and its log is elsewhere."""
    pytest.importorskip("forebay_compaction_ray")
    lines = []

    def batch():
        stage.put(*[{"user": user} for user in USERS])
        query.processAllAvailable()
        lines[:] = [r for r in caplog.records if r.name == service_outages.__name__]

    with socket.socket() as gateway:
        gateway.bind(("127.0.0.1", 0))
        if is_listening:  # and answers nothing
            gateway.listen()
        address = f"127.0.0.1:{gateway.getsockname()[1]}"
        with sent_to(address, stage, reuse=reuse):
            counted = keyed(stage.source(), "user", uid="kinds", parallelism=2)
            writer = counted.process(Kinds(), SCHEMA).writeStream.format("json")
            paths = {"path": str(stage.output), "checkpointLocation": str(stage.checkpoint)}
            query = writer.options(**paths).start()
            try:
                deadline = time.monotonic() + 100
                while not lines:
                    assert time.monotonic() < deadline
                    batch()
                for _ in range(2):
                    batch()
            finally:
                query.stop()
    (line,) = lines
    assert line.levelno == logging.WARNING
    said = line.getMessage()
    assert said.startswith(
        f"operator 'kinds' of query {query.id}: the compaction service 'ray' has done nothing since"
    )
    assert f"the gateway {address} cannot be reached: " in said
    assert "Start a gateway there, or name one that runs" in said
    rows = stage.rows(SCHEMA)
    assert rows == sorted((user, n) for user in USERS for n in range(1, len(rows) // 12 + 1))


def test_a_task_without_an_outage_sends_nothing_to_the_driver(spark, caplog):
    """Spark sends the value of each accumulator that a task has unpickled."""
    packed = packed_reports(spark)
    who = OperatorRun(uid="u", query="q", run="of this test", service="ray")
    outage = service_outages.ServiceOutage(since=datetime(2026, 1, 2, tzinfo=UTC), why="none")

    def task(number):
        from pyspark.accumulators import _accumulatorRegistry as unpickled

        if number:
            report_outage(packed, who, outage)
        return len(unpickled)

    assert spark.sparkContext.parallelize(range(3), 3).map(task).collect() == [0, 1, 1]
    (said,) = caplog.messages
    assert "operator 'u' of query q: the compaction service 'ray' has done nothing since" in said
