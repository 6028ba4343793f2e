"""``forebay explain``: the batch it chooses, and its errors."""

from __future__ import annotations

import json

import pytest

from forebay_cli.live.explain import explain
from forebay_engine.versions import operator_folder
from forebay_engine.versions.cleaning.deleted_figures import remember
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage.opening import open_storage
from forebay_testing.committing_job import CommittingJob


def took(seconds):
    return {"phase_seconds": {"function": seconds}, "rows_in": 100}


@pytest.fixture
def stored(make_committing_job, tmp_path):
    job = make_committing_job()
    for version, seconds in enumerate((1.0, 7.0, 2.0, 1.0), 1):
        job.version(version, metrics=took(seconds))
    return tmp_path


def test_the_slowest_batch_of_the_only_operator(stored, invoke):
    printed = invoke(explain, "--state-dir", stored)
    assert printed.startswith("clicks / visits\nBatch 1 took 7 s in subtask 0")


def test_requests_that_cost_more_than_bytes(invoke, tmp_path):
    counted = {"get": 1, "list": 3, "put": 3, "delete": 0}
    for url, billed in ((tmp_path, False), (f"memory://{tmp_path.name}", True)):
        job = CommittingJob(open_storage(url).child(operator_folder("clicks", "visits")))
        job.versions(1, 4, metrics={**took(1.0), "storage_requests": counted})
        printed = invoke(explain, "--state-dir", url)
        said = "Besides, it spends more on requests than on bytes: 12 puts and lists and 2 gets"
        assert (said in printed) is billed
        found = json.loads(invoke(explain, "--state-dir", url, "--json"))
        assert (found["request_costs"] is not None) is billed


def test_one_batch_as_json(stored, invoke):
    found = json.loads(invoke(explain, "--state-dir", stored, "--batch", 2, "--json"))
    assert (found["query"], found["uid"], found["batch"]) == ("clicks", "visits", 2)
    assert (found["phase"], found["seconds"]) == ("function", 2.0)
    assert found["numbers"]["compared_with"] == 3
    assert found["numbers"]["figures"]["rows_in"] == 100


@pytest.mark.long
def test_a_batch_that_the_janitor_has_cleared(make_committing_job, invoke, tmp_path):
    job = make_committing_job()
    job.version(1, metrics=took(9.0))
    job.versions(2, 120, metrics=took(1.0))
    cleared = list_version(job.storage, 1).objects
    remember(job.storage, [one for one in cleared if one.manifest])
    job.storage.delete([one.name for one in cleared])
    printed = invoke(explain, "--state-dir", tmp_path, "--batch", 0)
    assert "Batch 0 took 9 s" in printed
    assert "the history keeps" in printed
    assert "Batch 0" not in invoke(explain, "--state-dir", tmp_path), "not of the last 100"


@pytest.mark.long
def test_the_version_before_the_batch_may_be_in_the_history_alone(
    make_committing_job, invoke, tmp_path
):
    job = make_committing_job()
    job.version(1, metrics=took(1.0))
    opened = {"phase_seconds": {"open": 9.0}}
    job.version(2, metrics=opened, run="b", epoch=2)
    job.versions(3, 120, metrics=took(1.0), run="b", epoch=2)
    for version in (1, 2):  # an object of the history for each
        cleared = list_version(job.storage, version).objects
        remember(job.storage, [one for one in cleared if one.manifest])
        job.storage.delete([one.name for one in cleared])
    printed = invoke(explain, "--state-dir", tmp_path, "--batch", 1)
    assert "the first micro-batch after a restart" in printed


def test_several_operators_must_be_distinguished(stored, make_committing_job, invoke):
    make_committing_job(uid="sessions").version(1, metrics=took(1.0))
    both = "--query clicks --uid sessions; --query clicks --uid visits"
    with pytest.raises(ConfigurationError, match=both):
        invoke(explain, "--state-dir", stored)
    assert "7 s" in invoke(explain, "--state-dir", stored, "--uid", "visits")


def test_what_is_not_there_is_named(stored, make_committing_job, invoke):
    with pytest.raises(ConfigurationError, match=r"batch 77 are not stored .* there are: 0 to 3"):
        invoke(explain, "--state-dir", stored, "--batch", 77)
    with pytest.raises(ConfigurationError, match=r"no such operator .*: there are 'clicks'"):
        invoke(explain, "--state-dir", stored, "--uid", "nobody")
    make_committing_job(uid="old").version(1)
    with pytest.raises(ConfigurationError, match="no version with measured times"):
        invoke(explain, "--state-dir", stored, "--uid", "old")
    with pytest.raises(ConfigurationError, match=r"times of batch 0 .* were not measured"):
        invoke(explain, "--state-dir", stored, "--uid", "old", "--batch", 0)
