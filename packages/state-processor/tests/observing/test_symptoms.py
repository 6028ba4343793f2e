"""Symptoms of crafted operators, which rest on what the versions know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.pins import Pin
from forebay_engine.versions.cleaning.clearing_marks import put_mark
from forebay_engine.versions.format.blobs import FileBlob
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api.contract.file_names import data_name
from forebay_state_processor.observing import OperatorWatch, symptoms_of

GROWN = {"bytes_total": 1_000_000}


@pytest.fixture
def names(job, storage):
    """Return a function that returns the names of an operator's symptoms now."""
    return lambda: [one.name for one in symptoms_of(OperatorWatch(storage).view())]


@pytest.fixture(autouse=True)
def _described(monkeypatch):
    monkeypatch.setattr(
        "forebay_state_processor.observing.symptoms._states_without_ttl", lambda _: ["rows"]
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


LITTLE = {"bytes_written": 20_000}
SLOW = {"phase_seconds": {"function": 0.1, "commit_files": 0.7}, **LITTLE}
QUICK = {"phase_seconds": {"function": 0.1, "commit_files": 0.2}, **LITTLE}
LARGE = {**SLOW, "bytes_written": 2_000_000}


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ([SLOW, SLOW, SLOW], ["Storage is slow"]),
        ([QUICK, SLOW, SLOW], ["Storage is slow"]),
        ([QUICK, QUICK, SLOW], []),
        ([SLOW, SLOW], []),
        ([LARGE, LARGE, LARGE], []),
        ([SLOW, LARGE, SLOW, LARGE, SLOW], ["Storage is slow"]),
        ([{**SLOW, "bytes_written": 0}] * 3, []),
        ([SLOW, SLOW, {**SLOW, "compaction_stalled_seconds": 0.6}], []),
        ([SLOW, SLOW, {**SLOW, "compaction_stalled_seconds": 0.0}], ["Storage is slow"]),
    ],
)
def test_storage_is_slow_if_commits_of_few_bytes_take_long(job, names, figures, found):
    for version, metrics in enumerate(figures, 1):
        job.version(version, metrics=metrics)
    assert names() == found


@pytest.mark.parametrize(("size", "found"), [(20_000, ["Storage is slow"]), (2_000_000, [])])
def test_operator_state_is_written_in_the_same_time(job, names, size, found):
    job.versions(1, 2, metrics=SLOW)
    files = [FileBlob(data_name(version, "operator"), size, b"") for version in (1, 3)]
    content = OperatorStateContent(exists=True, raw=files[1:])
    job.version(3, metrics=SLOW, operator_state=content.stored())
    assert names() == found
    kept = OperatorStateContent(exists=True, raw=files[:1])
    job.version(4, metrics=SLOW, operator_state=kept.stored())
    assert names() == ["Storage is slow"], "an earlier commit wrote it"


def test_commits_of_another_subtask_may_compact_themselves(job, names):
    """The subtask whose commits take long is not the one whose manifest is read."""
    compacts = {**SLOW, "compaction_stalled_seconds": 0.6, "runs_max": 10, "rows_in": 1}
    for version in range(1, 5):
        slow, busy = (job.begin(version, subtask) for subtask in range(2))
        job.commit(slow, metrics=compacts)
        job.commit(busy, metrics={**QUICK, "runs_max": 9, "rows_in": 2})
    assert names() == ["Compaction is behind"]


def test_slow_storage_says_which_requests_are_slow(job, storage):
    checks = {"phase_seconds": {**SLOW["phase_seconds"], "commit_check": 0.4}, **LITTLE}
    job.versions(1, 3, metrics=checks)
    (found,) = symptoms_of(OperatorWatch(storage).view())
    assert found.text == (
        "the check before a manifest is written takes 400 ms each time, and a commit takes 700 "
        "ms to write its 20,000 bytes"
    )


def test_the_janitor_is_behind_if_what_nothing_holds_is_far_older_than_its_age(job, clock, storage):
    job.versions(1, 27, seconds=300)
    assert symptoms_of(OperatorWatch(storage).view()) == [], "no pass has said what it keeps"
    put_mark(storage, 1, 10, timedelta(hours=1))
    assert symptoms_of(OperatorWatch(storage).view()) == []
    job.version(28, seconds=300)
    (found,) = symptoms_of(OperatorWatch(storage).view())
    assert found.name == "The janitor is behind"
    assert found.text.startswith(
        "17 versions below the retention are stored, the oldest for 2.2 h, although"
    )


def test_what_a_pin_holds_is_no_backlog(job, clock, storage):
    job.version(1)
    with Pin(storage, 1):
        put_mark(storage, 1, 10, timedelta(hours=1))
        job.versions(2, 12, seconds=1_800)
        assert symptoms_of(OperatorWatch(storage).view()) == []
    (found,) = symptoms_of(OperatorWatch(storage).view())
    assert found.name == "The janitor is behind"
