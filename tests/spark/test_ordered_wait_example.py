"""The example that calls an HTTP service for the flights of a stream."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from forebay_spark_runtime import WaitMetrics

pytest.importorskip("aiohttp", reason="the example asks by aiohttp")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_enriched.py"


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("forebay_example_flights_enriched", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[spec.name]


def test_flights_are_named_though_the_service_is_busy_now_and_then(spark, tmp_path, example):
    metrics = WaitMetrics()
    with example.AirlineService() as service:
        rows = example.run(spark, tmp_path, service.url, metrics).collect()
    names = example.airlines()
    assert len(rows) == 27_004
    assert [row for row in rows if row.airline != names[row.carrier]] == []
    (report,) = metrics.batches()
    assert report.counts.rows == 27_004
    assert report.counts.laters == report.counts.retries == 27
    assert service.requests == 27_031
