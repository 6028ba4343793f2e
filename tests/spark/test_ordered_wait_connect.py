"""Ordered waits under Spark Connect: one process tree of its own, in which the scenarios run."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        pyspark.__version__.startswith("3."), reason="the server comes with pyspark from 4.0"
    ),
]

JOB = Path(__file__).parents[1] / "jobs" / "waiting_connected.py"


@pytest.fixture(scope="module")
def found(run_connected):
    return run_connected(JOB)


def test_on_a_bounded_dataframe_in_order(found):
    assert found["bounded"] == [[n, n * 2] for n in range(20)]


def test_on_a_stream_with_metrics_in_files(found):
    rows, counted = found["stream"]
    assert rows == [[n, n * 2] for n in range(15)]
    assert counted == [[0, 5], [1, 5], [2, 5]]


def test_in_foreach_batch_with_names_for_the_keys(found):
    wanted = [[n, f"nightly/{n // 5}/key/0/{n % 5}"] for n in range(15)]
    assert found["foreach_batch"] == wanted


def test_metrics_need_a_directory(found):
    assert "ConfigurationError" in found["metrics_without_a_directory"]
    assert "WaitMetrics(directory=...)" in found["metrics_without_a_directory"]
