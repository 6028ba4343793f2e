"""The clients of ordered waits in Spark's workers: how often they are opened, and when closed.

By default ``waiting/test_operator_clients.py`` of the runtime has tasks that fail, and resources
that cannot be opened.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay_spark_runtime import ordered_wait

pytestmark = pytest.mark.spark


def opened(folder):
    """An async context manager that writes a file each time it is opened and closed."""
    from contextlib import asynccontextmanager
    from uuid import uuid4

    @asynccontextmanager
    async def client():
        name = f"{os.getpid()}-{uuid4()}"
        leave(f"opened-{name}")
        yield name
        leave(f"closed-{name}")

    def leave(name):
        Path(folder, name).touch()

    return client


def test_one_client_for_all_batches_of_a_worker(stage):
    stage.put_ids(3)
    folder = stage.folder / "clients"
    folder.mkdir()

    async def fn(row, client):
        return client

    stage.run(ordered_wait(stage.source("id long"), fn, "client string", resources=opened(folder)))
    used = {row[1] for row in stage.rows("id long, client string")}
    assert {path.name for path in folder.glob("opened-*")} == {f"opened-{name}" for name in used}
    workers = {name.partition("-")[0] for name in used}
    assert len(used) == len(workers) <= 2
    assert not list(folder.glob("closed-*"))


def test_one_client_for_all_calls_of_foreach_batch(stage):
    stage.put_ids(3)
    folder = stage.folder / "clients"
    folder.mkdir()
    resources = opened(folder)

    async def fn(row, client):
        return client

    def each(df, batch_id):
        waited = ordered_wait(df, fn, "client string", resources=resources)
        waited.write.format("noop").mode("append").save()

    stage.each_batch(each, stage.source("id long"))
    pids = [path.name.split("-")[1] for path in folder.glob("opened-*")]
    assert len(pids) == len(set(pids)) <= 2


@pytest.mark.slow
def test_the_client_of_a_failed_task_is_closed(stage):
    folder = stage.folder / "clients"
    folder.mkdir()

    async def fn(row, client):
        raise ValueError("no")

    df = ordered_wait(stage.spark.range(0, 1, 1, 1), fn, "n int", resources=opened(folder))
    with pytest.raises(Exception, match="raised ValueError"):
        df.collect()
    assert len(list(folder.glob("closed-*"))) == len(list(folder.glob("opened-*"))) == 1


@pytest.mark.slow
def test_resources_that_cannot_be_opened_are_named(spark):
    def resources():
        raise OSError("no route")

    async def fn(row, client):
        return 1

    df = ordered_wait(spark.range(1), fn, "n int", resources=resources, name="ask")
    with pytest.raises(Exception, match=r"resources of ask .* raised OSError: no route"):
        df.collect()
