"""Metrics for Prometheus, from storage alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_console.watching.exposition import OperatorTotals
from forebay_console.watching.summaries import VersionSummary
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.metrics import KEYED
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.versions.janitor import Janitor


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
    assert before["forebay_keyed_rows_in_total", ""] == 0
    assert before["forebay_keyed_commits_total", ""] == 0
    assert all(value == 0 for (name, _), value in before.items() if "phase" in name)
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
    assert wanted <= set(found)
    total = sum(sum(one.phase_ms.values()) for one in newest) / 1_000
    assert sum(found.values()) == pytest.approx(total)


def test_numbers_that_nobody_knows_are_absent(console):
    assert ("forebay_keyed_cache_hits_total", "") not in samples(console)


def test_openmetrics_is_spoken_to_those_who_ask_for_it(console):
    answer = console.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


PAGE = 20


class InPages(ForwardingStorage):
    """Lists a few names at a time, as S3 lists a thousand."""

    waits = True

    def list_page(self, after=""):
        found = super().list_page(after).objects
        return ObjectPage(found[:PAGE], is_last=len(found) <= PAGE)


class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        return []


def test_versions_that_a_listing_in_pages_misses_for_a_while_count_once(new_console, monkeypatch):
    """The janitor moves versions to the history, whose page is read at every other refresh."""
    monkeypatch.setattr("forebay_console.watching.fresh._REST", 0.0)
    shown = []
    add = OperatorTotals.add
    monkeypatch.setattr(
        OperatorTotals, "add", lambda self, found: (shown.append(len(found)), add(self, found))
    )
    root = InPages(MemoryStorage("memory://paged"))
    heap = plugins().backend("heap")
    job = KeyedJob(heap, root, uid="visits", key_type=str, parallelism=2)
    job.run(Count(), [("a",)])
    console = new_console(root, ttl_s=0)
    samples(console)
    for batch in range(1, 45):
        job.run(Count(), [("a",)])
        if batch % 7 == 0:  # at odd and at even refreshes
            janitor = Janitor(job.storage, run_key=job.run_key, retention=10, min_age=timedelta())
            janitor.sweep(job.batch_id)
        assert samples(console)["forebay_keyed_rows_in_total", ""] == batch
    assert any(newer < older for older, newer in pairwise(shown)), "no version was ever missing"


def made(version: int, run: str = "a", since: int = 0) -> VersionSummary:
    """A version of one row, committed ``since`` seconds later than its number says."""
    return VersionSummary(
        version=version,
        run_key=run,
        epoch=1,
        parallelism=1,
        committed=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=version + since),
        counts={"rows_in": 1},
        phase_ms={},
        slowest_ms=None,
        slowest=None,
    )


def test_after_a_query_went_back_only_what_it_makes_again_counts():
    totals = OperatorTotals()
    totals.skip(made(version) for version in range(2_000, 1_000, -1))
    again = [made(version, "b", 10_000) for version in range(1_505, 1_500, -1)]
    older = [made(version) for version in range(1_500, 505, -1)]
    totals.add([*again, *older])
    assert totals.counts["rows_in"] == 5
    totals.add(again[1:])
    totals.add([*again, *older])
    assert totals.counts["rows_in"] == 5


def test_what_was_counted_is_remembered_in_bounded_memory():
    totals = OperatorTotals()
    versions = [made(version) for version in range(20_000)]
    for end in range(500, 20_001, 500):
        totals.add(reversed(versions[max(0, end - 1_000) : end]))
    assert totals.counts["rows_in"] == 20_000
    assert len(totals._counted) < 10_000
    totals.add(reversed(versions[:1_000]))
    assert totals.counts["rows_in"] == 20_000


def test_what_versions_before_the_start_know_begins_at_zero():
    totals = OperatorTotals()
    totals.skip([attrs.evolve(made(1), phase_ms={"function": 3})])
    assert dict(totals.counts) == {"commits": 0, "rows_in": 0}
    assert dict(totals.phase_ms) == {"function": 0}


def test_the_counters_of_an_operator_in_its_first_batch_begin_at_zero():
    totals = OperatorTotals()
    totals.skip([])
    assert dict(totals.counts) == {"commits": 0}
    totals.add([made(1)])
    assert totals.counts["commits"] == 1
