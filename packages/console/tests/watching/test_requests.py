"""The console's requests to storage, as `docs/how-to/console.md` says."""

from __future__ import annotations

import pytest

from forebay_console.watching import StateDirectory
from forebay_engine.execution.counted_storage import CountedStorage, RequestCounts
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.opening import open_storage

pytestmark = pytest.mark.long

HEAP = "/operators/clicks/visits"


class InPages(ForwardingStorage):
    """Lists a few names at a time, as S3 lists a thousand."""

    waits = True

    def list_page(self, after=""):
        found = super().list_page(after).objects
        return ObjectPage(found[:10], is_last=len(found) <= 10)


@pytest.fixture
def asked(no_rest):
    """Returns the list and the get requests of a page, with each listing read again."""

    def requests(console, path: str) -> tuple[int, int]:
        before = console.counts.by_kind()
        console.page(path)
        after = console.counts.by_kind()
        return after["list"] - before["list"], after["get"] - before["get"]

    return requests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A state directory with two operators, shared because few tests write to it."""
    return tmp_path_factory.mktemp("requests")


@pytest.fixture(scope="module")
def job(folder, new_job):
    for uid in ("sessions", "visits"):
        job = new_job(folder, uid)
        job.run(3)
    return job


@pytest.fixture
def console(folder, job, new_console):
    return new_console(folder, ttl_s=0)


def test_a_page_of_an_operator_lists_the_root_the_query_and_the_operator(console, asked):
    assert [asked(console, f"{HEAP}/compaction") for _ in range(3)] == [(3, 0)] * 3


def test_a_timeline_reads_the_manifest_of_the_subtask_with_the_most_rows(console, job, asked):
    job.run(1)
    assert [asked(console, HEAP) for _ in range(3)] == [(3, 1), (3, 0), (3, 0)]


def test_the_sizes_of_states_are_read_once(console, asked):
    path = f"{HEAP}/states"
    asked(console, path)
    lists, gets = asked(console, f"{path}?sizes=1")
    assert (lists, gets > 3) == (3 + 3, True), "the manifests twice, and the data files"
    assert asked(console, f"{path}?sizes=1") == (3, 0)


def test_the_overview_and_metrics_list_every_operator(console, asked):
    for path in ("/", "/metrics"):
        assert asked(console, path) == (4, 0)


def test_manifests_of_a_new_version_are_read_once(console, job, asked):
    for page in ("groups", "states", "files"):
        job.run(1)
        assert asked(console, f"{HEAP}/{page}") == (3, 3), "a manifest for each subtask"
        assert asked(console, f"{HEAP}/{page}") == (3, 0)


def test_an_explanation_reads_the_manifest_of_the_slowest_subtask(console, asked):
    assert asked(console, f"{HEAP}/versions/3") == (3, 1)
    assert asked(console, f"{HEAP}/versions/3") == (3, 0)


def test_a_difference_reads_the_manifests_of_both_versions(console, asked):
    assert asked(console, f"{HEAP}/difference") == (3, 6)
    assert asked(console, f"{HEAP}/difference") == (3, 0)


def test_each_savepoint_is_read_once(console, asked):
    operator = console.directory.by_folder()["clicks/visits"]
    for name in ("one", "two"):
        create_savepoint(operator.storage, name, uid="visits")
    lists, gets = asked(console, f"{HEAP}/kept")
    assert lists == 3
    assert gets > 0
    assert asked(console, f"{HEAP}/kept") == (3, 0)


def test_a_large_folder_takes_two_list_requests(tmp_path, new_job, new_console, asked):
    new_job(tmp_path).run(6)
    console = new_console(InPages(open_storage(tmp_path)), ttl_s=0)
    for _ in range(2):  # the size of a page is known with the second
        asked(console, HEAP)
    assert [asked(console, HEAP) for _ in range(4)] == [(4, 0)] * 4


def test_operators_are_looked_for_less_often_than_they_are_listed(state_dir, new_console):
    counts = RequestCounts()
    storage = CountedStorage(open_storage(state_dir), counts)
    directory = StateDirectory(storage, resolve_settings({}), ttl_s=0)
    for _ in range(5):
        directory.operators()
    assert counts.by_kind()["list"] == 2
