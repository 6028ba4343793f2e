"""A follower shows one final version after another."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from forebay_state_api import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ConfigurationError,
    NoThreadError,
    VersionGoneError,
)
from forebay_state_api.threads import NO_THREAD
from forebay_state_processor.reading import FollowOptions, open_state
from forebay_state_processor.reading.follower import Follower
from forebay_testing import ManualClock

COUNT = ValueStateDescriptor("count", int)
SEEN = ListStateDescriptor("seen", int)
PATIENCE_S = 100
SELDOM = timedelta(hours=1)


@pytest.fixture
def job(make_job):
    job = make_job(COUNT, SEEN)
    for value in (1, 2):
        job.do("a", ("count.update", value), ("seen.add", value))
    return job


@pytest.fixture
def follow(read):
    return lambda **options: read(follow=FollowOptions(**{"poll": SELDOM} | options))


@pytest.mark.parametrize("poll", [timedelta(seconds=2), 2, "2s"])
def test_a_poll_is_a_duration(poll):
    assert FollowOptions(poll=poll) == FollowOptions()


@pytest.mark.parametrize("poll", [timedelta.max, timedelta(seconds=-1), float("nan"), "soon"])
def test_a_poll_that_no_thread_can_wait_is_refused(poll):
    with pytest.raises(ConfigurationError, match=r"FollowOptions\.poll = .*: expected a duration"):
        FollowOptions(poll=poll)


def test_the_lease_of_a_follower_is_checked_at_the_door(tmp_path):
    with pytest.raises(ConfigurationError, match="lease is a timedelta"):
        open_state(str(tmp_path), query="q", uid="u", follow=True, lease=timedelta.max)


@pytest.mark.parametrize("refused", ["forebay-pin", "forebay-follower"])
def test_without_a_thread_nothing_stays_pinned(job, follow, tmp_path, monkeypatch, refused):
    def start(thread):
        if thread.name == refused:
            raise RuntimeError(NO_THREAD)
        started(thread)

    started = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(NoThreadError, match=f"{refused} could not be started"):
        follow()
    assert not [*tmp_path.rglob("pins/*")]


def test_it_moves_on_with_final_versions(job, follow):
    follower = follow()
    assert (follower.version, follower.get("count", "a")) == (1, 1)
    assert not follower.refresh()
    job.do("a", ("count.update", 3))
    assert follower.get("count", "a") == 1
    assert follower.refresh()
    assert (follower.version, follower.position.run) == (2, job.run_key)
    assert follower.get_many("count", ["a", "b"]) == [2, None]
    assert follower.get("seen", "a") == [1, 2]
    with follower.snapshot() as snapshot:
        assert {row.key for row in snapshot.scan("count")} == {"a"}


def test_it_moves_on_by_itself(job, read):
    with read(follow=FollowOptions(poll=timedelta(milliseconds=1))) as follower:
        job.do("a", ("count.update", 3))
        assert follower.wait_for(2, PATIENCE_S)
        assert follower.get("count", "a") == 2


def test_looks_begin_earlier_by_what_a_move_takes(job, follow, monkeypatch):
    followed, open_, clock = follow(), Follower._open, ManualClock()

    def open_in_ten_minutes(*args):
        clock.advance(timedelta(minutes=10))
        return open_(*args)

    monkeypatch.setattr(Follower, "_open", open_in_ten_minutes)
    seconds = SimpleNamespace(monotonic=lambda: clock.now_us / 1e6)
    monkeypatch.setattr("forebay_state_processor.reading.follower.time", seconds)
    job.do("a", ("count.update", 3))
    assert followed._look() == 40 * 60  # in the hour of a poll: the look, the pause, the next move
    assert followed._look() == 50 * 60
    assert followed.version == 2


def test_a_wait_ends_with_its_time(job, follow):
    assert not follow().wait_for(2, 0)


def test_cached_keys_need_no_request(job, follow, monkeypatch):
    follower = follow()
    assert follower.get("seen", "a") == [1]
    job.do("a", ("count.update", 3))
    follower.refresh()
    with follower.snapshot() as snapshot:
        monkeypatch.setattr(snapshot, "get_many", None)
        assert follower.get("seen", "a") == [1, 2]
        with pytest.raises(TypeError):
            follower.get("count", "a")


def test_the_least_recently_used_results_are_dropped(job, follow):
    follower = follow(cached_keys=2)
    for key in ("a", "b", "a", "c"):
        follower.get("count", key)
    assert [key for _, key in follower._shown.cached_keys()] == ["a", "c"]


def test_one_version_is_held_as_long_as_it_is_used(job, follow, tmp_path):
    follower = follow()
    with follower.snapshot() as first:
        job.do("a", ("count.update", 3))
        follower.refresh()
        assert first.get("count", "a") == 1
        assert len([*tmp_path.rglob("pins/*")]) == 2
    assert len([*tmp_path.rglob("pins/*")]) == 1
    follower.close()
    assert not [*tmp_path.rglob("pins/*")]
    with pytest.raises(ConfigurationError, match="closed"):
        follower.get("seen", "b")


def test_it_stops_on_an_abandoned_timeline(job, follow):
    job.do("a", ("count.update", 3))
    follower = follow()
    old = follower.position
    job.restart(batch_id=1)
    job.do("a", ("count.update", 7))
    job.do("a", ("count.update", 8))
    with pytest.raises(AbandonedTimelineError, match=f"{old} .* 2@{job.run_key}"):
        follower.refresh()


def test_the_thread_stops_on_an_abandoned_timeline(job, read):
    job.do("a", ("count.update", 3))
    follower = read(follow=FollowOptions(poll=timedelta(milliseconds=1)))
    job.restart(batch_id=1)
    job.do("a", ("count.update", 7))
    job.do("a", ("count.update", 8))
    with pytest.raises(AbandonedTimelineError):
        follower.wait_for(3, PATIENCE_S)
    with pytest.raises(AbandonedTimelineError):
        follower.get("count", "a")


@pytest.fixture
def forgotten(job, monkeypatch):
    """A version that was deleted while its reader was suspended."""
    monkeypatch.setattr("forebay_state_processor.reading.feed.is_stored", lambda *_: False)
    return job


def test_the_thread_stops_where_its_version_was_deleted(forgotten, read):
    follower = read(follow=FollowOptions(poll=timedelta(milliseconds=1)))
    forgotten.do("a", ("count.update", 3))
    with pytest.raises(VersionGoneError, match="Start again with what version 2@"):
        follower.wait_for(2, PATIENCE_S)
    with pytest.raises(VersionGoneError):
        follower.get("count", "a")


def test_it_may_go_on_from_a_version_that_was_deleted(forgotten, follow):
    follower = follow(change_timeline=True)
    forgotten.do("a", ("count.update", 3))
    assert follower.refresh()
    assert follower.get("count", "a") == 2


def test_an_error_of_storage_does_not_end_the_thread(job, read, monkeypatch, caplog):
    refresh, left = Follower.refresh, [OSError("reset"), ValueError("odd")]

    def fails_at_first(self):
        if left:
            raise left.pop()
        return refresh(self)

    monkeypatch.setattr(Follower, "refresh", fails_at_first)
    with read(follow=FollowOptions(poll=timedelta(milliseconds=1))) as follower:
        job.do("a", ("count.update", 3))
        assert follower.wait_for(2, PATIENCE_S)
    assert "stays: reset" in caplog.text


def test_it_may_change_the_timeline(job, follow):
    job.do("a", ("count.update", 3))
    follower = follow(change_timeline=True)
    assert follower.get("count", "a") == 2
    job.restart(batch_id=1)
    job.do("a", ("count.update", 7))
    job.do("a", ("count.update", 8))
    follower.refresh()
    assert follower.position.run == job.run_key
    assert follower.get("count", "a") == 7


@pytest.mark.long
def test_readers_on_threads_see_one_version_each(job, follow):
    follower = follow()
    wrong, end = [], threading.Event()

    def read_on():
        while not end.is_set():
            looked_up = [follower.get(state, "a") for state in ("count", "seen", "count")]
            count, seen, later = looked_up
            if not count <= len(seen) <= later:
                wrong.append(looked_up)

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for value in range(3, 7):
        job.do("a", ("count.update", value), ("seen.add", value))
        follower.refresh()
    end.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert follower.get("count", "a") == 5


def test_a_version_cannot_be_followed(job, read):
    with pytest.raises(ConfigurationError, match="leave out version="):
        read(version=1, follow=True)
