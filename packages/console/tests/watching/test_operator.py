"""An operator with many objects: a look lists a part of them, and shows what is there."""

from __future__ import annotations

import pytest

from forebay_console.watching import WatchedOperator
from forebay_engine.execution.counted_storage import CountedStorage, RequestCounts
from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import stored_operators

pytestmark = pytest.mark.long

PAGE = 20


class InPages(ForwardingStorage):
    """Returns `PAGE` names for a request, as S3 returns 1,000."""

    def list_page(self, after=""):
        found = super().list_page(after).objects
        return ObjectPage(found[:PAGE], is_last=len(found) <= PAGE)


class Watched:
    """A job, and a console's look at it by a clock that the test sets."""

    def __init__(self, folder, job):
        self.job = job
        self.now_s = 0.0
        self.counts = RequestCounts()
        self._root = InPages(CountedStorage(open_storage(folder), self.counts))
        (stored,) = stored_operators(self._root)
        self._operator = WatchedOperator(self._root, stored, ttl_s=1.0, now=lambda: self.now_s)

    def look(self) -> tuple[list[int], int]:
        """Return the versions that a look shows, and its list requests."""
        before = self.counts.by_kind()["list"]
        found = [one.version for one in self._operator.look().timeline.versions]
        return found, self.counts.by_kind()["list"] - before


@pytest.fixture
def watched(tmp_path, new_job):
    job = new_job(tmp_path)
    job.run(6)
    found = Watched(tmp_path, job)
    assert found.look() == ([6, 5, 4, 3, 2, 1], 1), "a list of all, at first"
    found.now_s += 2.0
    found.look()  # which finds out how many names a page has
    return found


def test_a_look_lists_two_pages_and_shows_the_newest_version(watched):
    for version in (7, 8, 9):
        watched.job.run(1)
        watched.now_s += 2.0
        versions, requests = watched.look()
        assert versions == list(range(version, 0, -1))
        assert requests <= 2


def test_a_look_is_shared_for_its_time(watched):
    watched.job.run(1)
    assert watched.look() == ([6, 5, 4, 3, 2, 1], 0)


def test_after_a_pause_nothing_that_was_listed_counts(watched, monkeypatch):
    watched.now_s += 61.0
    read = []
    monkeypatch.setattr(InPages, "list_page", lambda _, after="": read.append(after))
    assert watched.look() == ([6, 5, 4, 3, 2, 1], 1)
    assert not read


def test_versions_beyond_the_first_page_are_not_missed(watched):
    watched.job.run(8)
    watched.now_s += 2.0
    versions, _ = watched.look()
    assert versions == list(range(14, 0, -1))
