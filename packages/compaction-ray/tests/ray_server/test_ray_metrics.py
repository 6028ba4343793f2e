"""A gateway's numbers among Ray's, whether Ray exports any or not."""

from __future__ import annotations

import pytest

ray = pytest.importorskip("ray", reason="the extra [server] brings it")

from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_compaction_ray.ray_server.metrics import RayMetrics


class Gauge:
    """Like Ray's gauge, but records its constructor's arguments and its values."""

    made: dict[str, Gauge]

    def __init__(self, name, description, tag_keys):
        assert name not in self.made, "Ray has one metric of a name"
        self.made[name] = self
        self.description, self.tag_keys = description, tag_keys
        self.values = {}

    def set(self, value, tags):
        assert set(tags) == set(self.tag_keys), "Ray refuses other tags"
        self.values[tuple(tags.values())] = value


@pytest.fixture
def gauges(monkeypatch):
    Gauge.made = {}
    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    return Gauge.made


@pytest.fixture
def metrics():
    made = Metrics()
    made.set("queue_depth", 3)
    made.add("jobs_finished_total", outcome="done")
    made.add("jobs_finished_total", 2, outcome="failed")
    return made


def test_all_numbers_are_shown_with_their_labels(gauges, metrics):
    sink = RayMetrics()
    sink.show(metrics)
    metrics.add("jobs_finished_total", outcome="done")
    metrics.set("queue_depth", 0)
    sink.show(metrics)
    assert {name: gauge.values for name, gauge in gauges.items()} == {
        "forebay_compaction_queue_depth": {(): 0},
        "forebay_compaction_jobs_finished_total": {("done",): 2, ("failed",): 2},
    }
    assert gauges["forebay_compaction_queue_depth"].description == "Waiting jobs."
    assert gauges["forebay_compaction_jobs_finished_total"].tag_keys == ("outcome",)


def test_where_nothing_exports_them_nothing_happens(metrics):
    """As with plain Ray, without ``ray[default]``: its gauges export nothing."""
    RayMetrics().show(metrics)
    assert metrics.value("queue_depth") == 3
