"""Periods of ticks, and the refusals where there are none."""

from __future__ import annotations

from datetime import timedelta

import pyspark
import pytest

from forebay_spark_runtime.event_time.ticks import checked_ticks
from forebay_state_api.errors import ConfigurationError


class Session:
    """A session of classic Spark, by the name of its module."""


class Connect:
    """A session of Spark Connect, by the name of its module."""


Connect.__module__ = "pyspark.sql.connect.session"


class Stream:
    isStreaming = True

    def __init__(self, session=Session):
        self.sparkSession = session()


@pytest.mark.parametrize(
    ("ticks", "period_ms"),
    [
        ("10 seconds", 10_000),
        (" 1 Minute ", 60_000),
        ("250milliseconds", 250),
        ("2 days", 172_800_000),
        (timedelta(hours=1), 3_600_000),
        (None, None),
    ],
)
def test_periods(monkeypatch, ticks, period_ms):
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    assert checked_ticks(Stream(), ticks, "u") == period_ms


def test_an_older_spark_has_no_ticks(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(
        ConfigurationError, match=r"needs pyspark 4\.0 or newer, and this is 3\.5\.9"
    ):
        checked_ticks(Stream(), "10 seconds", "u")


def test_spark_connect_has_no_ticks():
    with pytest.raises(ConfigurationError, match="needs classic Spark: under Spark Connect only"):
        checked_ticks(Stream(Connect), "10 seconds", "u")


def test_a_period_that_no_clock_has_is_none():
    with pytest.raises(ConfigurationError, match="'10 seconds' or timedelta"):
        checked_ticks(Stream(), f"{'9' * 40} days", "u")
