"""Sizes of versions: each version is read once, one at a time."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest

from forebay_console.watching import sizes
from forebay_console.watching.sizes import KnownSizes, StateSizes
from forebay_state_api.errors import ConfigurationError, StorageError

PATIENCE_S = 100


@attrs.frozen
class Version:
    """The part of a version's figures that is looked at."""

    version: int
    run_key: str = "a"


class Reading:
    """Counts reads, which begin and end as a test lets them."""

    def __init__(self):
        self.read: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self.at_once = self.most_at_once = 0

    def __call__(self, version: Any) -> StateSizes:
        self.read.append(version.version)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        self.at_once -= 1
        if self.errors:
            raise self.errors.pop()
        return StateSizes(version=version.version, backend="heap", of_states={"count": 7})


@pytest.fixture
def reading():
    return Reading()


@pytest.fixture
def known():
    return KnownSizes(2.0, lambda: 0.0)


def all_at_once(known, reading, versions) -> list[StateSizes]:
    """Ask for versions on threads; let the first reader go on when it has begun."""
    found = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(known.of(one.version, one, reading)))
        for one in versions
    ]
    for thread in threads:
        thread.start()
    assert reading.begun.wait(PATIENCE_S)
    reading.go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found


def test_viewers_who_ask_at_once_share_one_reading(known, reading):
    found = all_at_once(known, reading, [Version(5)] * 4)
    assert [one.version for one in found] == [5] * 4
    assert reading.read == [5]


def test_one_version_is_read_at_a_time(known, reading):
    found = all_at_once(known, reading, [Version(number) for number in range(4)])
    assert sorted(one.version for one in found) == sorted(reading.read) == [0, 1, 2, 3]
    assert reading.most_at_once == 1


def test_nobody_waits_long_for_other_versions(reading, no_rest, monkeypatch):
    monkeypatch.setattr(sizes, "_WAIT_S", 0.0)
    known = KnownSizes(0.0, lambda: 0.0)
    first = threading.Thread(target=known.of, args=(1, Version(1), reading))
    first.start()
    assert reading.begun.wait(PATIENCE_S)
    with pytest.raises(ConfigurationError, match="other versions are being read"):
        known.of(2, Version(2), reading)
    reading.go_on.set()
    first.join(PATIENCE_S)
    assert known.of(2, Version(2), reading).version == 2
    assert reading.read == [1, 2]


def test_a_version_of_another_run_is_another_one(known, reading):
    reading.go_on.set()
    for run in ("a", "b", "b"):
        known.of(5, Version(5, run), reading)
    assert reading.read == [5, 5]


def test_a_version_of_which_nothing_is_stored_has_the_sizes_that_are_known(known, reading):
    reading.go_on.set()
    with pytest.raises(ConfigurationError, match="Nothing is stored of version 5"):
        known.of(5, None, reading)
    found = known.of(5, Version(5), reading)
    assert known.of(5, None, reading) is found


def test_an_error_is_shared_for_a_moment_and_sizes_for_ever(reading, no_rest):
    now_s = 0.0
    known = KnownSizes(2.0, lambda: now_s)
    reading.go_on.set()
    reading.errors = [StorageError("gone")]
    for _ in range(3):
        with pytest.raises(StorageError, match="gone"):
            known.of(5, Version(5), reading)
    now_s = 2.0
    assert known.of(5, Version(5), reading).of_states == {"count": 7}
    now_s = 1e9
    assert known.of(5, Version(5), reading).of_states == {"count": 7}
    assert reading.read == [5, 5]


def test_the_sizes_of_few_versions_are_kept(known, reading):
    reading.go_on.set()
    for number in [*range(100), 99, 0]:
        known.of(number, Version(number), reading)
    assert reading.read == [*range(100), 0]
