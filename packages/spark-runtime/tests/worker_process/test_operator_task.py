"""The task of an operator, after its commit."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_spark_runtime.driver.service_outages import OperatorRun
from forebay_spark_runtime.worker_process import operator_task
from forebay_spark_runtime.worker_process.operator_task import OperatorTask

LOGGER = "forebay_spark_runtime.worker_process.operator_task"


@pytest.fixture
def commit(monkeypatch):
    """Commits a subtask that reports these figures."""
    monkeypatch.setattr(operator_task, "catch_up_with", lambda _: None)

    def committed(**figures):
        operator = OperatorTask.__new__(OperatorTask)
        operator._versions, operator._subtask_metrics = None, SubtaskMetrics()
        task = SimpleNamespace(uid="visits", batch_id=7, subtask=3)
        report = SimpleNamespace(figures=figures)
        subtask = SimpleNamespace(task=task, commit=lambda: report, siblings=lambda: None)
        return operator.commit(subtask)

    return committed


def test_the_figures_of_a_subtask_are_one_line_of_the_workers_log(commit, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    commit(rows_in=1_000, late_rows=2, late_rows_dropped=0, phase_seconds_function=0.12345)
    (line,) = caplog.records
    assert (line.name, line.levelname) == (LOGGER, "INFO")
    assert line.getMessage() == (
        "operator visits, batch 7, subtask 3: late_rows 2, phase_seconds_function 0.123, "
        "rows_in 1,000"
    )


def test_where_nobody_reads_it_no_text_is_made(commit, monkeypatch):
    monkeypatch.setattr(operator_task, "text", lambda _: pytest.fail("a text was made"))
    monkeypatch.setattr(logging.getLogger(LOGGER), "level", logging.WARNING)
    logging.getLogger(LOGGER).manager._clear_cache()
    commit(rows_in=1)


@pytest.mark.parametrize(("reuse", "expected"), [("1", []), (None, ["janitor", "jobs"])])
def test_a_task_whose_process_ends_with_it_waits_for_its_threads(monkeypatch, reuse, expected):
    waited = []
    service = SimpleNamespace(detach=lambda: waited.append("jobs"), outage=lambda: None)
    monkeypatch.setattr(operator_task, "finish_pass", lambda: waited.append("janitor"))
    monkeypatch.setattr(OperatorTask, "_compaction", lambda self: service)
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    if reuse:
        monkeypatch.setenv("SPARK_REUSE_WORKER", reuse)
    operator = OperatorTask.__new__(OperatorTask)
    operator._versions = object()
    operator.finish()
    assert waited == expected


@pytest.mark.parametrize(("run_id", "expected"), [("run", "run"), (None, "of keyed")])
def test_a_task_reports_an_outage_after_its_compactions(monkeypatch, run_id, expected):
    """A process of a single task learns only at its end that no gateway answers."""
    reports, found = [], ["an outage"]
    service = SimpleNamespace(detach=lambda: found.append("one more"), outage=found.pop)
    monkeypatch.setattr(operator_task, "report_outage", lambda *given: reports.append(given))
    monkeypatch.setattr(OperatorTask, "_compaction", lambda self: service)
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    operator = OperatorTask.__new__(OperatorTask)
    operator._versions = object()
    operator._options = SimpleNamespace(outages=b"sent", settings={"compaction.service": "ray"})
    run = SimpleNamespace(run_id=run_id, keyed_uuid="of keyed")
    operator._task = SimpleNamespace(subtask=SimpleNamespace(uid="visits", query="q", run=run))
    operator.finish()
    who = OperatorRun(uid="visits", query="q", run=expected, service="ray")
    assert reports == [(b"sent", who, "one more")]


def test_a_task_without_stored_state_has_nothing_to_wait_for(monkeypatch):
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    operator = OperatorTask.__new__(OperatorTask)
    operator._versions = None
    operator.finish()
