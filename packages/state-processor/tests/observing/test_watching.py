"""Watching operators: what a view has, and how many requests it takes."""

import uuid
from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.pins import Pin
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.cleaning.deleted_figures import remember
from forebay_engine.versions.format.epochs import EpochEntry
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_processor.observing import DirectoryWatch, OperatorWatch, stored_operators
from forebay_testing.storage import CountingStorage

ROWS = {"rows_in": 30, "rows_out": 5}


@pytest.fixture
def root():
    """A state directory in memory."""
    return MemoryStorage(f"memory://{uuid.uuid4()}")


def forget(storage, *versions):
    """Put versions into the history as one pass of the janitor does, and delete them."""
    found = [one for version in versions for one in list_version(storage, version).objects]
    remember(storage, [one for one in found if one.manifest])
    storage.delete([one.name for one in found])


def test_a_refresh_takes_three_requests_at_most(job, storage):
    job.versions(1, 9, metrics=ROWS)
    for version in range(1, 7):
        forget(storage, version)
    counting = CountingStorage(storage)
    watch = OperatorWatch(counting)
    seen = []
    for _ in range(8):
        counting.reset()
        view = watch.refresh()
        assert counting.counts.total() <= 3
        seen.append(len(view.timeline.versions))
    assert seen == [4, 5, 6, 7, 8, 9, 9, 9], "the timeline grows by an object of the history"
    assert counting.counts == {"list_page": 1}, "nothing that cannot change is read again"


def test_a_view_waits_until_its_requests_suffice(job, storage):
    job.versions(1, 3, metrics=ROWS)
    counting = CountingStorage(storage)
    watch = OperatorWatch(counting)
    assert watch.refresh(1) is None
    assert counting.counts == {"list_page": 1}
    assert watch.refresh(2).busiest.made.version == 3
    assert OperatorWatch(storage).view().newest.version == 3


def test_the_requests_of_a_directory_are_three_for_each_operator(root, make_committing_job):
    for uid in ("a", "b", "c"):
        make_committing_job(root.child(f"q{uid}/{uid}")).versions(1, 3, metrics=ROWS)
    counting = CountingStorage(root)
    watch = DirectoryWatch(counting)
    seen, most = [], 3 * 3
    for _ in range(25):
        counting.reset()
        seen.append(len(watch.refresh()))
        assert counting.counts.total() <= most
    assert seen == [0] + [3] * 24, "the first refresh finds them"
    assert DirectoryWatch(root).views().keys() == watch.refresh().keys()


def test_the_hot_key_groups_are_those_of_the_subtask_with_the_most_rows(job, storage):
    for subtask, rows in enumerate(([1, 0, 2, 0], [5, 70, 0, 25])):
        made = job.begin(1, subtask)
        job.commit(made, metrics={"rows_in": sum(rows), "group_rows": rows})
    hot = OperatorWatch(storage).refresh().hot_key_groups(2)
    assert (hot.subtask, hot.rows_in, hot.rows) == (1, 100, {5: 70, 7: 25})


def test_rows_of_key_groups_that_nobody_counted(job, storage):
    job.version(1, metrics=ROWS)
    view = OperatorWatch(storage).refresh()
    assert view.hot_key_groups(3) is None
    assert view.backend == "toy"
    assert "keys" in view.unknown
    assert "rows_in" not in view.unknown


def test_an_empty_batch_has_no_hot_key_groups(job, storage):
    job.version(1, metrics={"rows_in": 0, "group_rows": []})
    assert OperatorWatch(storage).refresh().hot_key_groups(3).rows == {}


def test_a_version_in_progress(job, storage):
    job.version(1)
    assert OperatorWatch(storage).refresh().in_progress is None
    began = job.clock.now
    job.commit(job.begin(2, 0))
    job.begin(2, 1)
    made = OperatorWatch(storage).refresh().in_progress
    assert (made.version, made.begun, made.subtasks, made.committed) == (2, began, 2, 1)


def test_no_abandoned_version_is_in_progress_after_going_back(job, storage):
    job.versions(1, 8)
    for subtask in (0, 1):
        job.begin(9, subtask)
    job.versions(4, 5, run="b", epoch=2)
    view = OperatorWatch(storage).refresh()
    assert (view.newest.version, view.in_progress) == (5, None)
    job.clock.advance(timedelta(seconds=3))
    job.commit(job.begin(6, 1, run="b", epoch=2))
    made = OperatorWatch(storage).refresh().in_progress
    assert (made.version, made.begun, made.subtasks, made.committed) == (6, job.clock.now, 1, 1)


def test_a_run_that_went_back_and_completed_nothing_is_in_progress(job, storage):
    job.versions(1, 8)
    job.begin(9, 0)
    made = job.begin(4, 1, run="b", epoch=2)
    storage.put(EpochEntry(2, 3, made.run_key, "0" * 16).name, b"")
    view = OperatorWatch(storage).refresh()
    assert view.newest.version == 8
    assert (view.in_progress.version, view.in_progress.subtasks) == (4, 1)
    job.commit(made)
    assert OperatorWatch(storage).refresh().in_progress.committed == 1
    job.commit(job.begin(4, 0, run="b", epoch=2))
    view = OperatorWatch(storage).refresh()
    assert (view.newest.version, view.in_progress) == (4, None)


def test_a_run_that_has_begun_nothing_yet_leaves_nothing_in_progress(job, storage):
    job.version(1)
    job.begin(2, 0)
    storage.put(EpochEntry(2, 1, "b" * 16, "0" * 16).name, b"")
    assert OperatorWatch(storage).refresh().in_progress is None


def test_of_a_version_that_two_runs_began_the_newer_run_counts(job, storage):
    job.version(1)
    job.commit(job.begin(2, 0))
    job.begin(2, 1)
    job.begin(2, 1, run="b", epoch=2)
    made = OperatorWatch(storage).refresh().in_progress
    assert (made.version, made.subtasks, made.committed) == (2, 1, 0)


def test_the_version_in_progress_may_follow_skipped_ones(job, storage):
    job.begin(5, 0)
    assert OperatorWatch(storage).refresh().in_progress.version == 5
    job.version(5)
    job.begin(8, 0, run="b", epoch=2)
    assert OperatorWatch(storage).refresh().in_progress.version == 8


def test_a_manifest_that_the_janitor_deletes_meanwhile(job, storage):
    manifests = job.version(1)

    class Deleting(CountingStorage):
        def get(self, name):
            storage.delete([name])
            return super().get(name)

    view = OperatorWatch(Deleting(storage)).refresh()
    assert (view.newest.version, view.backend) == (1, None)
    assert len(manifests) == 2


def test_pins_of_readers_savepoints_and_forks(job, storage, clock):
    job.version(1)
    create_savepoint(storage, "kept", uid="op", version=1)
    with Pin(storage, 1):
        view = OperatorWatch(storage).refresh()
        assert len(view.listing.reader_pins(clock.now)) == 1
        assert (view.listing.savepoints, view.held_by_forks) == (["kept"], 0)


def test_a_directory_s_operators_come_and_go(root, make_committing_job):
    make_committing_job(root.child("q/a")).version(1)
    watch = DirectoryWatch(root)
    assert [(one.query, one.uid) for one in watch.views()] == [("q", "a")]
    make_committing_job(root.child("q/b")).version(1)
    for _ in range(10):
        found = watch.refresh()
    assert [one.uid for one in found] == ["a", "b"]
    assert [one.uid for one in DirectoryWatch(root, uid="b").views()] == ["b"]
    root.delete([info.name for info in root.list("q/a/")])
    assert [one.uid for one in watch.refresh()] == ["b"]


def test_folders_that_nobody_named_like_an_operator_keep_their_names(root):
    for folder in ("\N{LATIN SMALL LETTER L WITH STROKE}/x", "=ff/y", "q/a"):
        root.put(f"{folder}/object", b"")
    found = [(one.query, one.uid) for one in stored_operators(root)]
    assert found == [("=ff", "y"), ("q", "a"), ("\N{LATIN SMALL LETTER L WITH STROKE}", "x")]


class Denying(ForwardingStorage):
    """Denies every request for the folders in ``denied``."""

    def __init__(self, inner):
        super().__init__(inner)
        self.denied = set()

    def around(self, operation, name, request):
        if any(name.startswith(folder) for folder in self.denied):
            raise StorageError(f"Access Denied: {name}")
        return request()


@pytest.fixture
def denying(root, make_committing_job):
    """A state directory with two operators of one query, which can be denied."""
    for uid in ("a", "b"):
        make_committing_job(root.child(f"q/{uid}")).versions(1, 2, metrics=ROWS)
    return Denying(root)


@pytest.mark.parametrize("waits", [False, True])
def test_an_operator_that_cannot_be_read_keeps_its_view(denying, make_committing_job, waits):
    denying.waits = waits
    watch = DirectoryWatch(denying)
    assert [len(watch.views()), len(watch.problems)] == [2, 0]
    denying.denied.add("q/a/")
    make_committing_job(denying.inner.child("q/b")).version(3)
    found = {one.uid: view.newest.version for one, view in watch.refresh().items()}
    assert found == {"a": 2, "b": 3}
    assert [(one.uid, str(error)) for one, error in watch.problems.items()] == [
        ("a", "Access Denied: q/a/")
    ]
    denying.denied.clear()
    watch.refresh()
    assert watch.problems == {}


def test_an_operator_that_could_never_be_read_has_no_view(denying):
    denying.denied.add("q/a/")
    watch = DirectoryWatch(denying)
    assert [one.uid for one in watch.views()] == ["b"]
    assert [one.uid for one in watch.problems] == ["a"]


@pytest.mark.parametrize("chosen", [{}, {"query": "q", "uid": "a"}])
def test_if_no_operator_can_be_read_it_is_an_error(denying, chosen):
    denying.denied |= {"q/a/"} if chosen else {"q/a/", "q/b/"}
    with pytest.raises(StorageError, match="Access Denied"):
        DirectoryWatch(denying, **chosen).views()


class Unlistable(Denying):
    """Denies only lists of the operators of the queries in ``denied``."""

    def list_folders(self, prefix=""):
        if prefix in self.denied:
            raise StorageError(f"Access Denied: {prefix}")
        return self.inner.list_folders(prefix)

    def around(self, operation, name, request):
        return request()


@pytest.fixture
def unlistable(denying, make_committing_job):
    """The same state directory with one more query, where only lists of queries are denied."""
    make_committing_job(denying.inner.child("p/c")).versions(1, 2, metrics=ROWS)
    return Unlistable(denying.inner)


def test_a_query_that_cannot_be_listed_leaves_the_others(unlistable):
    unlistable.denied.add("p")
    watch = DirectoryWatch(unlistable)
    assert [one.uid for one in watch.views()] == ["a", "b"]
    problems = {query: str(error) for query, error in watch.unlisted.items()}
    assert (problems, watch.problems) == ({"p": "Access Denied: p"}, {})
    unlistable.denied.clear()
    for _ in range(11):
        found = watch.refresh()
    assert ({one.uid for one in found}, watch.unlisted) == ({"a", "b", "c"}, {})


def test_operators_of_a_query_that_can_be_listed_no_more_are_read_on(
    unlistable, make_committing_job
):
    watch = DirectoryWatch(unlistable)
    assert len(watch.views()) == 3
    unlistable.denied.add("p")
    make_committing_job(unlistable.inner.child("p/c")).version(3)
    for _ in range(12):
        found = {one.uid: view.newest.version for one, view in watch.refresh().items()}
    assert found == {"a": 2, "b": 2, "c": 3}
    assert watch.unlisted.keys() == {"p"}


@pytest.mark.parametrize("chosen", [{}, {"query": "q"}, {"uid": "a"}])
def test_if_nothing_can_be_listed_it_is_an_error(unlistable, chosen):
    unlistable.denied |= {"q"} if chosen else {"p", "q"}
    with pytest.raises(StorageError, match="Access Denied"):
        DirectoryWatch(unlistable, **chosen).views()


def test_the_list_of_all_operators_has_all_or_fails(unlistable):
    assert [one.uid for one in stored_operators(unlistable)] == ["c", "a", "b"]
    unlistable.denied.add("p")
    with pytest.raises(StorageError, match="Access Denied: p"):
        stored_operators(unlistable)


def test_one_chosen_operator_takes_no_list_of_operators(root, make_committing_job):
    make_committing_job(root.child("q/a")).version(1)
    counting = CountingStorage(root)
    DirectoryWatch(counting, query="q", uid="a").refresh()
    assert counting.counts == {"list_page": 1, "get": 1}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({}, "no such operator in"),
        ({"query": "p"}, "nothing is stored of query 'p'; there are 'q' \\('a'\\)"),
        ({"query": "q", "uid": "b"}, "query 'q' has state of 'a'"),
        ({"uid": "b"}, "there are 'q'"),
    ],
)
def test_names_of_nothing_are_errors(root, make_committing_job, chosen, message):
    if chosen:
        make_committing_job(root.child("q/a")).version(1)
    with pytest.raises(ConfigurationError, match=message):
        DirectoryWatch(root, **chosen).views()
