"""The query listener, when a micro-batch has ended."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.query_listener import _Listener

LOGGER = "forebay_spark_runtime.driver.query_listener"
EVENT = {
    "id": "the-id",
    "runId": "the-run",
    "name": "clicks",
    "batchId": 3,
    "observedMetrics": {
        "forebay:b": {"figures": {"rows_in": 2.0, "keys": None, "phase_seconds_open": 0.25}},
        "forebay:a": {"figures": {"commits": 4.0, "late_rows": 0.0}},
    },
}


class Shown(list):
    """Takes the place of Spark's metrics system."""

    show = list.append


@pytest.fixture
def progressed(monkeypatch):
    """Passes an event to a listener; returns what Spark's metrics system gets."""
    finals = SimpleNamespace(committed=lambda progress, application: None)
    monkeypatch.setattr(query_listener, "final_versions", finals)

    def pass_on():
        shown = Shown()
        listener = _Listener(None, shown, SimpleNamespace(applicationId="app"))
        progress = SimpleNamespace(json=lambda: json.dumps(EVENT))
        listener.onQueryProgress(SimpleNamespace(progress=lambda: progress))
        return shown

    return pass_on


def test_each_operators_figures_are_one_line_of_the_log(progressed, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    progressed()
    assert [(one.name, one.levelname, one.getMessage()) for one in caplog.records] == [
        (LOGGER, "INFO", "operator a of query clicks, batch 3: commits 4"),
        (LOGGER, "INFO", "operator b of query clicks, batch 3: phase_seconds_open 0.25, rows_in 2"),
    ]
