"""The query listener, after a micro-batch."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.operator_names import figures_name
from forebay_spark_runtime.driver.query_listener import _Listener

LOGGER = "forebay_spark_runtime.driver.query_listener"
EVENT = {
    "id": "the-id",
    "runId": "the-run",
    "name": "clicks",
    "batchId": 3,
    "observedMetrics": {
        figures_name("b"): {"figures": {"rows_in": 2.0, "keys": None, "phase_seconds_open": 0.25}},
        figures_name("a"): {"figures": {"commits": 4.0, "late_rows": 0.0}},
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


def terminated(text):
    """Pass the event of a query that ended, with Spark's text for its exception, or without."""
    exception = SimpleNamespace(isDefined=lambda: text is not None, get=lambda: text)
    listener = _Listener(None, None, None)
    listener.onQueryTerminated(SimpleNamespace(id=lambda: "the-id", exception=lambda: exception))


def test_what_stopped_a_query_is_logged_once_without_sparks_lines(caplog):
    terminated(
        "org.apache.spark.api.python.PythonException: forebay_state_api.errors.FunctionError: F "
        "(operator 'u', batch 1, partition 0) raised KeyError: 1\n  File x\n SQLSTATE: 1\n\tat y(Z)"
    )
    (logged,) = caplog.records
    assert (logged.name, logged.levelname) == (LOGGER, "ERROR")
    assert logged.getMessage() == (
        "query the-id failed: FunctionError: F (operator 'u', batch 1, partition 0) raised "
        "KeyError: 1\n  File x"
    )


@pytest.mark.parametrize("text", [None, "[DIVIDE_BY_ZERO] Division by zero"])
def test_the_end_of_a_query_that_forebay_did_not_stop_is_not_logged(text, caplog):
    terminated(text)
    assert not caplog.records
