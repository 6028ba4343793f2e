"""Outages of a compaction service, as tasks report them and as they are logged."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
import pytest

from forebay_spark_runtime.driver import service_outages
from forebay_spark_runtime.driver.service_outages import OperatorRun, OutageLog, report_outage
from forebay_state_api.contract.compaction_service import ServiceOutage

WHO = OperatorRun(uid="visits", query="q", run="r", service="ray")
OUTAGE = ServiceOutage(
    since=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), why="no answer of 127.0.0.1:1. Start it"
)
LINE = (
    "operator 'visits' of query q: the compaction service 'ray' has done nothing since 2026-01-02 "
    "03:04:05 UTC. The last compaction: no answer of 127.0.0.1:1. Start it. This is logged once"
)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return OutageLog(clock)


def test_an_outage_is_logged_once_for_each_operator_and_run(log, caplog):
    others = [attrs.evolve(WHO, uid="b"), attrs.evolve(WHO, run="s"), attrs.evolve(WHO, query="p")]
    for who in (WHO, WHO, *others, WHO):
        log.report({who: OUTAGE})
    assert [r.levelname for r in caplog.records] == ["WARNING"] * 4
    assert caplog.messages[0] == LINE


def test_an_outage_that_comes_back_after_an_hour_is_another_one(log, clock, caplog):
    for clock.now_s in (0.0, 3_000.0, 6_000.0, 9_599.0):
        log.report({WHO: OUTAGE})
    assert caplog.messages == [LINE]
    clock.now_s += 3_600.0
    log.report({WHO: OUTAGE})
    assert caplog.messages == [LINE] * 2


def test_a_driver_of_many_queries_forgets_those_of_which_nobody_reports(monkeypatch, log, caplog):
    monkeypatch.setattr(service_outages, "_REMEMBERED", 10)
    for number in range(30):
        log.report({WHO: OUTAGE, attrs.evolve(WHO, run=str(number)): OUTAGE})
    assert len(log._reported_s) == 10
    assert len(caplog.messages) == 31
    log.report({attrs.evolve(WHO, run="29"): OUTAGE, WHO: OUTAGE})
    assert len(caplog.messages) == 31


def test_under_spark_connect_the_process_logs_its_own(monkeypatch, log, caplog):
    monkeypatch.setattr(service_outages, "_log_of_process", log)
    for _ in range(2):
        report_outage(b"", WHO, OUTAGE)
    assert caplog.messages == [LINE]
