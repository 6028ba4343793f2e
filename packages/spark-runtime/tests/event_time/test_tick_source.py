"""The offsets of ticks."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="sources in Python are of pyspark 4.0")

from forebay_spark_runtime.event_time.tick_source import TickReader, TickSource


@pytest.fixture
def at(monkeypatch):
    """Return a function that sets the clock, in ms."""
    return lambda ms: monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)


def test_a_run_begins_with_a_tick_and_has_one_for_each_period(at):
    reader = TickSource({"periodMs": "10", "column": "c"}).streamReader(schema=None)
    found = []
    for ms in (1_003, 1_009, 1_010, 1_019, 1_019, 1_057, 1_059):
        at(ms)
        found.append(reader.latestOffset()["forebayTick"])
    assert found == [1_003, 1_003, 1_010, 1_010, 1_010, 1_050, 1_050]
    again = TickReader(10)
    assert again.latestOffset() == {"forebayTick": 1_059}, "each run begins with a tick"
    assert reader.initialOffset() == {"forebayTick": 0}
    assert list(reader.partitions({}, {})) == []


def test_a_tick_may_have_a_row():
    source = TickSource({"periodMs": "10", "column": "c", "hasRows": "true"})
    reader = source.streamReader(schema=None)
    (partition,) = reader.partitions({}, {})
    assert list(reader.read(partition)) == [(0,)]
    assert source.schema() == "c long"


def test_a_clock_that_goes_back_ticks_on(at):
    reader, found = TickReader(10), []
    for ms in (5_000, 1_001, 1_005, 1_010):
        at(ms)
        found.append(reader.latestOffset()["forebayTick"])
    assert found == [5_000, 1_000, 1_000, 1_010]
