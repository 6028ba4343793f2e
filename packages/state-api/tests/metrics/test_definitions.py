"""Names and keys of metrics."""

from __future__ import annotations

import re

import pytest

from forebay_state_api.metrics import KEYED, Metric, MetricKind, MetricUnit
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.definitions import AREAS
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.metrics.fields import keyed_figures

NAME = re.compile(rf"forebay_({'|'.join(AREAS)})(_[a-z]+)+")


@pytest.mark.parametrize("metric", KEYED, ids=lambda one: one.key)
def test_names_have_one_form(metric: Metric) -> None:
    assert NAME.fullmatch(metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    base = metric.name.removesuffix("_total")
    assert base.endswith(metric.unit.value)
    assert metric.meaning.endswith(".")


def test_no_two_metrics_share_a_name_or_a_key() -> None:
    keys = [key for metric in KEYED for key in metric.keys]
    assert len(set(keys)) == len(keys)
    assert len({metric.name for metric in KEYED}) == len(KEYED)


@pytest.mark.parametrize("counted", [EngineMetrics, CallMetrics])
def test_every_field_with_a_key_is_defined_once(counted: type[EngineMetrics | CallMetrics]) -> None:
    keys = list(keyed_figures(counted()))
    assert [metric.key for metric in KEYED if metric.key in keys] == keys


def test_a_field_of_which_the_largest_counts_is_a_gauge() -> None:
    found = {metric.key: metric for metric in KEYED}
    assert (found["in_flight_max"].kind, found["in_flight_max"].add) == (MetricKind.GAUGE, max)
    assert (found["rows_in"].kind, found["call_tries"].kind) == (
        MetricKind.COUNTER,
        MetricKind.COUNTER,
    )


def test_a_label_is_the_end_of_the_key_and_not_of_the_name() -> None:
    phase = Metric(
        area="keyed",
        what="phase",
        kind=MetricKind.COUNTER,
        unit=MetricUnit.SECONDS,
        meaning="Time.",
        labels=("phase",),
        values=("input", "open"),
    )
    assert phase.name == "forebay_keyed_phase_seconds_total"
    assert phase.keys == ("phase_seconds_input", "phase_seconds_open")
