"""A folder that is listed in pages shows what matters after few requests, and all of it in time."""

import random

import pytest

from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import EpochEntry
from forebay_engine.versions.format.figures import Figures
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_processor.observing import PagedListing, list_operator
from forebay_state_processor.observing.known_names import KnownNames
from forebay_testing.storage import CountingStorage

PAGE = 10


class InPages(CountingStorage):
    """Returns `PAGE` names for one request, as S3 returns 1,000."""

    def list_page(self, after=""):
        found = super().list_page(after).objects
        return ObjectPage(found[:PAGE], is_last=len(found) <= PAGE)


@pytest.fixture
def in_pages(storage):
    return InPages(storage)


def numbers(pages):
    return [one.version for one in pages.listing().timeline.versions]


def names(listing):
    return sorted(info.name for found in listing.objects.values() for info in found)


def enter(storage, job, number, since, run):
    """Mint a run's epoch."""
    made = job.begin(since + 1, 0, run=run, epoch=number)
    entry = EpochEntry(number, since, made.run_key, "0" * 16)
    storage.put(entry.name, b"")


def whole(in_pages):
    """Return a listing that has read all pages, one after the other."""
    pages = PagedListing(in_pages)
    while not pages.is_whole:
        assert pages.refresh(3) <= 3
    return pages


def test_a_folder_of_one_page_is_read_whole_each_time(job, storage, in_pages):
    job.versions(1, 1)
    pages = PagedListing(in_pages)
    for version in (2, 3):
        in_pages.reset()
        assert pages.refresh() == 1
        assert pages.is_whole
        assert in_pages.counts == {"list_page": 1}
        assert names(pages.listing()) == names(list_operator(storage))
        storage.delete([info.name for info in storage.list("versions")])
        job.version(version)


@pytest.mark.long
def test_all_pages_are_read_at_first_and_two_at_each_refresh(job, storage, in_pages):
    job.versions(1, 20)
    pages = PagedListing(in_pages)
    objects = len(storage.list())
    while not pages.is_whole:
        pages.refresh(3)
    assert in_pages.counts == {"list_page": -(-objects // PAGE)}
    assert names(pages.listing()) == names(list_operator(storage))
    for version in range(21, 41):
        job.version(version)
        in_pages.reset()
        assert pages.refresh() <= 2
        assert in_pages.counts.total() <= 2
        assert pages.is_whole
        assert numbers(pages)[0] == version, "a new version shows at once"


def test_what_is_deleted_or_saved_shows_after_a_round_of_all_pages(job, storage, in_pages):
    job.versions(1, 20)
    pages = whole(in_pages)
    create_savepoint(storage, "kept", uid="op", version=19)
    storage.delete([info.name for info in storage.list("data")][::2])
    for version in (3, 11):
        storage.delete([info.name for info in storage.list(layout.version_folder(version))])
    for _ in range(2):
        pages.refresh()
    assert pages.listing().savepoints == ["kept"], "small folders have every other refresh"
    for _ in range(2 * len(storage.list()) // PAGE + 4):
        pages.refresh()
    assert names(pages.listing()) == names(list_operator(storage))


@pytest.mark.long
@pytest.mark.parametrize(
    "turns",
    [
        *(1, 7, 13, 19),
        *(pytest.param(turns, marks=pytest.mark.slow) for turns in (3, 5, 9, 11, 15, 17)),
    ],
)
def test_a_run_that_went_back_shows_when_all_pages_were_read(job, storage, in_pages, turns):
    enter(storage, job, 1, 0, "a")
    job.versions(1, 20)
    pages = whole(in_pages)
    for _ in range(turns):
        pages.refresh()
    before = pages.listing().timeline
    enter(storage, job, 2, 8, "b")
    for version in (13, 14):
        job.versions(9 if version == 13 else version, version, run="b", epoch=2)
        wanted = list_operator(storage).timeline
        found = before
        for _ in range(len(storage.list()) // PAGE + 3):
            assert pages.refresh() <= 2
            found = pages.listing().timeline
            assert found in (before, wanted), "nothing between is shown"
        assert found == wanted
        assert (found.newest.version, found.newest.epoch) == (version, 2)
        assert len(found.abandoned) == 20 - 8
        before = wanted


def test_what_a_run_that_went_back_begins_shows_when_all_pages_were_read(job, storage, in_pages):
    enter(storage, job, 1, 0, "a")
    job.versions(1, 20)
    pages = whole(in_pages)
    enter(storage, job, 2, 8, "b")
    for _ in range(len(storage.list()) // PAGE + 3):
        assert pages.refresh() <= 2
    made = pages.listing().in_progress
    assert (made.version, made.subtasks, made.parallelism) == (9, 1, 2)


def test_more_new_versions_than_a_page_holds_are_all_read(job, storage, in_pages):
    job.versions(1, 10)
    pages = whole(in_pages)
    job.versions(11, 30)
    pages.refresh()
    assert not pages.is_whole, "there is a gap below the first page"
    while not pages.is_whole:
        pages.refresh()
    assert numbers(pages) == list(range(30, 0, -1))


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_no_version_is_missing_between_others(job, storage, in_pages, seed):
    drawn = random.Random(seed)
    version, oldest, run = 3, 1, 1
    enter(storage, job, run, 0, "1")
    job.versions(1, version, run="1")
    pages = whole(in_pages)
    for _ in range(15):
        new = drawn.choice([1, 1, 2, 3, 8])
        job.versions(version + 1, version + new, run=str(run), epoch=run)
        version += new
        while drawn.random() < 0.8 and oldest < version - 5:
            storage.delete([info.name for info in storage.list(layout.version_folder(oldest))])
            oldest += 1
        if drawn.random() < 0.15:
            run, version = run + 1, drawn.randrange(oldest, version)
            enter(storage, job, run, version, str(run))
        assert pages.refresh() <= 2
        while not pages.is_whole or drawn.random() < 0.4:
            assert pages.refresh() <= 2
        shown = [(one.version, one.run_key) for one in pages.listing().timeline.versions]
        stored = [(one.version, one.run_key) for one in list_operator(storage).timeline.versions]
        between = {one for one in stored if shown[-1][0] <= one[0] <= shown[0][0]}
        assert between <= {*shown}
    for _ in range(2 * len(storage.list()) // PAGE + 6):
        pages.refresh()
    assert pages.listing().timeline == list_operator(storage).timeline


def test_a_local_directory_is_listed_at_once(make_committing_job, tmp_path):
    from forebay_state_api.storage.opening import open_storage

    storage = open_storage(tmp_path)
    make_committing_job(storage).versions(1, 3)
    pages = PagedListing(storage)
    assert pages.refresh(1) == 1
    assert pages.is_whole
    assert names(pages.listing()) == names(list_operator(storage))


@pytest.fixture
def parsed(monkeypatch):
    """The names that were parsed."""
    found = []
    parse = Made.parse.__func__

    def noted(cls, info):
        found.append(info.name)
        return parse(cls, info)

    monkeypatch.setattr(Made, "parse", classmethod(noted))
    return found


def test_a_name_is_parsed_once(job, storage, parsed):
    job.versions(1, 5)
    known = KnownNames()
    for version in (6, 7):
        known.made(storage.list("versions"))
        parsed.clear()
        job.version(version)
        parsed.clear()
        known.made(storage.list("versions"))
        assert len(parsed) == 4, "two markers and two manifests"
    storage.delete([info.name for info in storage.list("versions")])
    assert known.made(storage.list("versions")) == []


def test_what_is_stored_under_a_known_name_is_looked_at_again(job, storage):
    job.version(1)
    known = KnownNames()
    (manifest,) = [info for info in storage.list("versions") if "/manifest-" in info.name][:1]
    assert known.made([manifest])[0].manifest
    storage.put(manifest.name, b"torn")
    (torn,) = [info for info in storage.list("versions") if info.name == manifest.name]
    assert not known.made([torn])[0].manifest


def test_a_version_is_known_by_its_run_and_all_its_manifests(job, storage):
    known = KnownNames()

    def found(run):
        made = [one for one in known.made(storage.list("versions")) if one.manifest]
        mine = [one for one in made if one.by.run_key == job_run[run]]
        return known.version(mine)

    job.version(1, run="a", metrics={"rows_in": 30})
    job.version(1, run="b", epoch=2, metrics={"rows_in": 7})
    runs = {made.by.epoch: made.by.run_key for made in known.made(storage.list("versions"))}
    job_run = {"a": runs[1], "b": runs[2]}
    assert [found(run).count("rows_in") for run in ("a", "b", "a")] == [60, 14, 60]
    assert found("a") is found("a")
    job.commit(job.begin(1, 0, run="a"), metrics={"rows_in": 31})
    assert found("a").count("rows_in") == 61
    assert Figures({"rows_in": 31}).text(100) in found("a").subtasks[0].encoded
