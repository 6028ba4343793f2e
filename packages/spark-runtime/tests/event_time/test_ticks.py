"""Periods of ticks, and the refusals where there are none."""

from __future__ import annotations

from datetime import timedelta

import pyspark
import pytest

from forebay_spark_runtime.event_time.ticks import checked_ticks
from forebay_state_api.errors import ConfigurationError


class Stream:
    isStreaming = True


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


def test_a_period_that_no_clock_has_is_none():
    with pytest.raises(ConfigurationError, match="'10 seconds' or timedelta"):
        checked_ticks(Stream(), f"{'9' * 40} days", "u")


def test_pipelines_have_no_ticks():
    """Spark's registry is active while the modules of a pipeline are read."""
    name = "pyspark.pipelines.graph_element_registry"
    registry = pytest.importorskip(name, reason="pipelines come with Spark 4.1")
    with (
        registry.graph_element_registration_context(object()),
        pytest.raises(ConfigurationError, match="ticks= does not work in a declarative pipeline"),
    ):
        checked_ticks(Stream(), "10 seconds", "u")
    assert checked_ticks(Stream(), "10 seconds", "u") == 10_000
