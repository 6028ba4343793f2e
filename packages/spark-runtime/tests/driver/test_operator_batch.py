"""Figures of operators in progress events of all forms, and in Spark's metrics system."""

from __future__ import annotations

import logging
import uuid
from unittest.mock import MagicMock, PropertyMock

import pytest

from forebay_spark_runtime.driver.operator_batch import OperatorBatch, operators_of
from forebay_spark_runtime.driver.operator_names import figures_name, rows_name
from forebay_spark_runtime.driver.spark_metrics import MOST_OPERATORS, SparkMetrics
from forebay_state_api.metrics import Phase

MADE = str(uuid.uuid4())
EVENT = {
    "id": "the-id",
    "runId": "the-run",
    "name": None,
    "batchId": 3,
    "observedMetrics": {
        figures_name("b:1"): {"figures": {"rows_in": 2.0, "keys": None, "phase_seconds_open": 0.5}},
        figures_name("a"): {"figures": {"commits": 4.0}},
        rows_name("b", MADE): {"rows_in": 7},
        "mine": {"figures": {"rows_in": 9.0}},
    },
}


def batch(uid="a", **figures):
    return OperatorBatch(uid=uid, query="q", query_id="q", run_id="r", batch_id=0, figures=figures)


def test_an_event_has_one_entry_for_each_operator():
    first, second = operators_of(EVENT)
    assert (first.uid, second.uid) == ("a", "b:1")
    assert (first.query, first.query_id, first.run_id, first.batch_id) == (
        *("the-id", "the-id", "the-run", 3),
    )
    assert first.subtasks == 4
    assert second.figures == {"rows_in": 2.0, "phase_seconds_open": 0.5}, "keys are not known"
    assert second.phase_seconds == {Phase.OPEN: 0.5}


def test_as_text_it_has_the_numbers_that_are_not_zero():
    figures = {"commits": 2.0, "rows_in": 12_345.0, "failed_records": 0.0}
    one = batch("a", **figures, phase_seconds_open=0.5, phase_seconds_rest=0.0004)
    assert str(one) == (
        "operator a of query q, batch 0: commits 2, phase_seconds_open 0.5, rows_in 12,345"
    )


def test_spark_connect_drops_the_names_of_fields():
    values = {"a": [{"rows_in": 2.0}], "b": []}
    observed = {figures_name(uid): {"values": row} for uid, row in values.items()}
    (one,) = operators_of({**EVENT, "observedMetrics": observed})
    assert (one.uid, one.figures) == ("a", {"rows_in": 2.0})


def test_an_event_without_figures():
    assert operators_of(None) == []
    assert operators_of({**EVENT, "observedMetrics": {}}) == []
    assert operators_of({key: EVENT[key] for key in ("id", "runId", "name", "batchId")}) == []


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.002), (0.25, 0.001), (1.0, 10.0)])
def test_quantiles_of_read_times(share, seconds):
    found = {"state_read_seconds_0.001": 2, "state_read_seconds_0.003": 6}
    rest = dict.fromkeys(("0.01", "0.03", "0.1", "0.3", "1", "3", "10"), 6)
    found |= {f"state_read_seconds_{bound}": times for bound, times in rest.items()}
    one = batch(**found, state_read_seconds_inf=8)
    assert one.state_read_s(share) == pytest.approx(seconds)
    assert batch().state_read_s(0.5) is None


class Accumulators(SparkMetrics):
    """Takes the place of Spark."""

    def __init__(self):
        super().__init__(None)
        self.values = {}

    def _register(self, names):
        metrics = self

        class One:
            def __init__(self, name):
                self.name = name

            def add(self, number):
                metrics.values[self.name] = metrics.values.get(self.name, 0.0) + number

        self._accumulators |= {name: One(name) for name in names}


def test_operators_whose_names_differ_share_no_series():
    shown = Accumulators()
    uids = ("a-b", "a.b", "a_b", "a__b", "注文", "顧客", "ü")
    for uid in uids:
        shown.show(batch(uid, rows_in=1))
    assert list(shown.values.values()) == [1] * len(uids)
    assert "forebay_keyed_rows_in_total..query..q..uid..a_b" in shown.values, "nothing was lost"


def test_counters_grow_gauges_are_set_and_labels_are_in_the_name():
    shown = Accumulators()
    for keys in (5, 3):
        shown.show(batch("a.b-c", rows_in=2, keys=keys, phase_seconds_open=0.5, unheard_of=1))
    ending = "..query..q..uid..a_b_c_ab8bb2"
    assert shown.values == {
        f"forebay_keyed_rows_in_total{ending}": 4,
        f"forebay_keyed_keys{ending}": 3,
        f"forebay_keyed_phase_seconds_total{ending}..phase..open": 1.0,
    }


def test_metrics_are_registered_with_few_calls_of_the_jvm():
    context = MagicMock()
    type(context)._jvm = jvm = PropertyMock()
    shown = SparkMetrics(context)
    shown.show(batch("a", rows_in=2, keys=3))
    shown.show(batch("b", rows_in=2, keys=3))
    shown.show(batch("b", rows_in=2, keys=3))
    assert len(shown._accumulators) == 4
    jvm.assert_called_once()
    _, source = shown._empty_and_source
    assert source.register.call_count == 2, "all metrics of an operator at once"


def test_a_failure_is_logged_once(caplog):
    shown = SparkMetrics(None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            shown.show(batch(rows_in=1))
    assert len(caplog.records) == 1


def test_operators_without_end_are_not_shown(caplog):
    shown = Accumulators()
    for number in range(MOST_OPERATORS + 5):
        shown.show(batch(f"tenant {number}", rows_in=1))
    assert len(shown.values) == MOST_OPERATORS
    assert len(caplog.records) == 1
