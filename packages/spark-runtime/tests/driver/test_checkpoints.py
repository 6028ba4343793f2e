"""Reading a query's checkpoint, with fakes of Spark's classes."""

from __future__ import annotations

import uuid

import pytest
from py4j.protocol import Py4JError

from forebay_spark_runtime.driver import checkpoints
from forebay_spark_runtime.driver.session import MicroBatch

HOME = "file:/home/checkpoint"


class Option:
    """Scala's ``Option``: a value or nothing."""

    def __init__(self, *content):
        self.content = content

    def isEmpty(self):
        return not self.content

    def get(self):
        return self.content[0]


class Entry:
    """One batch in the offset log, and its metadata."""

    def __init__(self, batch_ms):
        self.batch_ms = batch_ms

    def metadataOpt(self):
        return Option() if self.batch_ms is None else Option(self)

    def batchTimestampMs(self):
        return self.batch_ms


class Execution:
    """A running query, which is also its own session configuration."""

    def __init__(self, times_ms, **conf):
        self.times_ms = times_ms
        self.settings = {f"spark.forebay.{name}": value for name, value in conf.items()}
        self.asked = []
        self.run_id = uuid.uuid4()

    def id(self):
        return "the query"

    def runId(self):
        return self.run_id

    def resolvedCheckpointRoot(self):
        return HOME

    def offsetLog(self):
        return self

    def sparkSessionForStream(self):
        return self

    def conf(self):
        return Settings(self.settings)

    def getLatestBatchId(self):
        return Option(max(self.times_ms)) if self.times_ms else Option()

    def get(self, batch):
        self.asked.append(batch)
        return Option(Entry(self.times_ms[batch])) if batch in self.times_ms else Option()


class Settings:
    def __init__(self, settings):
        self.settings = settings

    def get(self, key, default):
        return self.settings.get(key, default)


def test_a_new_query_has_a_location_and_no_times():
    found = checkpoints.checkpoint_of(Execution({}))
    assert (found.location, found.times_ms) == (HOME, {})


def test_the_times_of_the_last_batches_are_asked():
    execution = Execution({n: 1_000 + n for n in range(100)})
    found = checkpoints.checkpoint_of(execution)
    assert found.times_ms == {n: 1_000 + n for n in range(80, 100)}
    assert len(execution.asked) == 20


def test_as_many_as_versions_are_stored():
    execution = Execution({n: n for n in range(100)}, retention="3")
    assert sorted(checkpoints.checkpoint_of(execution).times_ms) == [*range(94, 100)]


def test_batches_that_are_purged_or_without_a_time_are_left_out():
    found = checkpoints.checkpoint_of(Execution({5: 50, 7: None, 8: 80}))
    assert found.times_ms == {5: 50, 8: 80}


def test_an_older_spark_calls_it_otherwise(monkeypatch):
    def missing(entry):
        raise Py4JError("Method metadataOpt([]) does not exist")

    monkeypatch.setattr(Entry, "metadata", Entry.metadataOpt, raising=False)
    monkeypatch.setattr(Entry, "metadataOpt", missing)
    assert checkpoints.checkpoint_of(Execution({0: 10})).times_ms == {0: 10}


def test_a_query_that_cannot_be_asked_goes_on(caplog):
    execution = Execution({0: 1})
    del execution.settings
    assert checkpoints.checkpoint_of(execution) is None
    assert "the checkpoint of query the query was not read" in caplog.text


@pytest.fixture
def batch():
    """Return micro-batch 2 of a separate run."""
    return MicroBatch(query="q", batch_id=2, run_id="the user's job group", spark_query="q")


def test_in_foreach_batch_the_past_is_asked_once_a_run(batch):
    execution = Execution({0: 10, 1: 20, 2: 30})
    checkpoint, batch_ms = checkpoints.of_this_batch(execution, batch, "op")
    assert (checkpoint.times_ms, batch_ms) == ({0: 10, 1: 20, 2: 30}, 30)
    execution.asked.clear()
    assert checkpoints.of_this_batch(execution, batch, "op") == (checkpoint, 30)
    assert execution.asked == [2]
    assert checkpoints.of_this_batch(execution, batch, "another")[0] == checkpoint
    assert len(execution.asked) > 2
    restarted = Execution({0: 10, 1: 20, 2: 30, 3: 40})
    assert checkpoints.of_this_batch(restarted, batch, "op")[0].times_ms[3] == 40


def test_without_the_batchs_own_time_nothing_is_known(batch):
    assert checkpoints.of_this_batch(Execution({0: 10, 1: 20}), batch, "op") is None
    assert checkpoints.of_this_batch(Execution({0: 10}), MicroBatch(), "op") is None
