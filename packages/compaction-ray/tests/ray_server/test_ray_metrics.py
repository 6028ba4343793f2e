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
    made.set("jobs_queued", 3)
    made.add("jobs_finished", outcome="done")
    made.add("jobs_finished", 2, outcome="failed")
    made.observe("run_seconds", 0.02)
    return made


def test_all_numbers_are_shown_with_their_labels(gauges, metrics):
    sink = RayMetrics()
    sink.show(metrics)
    metrics.add("jobs_finished", outcome="done")
    metrics.set("jobs_queued", 0)
    sink.show(metrics)
    finished = gauges["forebay_compaction_jobs_finished_total"]
    assert finished.values == {("done",): 2, ("failed",): 2}
    assert finished.tag_keys == ("outcome",)
    queued = gauges["forebay_compaction_jobs_queued"]
    assert (queued.values, queued.description) == ({(): 0}, "Waiting jobs.")
    run = gauges["forebay_compaction_run_seconds_bucket"].values
    assert (run["0.01",], run["0.03",], run["+Inf",]) == (0, 1, 1)
    assert gauges["forebay_compaction_run_seconds_sum"].values == {(): 0.02}


def test_where_nothing_exports_them_nothing_happens(metrics):
    """As with plain Ray, without ``ray[default]``: its gauges export nothing."""
    RayMetrics().show(metrics)
