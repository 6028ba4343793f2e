"""Metrics for Prometheus, from storage alone."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_state_api.metrics import KEYED


def samples(console) -> dict[tuple[str, str], float]:
    """Name and phase → number, of the operator ``visits``."""
    answer = console.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, sample.labels.get("phase", "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels["uid"] == "visits"
    }


@pytest.fixture
def job(tmp_path, new_job):
    job = new_job(tmp_path)
    job.run(2)
    return job


@pytest.fixture
def console(tmp_path, job, new_console):
    return new_console(tmp_path, ttl_s=0)


def test_names_are_those_of_the_reference(console):
    known = {metric.name for metric in KEYED}
    found = {name for name, _ in samples(console)}
    assert "forebay_keyed_state_bytes" in found
    assert found <= known


def test_counters_begin_at_zero_and_count_each_version_once(console, job):
    before = samples(console)
    assert before.get(("forebay_keyed_rows_in_total", ""), 0) == 0
    assert before["forebay_keyed_state_bytes", ""] > 0
    job.run(2)
    for _ in range(2):
        found = samples(console)
        assert found["forebay_keyed_rows_in_total", ""] == 2 * 80
        assert found["forebay_keyed_commits_total", ""] == 2 * 3
    job.run(1)
    assert samples(console)["forebay_keyed_rows_in_total", ""] == 3 * 80


def test_all_versions_of_an_operator_that_appears_later_count(tmp_path, new_console, new_job):
    console = new_console(tmp_path, ttl_s=0)
    assert console.get("/metrics").status_code == 200
    new_job(tmp_path).run(2)
    assert samples(console)["forebay_keyed_rows_in_total", ""] == 2 * 80


def test_phases_are_seconds(console, job):
    assert console.get("/metrics").status_code == 200
    job.run(3)
    newest = console.directory.operators()[0].look().recent(3)
    wanted = {phase for one in newest for phase in one.phase_ms}
    found = {p: v for (name, p), v in samples(console).items() if "phase" in name}
    assert set(found) == wanted
    total = sum(sum(one.phase_ms.values()) for one in newest) / 1_000
    assert sum(found.values()) == pytest.approx(total)


def test_numbers_that_nobody_knows_are_absent(console):
    assert ("forebay_keyed_cache_hits_total", "") not in samples(console)


def test_openmetrics_is_spoken_to_those_who_ask_for_it(console):
    answer = console.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
