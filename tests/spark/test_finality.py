"""Final versions on Spark: marks at a batch's end, bounded DataFrames, foreachBatch."""

from __future__ import annotations

import threading
import time

import pytest

from forebay_engine.versions.choosing.finality import newest_shown
from forebay_engine.versions.format.epochs import BOUNDED, read_record
from forebay_spark_runtime import keyed
from forebay_state_api.storage.opening import open_storage

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


def add(first, second):
    return (first[0], first[1] + second[1])


def summed(df, **options):
    """Return running sums; `reduce` keeps the last row of each user."""
    options = {"uid": "sums", "parallelism": 2, **options}
    return keyed(df, "user", **options).reduce(add)


def storage_of(stage, uid="sums"):
    return open_storage(str(stage.operators()[uid]))


def newest_final(stage):
    shown = newest_shown(storage_of(stage), provisional=False)
    return shown and shown.at.version


def eventually(read, wanted):
    """Wait until ``read()`` returns what is wanted: listeners run after a batch."""
    until = time.monotonic() + 100
    while (found := read()) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_the_newest_version_of_a_stream_is_final_at_the_end_of_its_batch(stage):
    for n in (1, 2):
        stage.put({"user": "ann", "n": n}, {"user": "bob", "n": n})
    stage.run(summed(stage.source()))
    eventually(lambda: newest_final(stage), 2)


def test_a_bounded_dataframe_is_final_when_it_is_complete(stage):
    rows = stage.spark.createDataFrame([("ann", 1)], SCHEMA)
    for batch_id in (0, 1):
        summed(rows, query="ledger", batch_id=batch_id).collect()
        assert newest_final(stage) == batch_id + 1


def test_in_foreach_batch_the_next_batch_makes_a_version_final(stage):
    for n in (1, 2):
        stage.put({"user": "ann", "n": n})
    seen = []

    def write(df, batch_id):
        summed(df).collect()
        seen.append(newest_final(stage))

    stage.each_batch(write)
    assert seen == [None, 1]
    assert newest_final(stage) == 1


def test_a_thread_of_a_foreach_batch_function_makes_no_bounded_run(stage):
    stage.put({"user": "ann", "n": 1})

    def write(df, batch_id):
        named = {"query": "threads", "batch_id": batch_id}
        thread = threading.Thread(target=lambda: summed(df, **named).collect())
        thread.start()
        thread.join(100)

    stage.each_batch(write)
    assert newest_final(stage) is None
    newest = newest_shown(storage_of(stage), provisional=True)
    assert not newest.final
    assert BOUNDED not in read_record(storage_of(stage), newest.at.run_key).details
