"""Metrics for Prometheus, from storage alone."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_console.watching.exposition import OperatorTotals
from forebay_console.watching.summaries import VersionSummary
from forebay_engine.versions import OperatorStorage, OperatorVersions, RunIdentity
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.errors import StorageError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.metrics import KEYED
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob

pytestmark = pytest.mark.usefixtures("no_rest")


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


@pytest.mark.long
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


@pytest.mark.long
def test_all_versions_of_an_operator_that_appears_later_count_from_zero(
    tmp_path, new_console, new_job
):
    console = new_console(tmp_path, ttl_s=0)
    assert samples(console) == {}
    job = new_job(tmp_path)
    job.run(2)
    began = {name: value for name, value in samples(console).items() if "_total" in name[0]}
    assert {name for name, _ in began} >= {
        "forebay_keyed_rows_in_total",
        "forebay_keyed_commits_total",
        "forebay_keyed_phase_seconds_total",
    }
    assert set(began.values()) == {0}
    for batches in (2, 3):
        found = samples(console)
        assert found["forebay_keyed_rows_in_total", ""] == batches * 80
        assert found["forebay_keyed_commits_total", ""] == batches * 3
        assert sum(found[name] for name in began if name[1]) > 0
        job.run(1)


def begin(storage):
    """Begin the first version, as a subtask that has not committed yet."""
    operator = OperatorVersions(storage, uid="visits", max_parallelism=128, backend_name="heap")
    operator.begin(
        batch_id=0,
        subtask=0,
        parallelism=1,
        range=KeyGroupRange(0, 127),
        attempt_id=1,
        run=RunIdentity(keyed_uuid="killed", app_id=None, run_id=None),
        now_us=0,
    )


@pytest.mark.parametrize("scraped", [False, True])
def test_the_counters_of_an_operator_in_its_first_batch_begin_at_zero(
    scraped, tmp_path, new_console, new_job
):
    console = new_console(tmp_path, ttl_s=0)
    if scraped:
        assert samples(console) == {}
    begin(OperatorStorage(open_storage(tmp_path), "clicks/visits"))
    assert samples(console) == {("forebay_keyed_commits_total", ""): 0}
    new_job(tmp_path).run(1)
    assert samples(console)["forebay_keyed_rows_in_total", ""] == 0
    found = samples(console)
    assert found["forebay_keyed_rows_in_total", ""] == 80
    assert found["forebay_keyed_commits_total", ""] == 3


class Damaged(ForwardingStorage):
    """Fails every request below some folders, at the same line."""

    def __init__(self, inner, *folders, error=RuntimeError):
        super().__init__(inner)
        self.folders, self._error = {*folders}, error  # shared with its children

    def around(self, operation, name, request):
        if name.startswith((*self.folders,)):
            raise self._error("nobody can read it")
        return request()


class Unlistable(ForwardingStorage):
    """Cannot list the operators of the queries in ``denied``: of one, at first."""

    def __init__(self, inner):
        super().__init__(inner)
        self.denied = {"clicks"}

    def list_folders(self, prefix=""):
        if prefix in self.denied:
            raise StorageError("nobody can list it")
        return super().list_folders(prefix)


def totals(console, uid, name="forebay_keyed_rows_in_total"):
    """Return the counter of an operator, or ``None`` if it has none."""
    answer = console.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    found = [one for family in families for one in family.samples if one.labels["uid"] == uid]
    return next((one.value for one in found if one.name == name), None)


@pytest.fixture
def three(tmp_path, new_job):
    """Three jobs on one state directory."""
    found = {uid: new_job(tmp_path, uid) for uid in ("a", "b", "c")}
    for job in found.values():
        job.run(2)
    return found


@pytest.mark.long
@pytest.mark.parametrize("error", [RuntimeError, StorageError])
def test_an_operator_that_cannot_be_read_keeps_its_numbers(
    error, tmp_path, three, new_console, caplog
):
    storage = Damaged(open_storage(tmp_path), error=error)
    console = new_console(storage, ttl_s=0)
    assert [totals(console, uid) for uid in "abc"] == [0, 0, 0]
    three["b"].run(1)
    assert totals(console, "b") == 80
    storage.folders.add("clicks/b")
    for job in three.values():
        job.run(1)
    assert [totals(console, uid) for uid in "abc"] == [80, 80, 80]
    assert totals(console, "b", "forebay_keyed_state_bytes") > 0
    assert [one.args for one in caplog.records] == [("clicks/b", error.__name__)]
    storage.folders.clear()
    assert [totals(console, uid) for uid in "abc"] == [80, 160, 80]


@pytest.mark.long
def test_what_was_there_at_the_first_scrape_counts_from_where_it_can_be_read(
    tmp_path, three, new_console
):
    storage = Damaged(open_storage(tmp_path), "clicks/b")
    console = new_console(storage, ttl_s=0)
    assert [totals(console, uid) for uid in "abc"] == [0, None, 0]
    for job in three.values():
        job.run(1)
    assert [totals(console, uid) for uid in "abc"] == [80, None, 80]
    storage.folders.clear()
    assert totals(console, "b") == 0
    three["b"].run(1)
    assert [totals(console, uid) for uid in "abc"] == [80, 80, 80]


@pytest.mark.long
def test_operators_that_the_first_scrape_could_not_list_count_from_where_they_are_found(
    tmp_path, job, new_job, new_console, caplog
):
    new_job(tmp_path, "other").run(1)
    shutil.move(tmp_path / "clicks" / "other", tmp_path / "carts" / "other")
    storage = Unlistable(open_storage(tmp_path))
    console = new_console(storage, ttl_s=0)
    assert [totals(console, uid) for uid in ("visits", "other")] == [None, 0]
    assert [one.args for one in caplog.records] == [("clicks", "StorageError")]
    storage.denied.clear()
    assert totals(console, "visits") == 0
    job.run(1)
    assert totals(console, "visits") == 80
    storage.denied.add("clicks")
    job.run(1)
    assert totals(console, "visits") == 160, "what is known is read on"


@pytest.mark.long
def test_each_operator_that_cannot_be_read_is_named_in_the_log_once(
    tmp_path, three, new_console, caplog
):
    damaged = Damaged(open_storage(tmp_path), "clicks/a", "clicks/c")
    console = new_console(damaged, ttl_s=0)
    for path in ("/metrics", "/", "/metrics", "/", "/operators/clicks/a"):
        console.get(path)
    assert [one.args[0] for one in caplog.records] == ["clicks/a", "clicks/c"]


@pytest.mark.long
def test_phases_are_seconds(console, job):
    assert console.get("/metrics").status_code == 200
    job.run(3)
    samples(console)  # phases that took no time before begin at 0
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


@pytest.mark.long
def test_versions_that_a_listing_in_pages_misses_for_a_while_count_once(new_console, monkeypatch):
    """The janitor moves versions to the history, whose page is read at every other refresh."""
    shown = []
    add = OperatorTotals.add
    monkeypatch.setattr(
        OperatorTotals, "add", lambda self, found: (shown.append(len(found)), add(self, found))
    )
    root = InPages(MemoryStorage("memory://paged"))
    heap = plugins().backend("heap")
    options = {"held-bytes": 0}  # objects fill the pages
    job = KeyedJob(heap, root, uid="visits", key_type=str, parallelism=2, options=options)
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


@pytest.mark.long
def test_what_was_counted_is_remembered_in_bounded_memory():
    totals = OperatorTotals()
    versions = [made(version) for version in range(20_000)]
    for end in range(500, 20_001, 500):
        totals.add(reversed(versions[max(0, end - 1_000) : end]))
    assert totals.counts["rows_in"] == 20_000
    assert len(totals._counted) < 10_000
    totals.add(reversed(versions[:1_000]))
    assert totals.counts["rows_in"] == 20_000


def test_a_counter_that_becomes_known_later_begins_at_zero():
    totals = OperatorTotals()
    versions = [made(1)]
    totals.skip(versions)
    for waits, wanted in ((0, None), (5, 0), (7, 12), (0, 12)):
        times = {"call_wait": waits} if waits else {}
        versions.insert(0, attrs.evolve(made(len(versions) + 1), phase_ms=times))
        totals.add(versions)
        assert totals.phase_ms.get("call_wait") == wanted
    assert dict(totals.counts) == {"rows_in": 4, "commits": 4}
