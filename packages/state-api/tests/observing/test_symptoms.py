"""Symptoms of crafted operators, which rest on what the versions know."""

from __future__ import annotations

import pytest

from forebay_state_api.observing import OperatorWatch, symptoms_of

GROWN = {"bytes_total": 1_000_000}


@pytest.fixture
def names(job, storage):
    """Return a function that returns the names of an operator's symptoms now."""
    return lambda: [one.name for one in symptoms_of(OperatorWatch(storage).view())]


@pytest.fixture(autouse=True)
def _described(monkeypatch):
    monkeypatch.setattr(
        "forebay_state_api.observing.symptoms._states_without_ttl", lambda _: ["rows"]
    )


def test_versions_that_do_not_know_their_size_do_not_grow(job, names):
    job.versions(1, 3, metrics={"bytes_total": None})
    job.versions(4, 6, metrics=GROWN)
    assert names() == []
    job.version(7, metrics={"bytes_total": 3_000_000})
    assert names() == ["State grows"]


def test_two_known_sizes_are_too_few(job, names):
    job.versions(1, 3, metrics={"bytes_total": None})
    job.version(4, metrics=GROWN)
    job.version(5, metrics={"bytes_total": 9_000_000})
    assert names() == []


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ({"timers_registered": 9_000, "timers_fired": 0}, []),
        ({"timers_added": 9_000, "timers_fired": 0, "keys_touched": 500}, ["Timers leak"]),
        ({"timers_added": 9_000, "timers_fired": 5_000, "keys_touched": 500}, []),
        ({"timers_added": 9_000, "timers_fired": 0, "keys_touched": 9_000}, []),
        ({"timers_added": 9_000, "timers_fired": 0, "keys_touched": 0}, []),
    ],
)
def test_timers_leak_by_those_added_for_each_key(job, names, figures, found):
    job.version(1, metrics=figures)
    assert names() == found


def test_compaction_is_behind_by_the_versions_that_know_their_runs(job, storage):
    job.versions(1, 3)
    job.version(4, metrics={"runs_max": 12})
    (found,) = symptoms_of(OperatorWatch(storage).view())
    assert found.text.startswith("a key was looked up in up to 12 runs in the last 1 versions")
