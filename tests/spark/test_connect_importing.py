"""State that is taken over or replaced under Spark Connect, by clients of one server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        pyspark.__version__ < "4.1", reason="Python's transformWithState with rows is in Spark 4.1"
    ),
]

JOB = Path(__file__).parents[1] / "jobs" / "importing_connected.py"
ROWS = [["ann", 1], ["ann", 11], ["ann", 111], ["bob", 2], ["eve", 1]]


@pytest.fixture
def result_of(connect_server, tmp_path):
    """Return a function that runs a scenario in a client of its own, and returns its result."""

    def run(scenario):
        done = subprocess.run(
            [sys.executable, str(JOB), str(tmp_path), scenario],
            env={**os.environ, **connect_server.environment},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        said = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
        assert done.returncode == 0, "\n".join(said[-100:])
        return json.loads(done.stdout)

    return run


def test_a_query_is_taken_over(result_of):
    dry, done, rows, whole = result_of("taken_over")
    assert dry == [None, {"n": 2}]
    assert done == [2, {"n": 2}]
    assert rows == whole == ROWS


def test_the_program_takes_a_query_over(result_of):
    done, rows, whole = result_of("program")
    assert done == [2, {"n": 2}]
    assert rows == whole == ROWS


def test_state_is_replaced_without_spark_and_on_it(result_of):
    versions, after_first, after_second, refused = result_of("replaced")
    assert versions == [[1, {"n": 2}], [2, {"n": 2}]]
    assert after_first == [["ann", 1], ["ann", 41], ["bob", 2], ["bob", 41]]
    assert after_second == [
        ["ann", 1],
        ["ann", 1],
        ["ann", 41],
        ["bob", 2],
        ["bob", 8],
        ["bob", 41],
    ]
    assert "key 'ann'" in refused
