"""The metrics of clients: each event has one, and a process shows no other."""

from __future__ import annotations

import re

import pytest

from forebay_compaction_ray.events import EVENTS, REPORTED, counted_by, key_of
from forebay_compaction_ray.gateway.metrics import GATEWAY

from .toys import dead_address


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_counted_by_a_metric_that_gateways_serve(event):
    metric, value = counted_by(event)
    assert metric in GATEWAY
    assert value in metric.values
    assert key_of(event) in metric.keys


@pytest.mark.parametrize("metric", REPORTED, ids=lambda one: one.key)
def test_names_have_one_form(metric):
    assert re.fullmatch("forebay_compaction_client(_[a-z]+)+", metric.name)


def test_a_process_shows_the_metrics_of_clients_alone(client_of):
    client = client_of(dead_address())
    for event in EVENTS:
        client.counters.add(event)
    assert client.metrics().keys() == {key for metric in REPORTED for key in metric.keys}
