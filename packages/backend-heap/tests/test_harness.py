"""Functions can be tested with forebay-testing and a backend, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

import pytest

from forebay_state_api import KeyedProcessFunction, StateFuture, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError, OutputSchemaError
from forebay_testing import FunctionHarness

COUNT = ValueStateDescriptor("count", int, default=0)


class Visit(NamedTuple):
    user: str
    at: datetime


class Visits(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield row.user, row.at, self.count.value()


AT = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))


def test_the_fixture(harness):
    run = harness(Visits(), "user")
    assert isinstance(run, FunctionHarness)
    ((user, at, count),) = run.process([Visit("ann", AT)])
    assert (user, at.isoformat(), count) == ("ann", "2024-05-01T10:00:00+00:00", 1)
    assert at.tzinfo is UTC
    assert run.state(COUNT, "ann") == 1


def test_a_future_that_was_not_awaited_fails_the_micro_batch():
    def forgets(row, ctx):
        return [(row.user, StateFuture())]

    with FunctionHarness(forgets, "user") as harness:
        with pytest.raises(OutputSchemaError, match=r"forgets .* a StateFuture"):
            harness.process([Visit("ann", AT)])
        assert harness.version == 0


def test_a_schema_needs_spark():
    with pytest.raises(ConfigurationError, match=r"schema='n long' .*forebay_spark_runtime\.te"):
        FunctionHarness(Visits(), "user", schema="n long")
