"""The tasks' reports to the driver: which are kept, and which are read."""

from __future__ import annotations

import logging

import pytest

from forebay_engine.calls.wait_metrics import WAIT, wait_figures
from forebay_spark_runtime.waiting import reports
from forebay_spark_runtime.waiting.reports import TaskReport, WaitMetrics, add_newest
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.histogram import Histogram


def report(query, batch_id, partition="0", rows=1):
    counts = CallMetrics(rows=rows).as_data()
    return TaskReport(
        name="ask", query=query, batch_id=batch_id, partition=partition, counts=counts
    )


def known(*told):
    tasks = {}
    for one in told:
        add_newest(tasks, one.as_tasks())
    return tasks


def test_the_newest_hundred_batches_of_each_query_are_kept():
    old = [report("old", batch_id) for batch_id in range(1000, 1150)]
    new = [report("new", batch_id) for batch_id in range(3)]
    kept = known(*old, *new, *[report("old", batch_id) for batch_id in range(1150, 1155)])
    assert [batch for query, batch in kept if query == "new"] == [0, 1, 2]
    assert [batch for query, batch in kept if query == "old"] == list(range(1055, 1155))


def test_a_late_report_of_a_batch_that_went_is_not_kept():
    kept = known(*[report("q", batch_id) for batch_id in range(100, 200)], report("q", 3))
    assert [batch for _, batch in kept] == list(range(100, 200))


def test_queries_that_were_not_heard_of_for_long_go():
    """Each action on a bounded DataFrame may be a query of its own."""
    long = [report("long", 0)]
    for number in range(500):
        long += [report(f"once {number}", 0), report("long", number + 1)]
    kept = known(*long)
    assert len({query for query, _ in kept}) == reports.KEPT_QUERIES
    assert ("long", 500) in kept
    assert ("once 499", 0) in kept


def test_a_task_that_is_run_again_replaces_what_it_said():
    kept = known(report("q", 0, rows=1), report("q", 0, "1", rows=5), report("q", 0, rows=2))
    rows = {task: counts["rows"] for task, counts in kept["q", 0].items()}
    assert rows == {"ask/0": 2, "ask/1": 5}


def test_reports_of_one_batch_come_together():
    tasks = report("q", 0).as_tasks()
    reports.add_all(tasks, report("q", 0, "1").as_tasks())
    assert list(tasks["q", 0]) == ["ask/0", "ask/1"]


@pytest.mark.long
def test_of_files_the_newest_hundred_batches_of_each_query_are_read(tmp_path):
    metrics = WaitMetrics(directory=tmp_path)
    sink = metrics.sink(None, "ask")
    for batch_id in range(120):
        sink.report(report("a/b", batch_id))
        sink.report(report("a/b", batch_id, "1"))
    for batch_id in range(3):
        sink.report(report("c", batch_id))
    for old in tmp_path.glob("**/000000000007/*"):
        old.write_text("not read")
    found = metrics.batches()
    assert [one.batch_id for one in found if one.query == "a/b"] == list(range(20, 120))
    assert {one.tasks for one in found if one.query == "a/b"} == {2}
    assert [one.batch_id for one in found if one.query == "c"] == [0, 1, 2]


def test_what_came_is_logged_a_line_for_each_task(caplog):
    with caplog.at_level(logging.INFO, reports.__name__):
        reports.log({**report("q", 7, "3", rows=5).as_tasks()})
    (line,) = caplog.messages
    assert line.startswith("operator ask of query q, batch 7, partition 3: rows 5")


def test_counts_have_the_names_of_metrics():
    counts = CallMetrics(rows=7, in_flight_max=3, work_s=1.5, latency=Histogram())
    counts.latency.add([0.002, 0.02, 20.0])
    figures = wait_figures(counts)
    assert figures.keys() == {key for metric in WAIT for key in metric.keys}
    assert (figures["rows"], figures["in_flight_max"], figures["work_seconds"]) == (7, 3, 1.5)
    assert figures["try_seconds_0.003"] == 1
    assert (figures["try_seconds_10"], figures["try_seconds_inf"]) == (2, 3)
    names = {metric.name: metric.kind.value for metric in WAIT}
    assert names["forebay_wait_retries_total"] == "counter"
    assert names["forebay_wait_in_flight_max"] == "gauge"
    assert names["forebay_wait_try_seconds"] == "histogram"


def test_the_figures_of_a_micro_batch_are_those_of_all_its_tasks():
    tasks = known(
        report("q", 0, rows=2), report("q", 0, "1", rows=5), report("q", 1), report("q", 0, rows=3)
    )
    found = reports.figures_by_name(tasks, "q", 0)
    assert {name: figures["rows"] for name, figures in found.items()} == {"ask": 8}
    assert reports.figures_by_name(tasks, "q", 9) == {}
